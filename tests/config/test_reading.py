"""Reading configurations: errors by key, settings, and no import of PyTorch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from submodel.config import Config, override, parse, read, to_toml
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError
from tests.pins import errors

MISTAKES: dict[str, dict[str, Any]] = {
    r"clients.capacities\[0\]: 0 .*\(0, 1\]": {"clients": {"capacities": [0]}},
    r"clients.capacities\[1\]: 1.5 .*\(0, 1\]": {"clients": {"capacities": [1, 1.5]}},
    "clients.proportions: 1 .*4 capacities": {"clients": {"proportions": [1]}},
    "clients.per_round: 60 .*50 clients": {"clients": {"per_round": 60}},
    "clients.count: 0 .*1": {"clients": {"count": 0}},
    "scheme.name: 'roling' ": {"scheme": {"name": "roling"}},
    "scheme.nmae: .*'name'.* name, granularity": {"scheme": {"nmae": "full"}},
    "colour: .* name, seed, model": {"colour": 1},
    "local.lr: 'fast' .*number": {"local": {"lr": "fast"}},
    "local.steps: .*epochs": {"local": {"steps": 1, "epochs": 1}},
    "local.milestones: 'constant' .*local.schedule = step": {"local": {"milestones": [3]}},
    "merge.radius: .*missing": {"merge": {"projection": "ball"}},
    "merge.radius: 'none' .*merge.projection = ball or box": {"merge": {"radius": 1}},
    "train.rounds: 2.5 .*whole number": {"train": {"rounds": 2.5}},
    "train: 3 .*table": {"train": 3},
    "name: '../x' .*characters": {"name": "../x"},
    "seed: -1 .*0": {"seed": -1},
}


@pytest.mark.parametrize("reason", MISTAKES)
def test_a_mistake_is_named_with_its_path_and_what_is_allowed(reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^{reason}") as caught:
        parse(MISTAKES[reason])
    errors.check("reading", MISTAKES[reason], caught.value)


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"seed": -1, "local": {"lr": 0}, "data": {"name": "nmist"}, "x": 1})
    errors.check("reading", "all at once", caught.value)
    assert len(caught.value.problems) == 4


MISFITS: dict[str, dict[str, Any]] = {
    "data.labels_per_client: 11 .*10 classes": {"data": {"labels_per_client": 11}},
    "scheme.windows: 4096 .*128 units": {"scheme": {"windows": 4096}},
    "clients.count: 5000 .*3 labels": {"clients": {"count": 5000}},
    "engine.device: 'abacus' ": {"engine": {"device": "abacus"}},
    "model.name: 'own'": {"model": {"name": "own"}},
}


@pytest.mark.parametrize("reason", MISFITS)
def test_what_does_not_fit_the_data_or_the_model_is_named_too(reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        prepare(parse(MISFITS[reason]))
    errors.check("misfit", MISFITS[reason], caught.value)


def test_misfits_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(parse({"data": {"labels_per_client": 11}, "scheme": {"windows": 4096}}))
    assert len(caught.value.problems) == 2


def test_a_file_may_be_named_by_its_text(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("seed = 3\n", "utf-8")
    assert read(str(tmp_path / "mine.toml")) == read(tmp_path / "mine.toml")
    assert read(str(tmp_path / "mine.toml")).seed == 3


def test_the_resolved_config_reads_back_as_itself(tmp_path: Path) -> None:
    config = parse({"clients": {"capacities": ["1/16", 1]}, "local": {"steps": 3}})
    assert config.clients.capacities == [0.0625, 1]
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config))
    assert read(path) == config
    assert read(path, ["seed=4", "scheme.order=sequential"]).scheme.order == "sequential"


def test_settings_must_be_settings() -> None:
    for bad in ("seed", "=3"):
        with pytest.raises(ConfigError, match=r" key\.path=value"):
            override({}, [bad])
    with pytest.raises(ConfigError, match=r"seed .*table"):
        override({"seed": 1}, ["seed.x=3"])


def test_every_key_has_a_default_and_a_description() -> None:
    for name, field in Config.model_fields.items():
        section = field.annotation
        inner = getattr(section, "model_fields", None)
        for key, leaf in (inner or {name: field}).items():
            assert leaf.description, f"{name}.{key}"
            assert not leaf.is_required(), f"{name}.{key}"


IMPORTS = {
    "the configuration": "submodel.config",
    "the lists of components": ", ".join(
        f"submodel.{module}"
        for module in (
            "model.builtin_models",
            "data.builtin_data",
            "tasks.builtin_tasks",
            "schemes.builtin_schemes",
            "algorithm.builtin_rules",
            "engines.builtin_engines",
        )
    ),
}


@pytest.mark.parametrize("what", IMPORTS)
def test_importing_it_loads_no_torch(what: str) -> None:
    """Only the import is tested, with which every command starts.

    Reading a configuration, even the default one, needs the ``Options`` of its components, which
    are beside their code, and `submodel.model.zoo.images` and others import PyTorch.
    """
    code = f"import {IMPORTS[what]}, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_the_names_that_a_key_may_have_are_told_without_torch() -> None:
    code = (
        "import sys; from submodel.config import SchemeSection\n"
        "kind = SchemeSection.choices['name']\n"
        "assert kind.accepts('rolling') and not kind.accepts('no-such')\n"
        "assert 'pruned' in kind.names()\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
