"""Every setting is used or refused: a setting without effect gives an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

import submodel as library
from submodel.config import Config, parse
from submodel.config.engine import choose_engine
from submodel.config.reading import section_class
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError
from submodel.core.options import compose
from submodel.core.registry import Registry
from tests.pins import errors
from tests.support.commands import Command

SMALL = {"name": "mlp", "width": 8}


def factory(width: int = 4) -> nn.Module:
    """Make a user's own model, named in a configuration."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


FACTORY = "tests.config.test_nothing_is_ignored:factory"

IN_A_CONFIGURATION: dict[str, dict[str, Any]] = {
    "scheme.windows: 'random' .*scheme.name = rolling": {
        "scheme": {"name": "random", "windows": 8}
    },
    "scheme.sampling: 'rolling' .*scheme.name = random or unbiased": {
        "scheme": {"sampling": "fixed"}
    },
    "scheme.scope: 'static' .*scheme.name = importance": {
        "scheme": {"name": "static", "scope": "global"}
    },
    "scheme.sequence: 'random' .*scheme.name = masked-sgd": {
        "scheme": {"name": "random", "sequence": "random"}
    },
    "scheme.options: 'rolling' .*options": {"scheme": {"options": {"windows": 8}}},
    f"model.width: '{FACTORY}' .*model.name = mlp": {"model": {"name": FACTORY, "width": 8}},
    "model.options: 'cnn' .*options": {"model": {"name": "cnn", "options": {"width": 8}}},
    "model.rank_share: .*factorised = true": {"model": {"rank_share": 0.5}},
    'model.adapter_rank: .*adapters = "lora"': {"model": {"adapter_rank": 4}},
    'model.adapter_dropout: .*adapters = "lora"': {"model": {"adapter_dropout": 0.0}},
    "model.adapters: .*factorised": {"model": {"adapters": "lora", "factorised": True}},
    "task.options: 'auto' ": {"task": {"options": {"reduction": "sum"}}},
    "data.alpha: 'iid' .*data.partition = dirichlet": {"data": {"partition": "iid", "alpha": 0.5}},
    "data.path: 'digits' .*data.name = cifar10": {"data": {"path": "digits.csv"}},
    "local.decay: 'constant' .*local.schedule = step": {"local": {"decay": 0.5}},
    "local.milestones: 'cosine' .*local.schedule = step": {
        "local": {"schedule": "cosine", "milestones": [3]}
    },
    "local.steps: .*epochs": {"local": {"steps": 3, "epochs": 1}},
    "merge.radius: 'none' .*merge.projection = ball or box": {"merge": {"radius": 1.0}},
    "server.momentum: 'plain' .*server.name = momentum": {"server": {"momentum": 0.5}},
    "engine.processes: 'local' .*engine.name = auto or torchrun": {
        "engine": {"name": "local", "processes": 2}
    },
    "clients.groups: .*sampling = cyclic or shuffled-cyclic": {"clients": {"groups": 2}},
    "devices.least: .*engine.name = flower": {"devices": {"least": 2}},
    "devices.transport: .*engine.name = flower": {"devices": {"transport": "half"}},
    "clients.cuont: .*'count'": {"clients": {"cuont": 5}},
    "sceme: .*'scheme'": {"sceme": {"name": "full"}},
    "clients.width: .* model.width": {"clients": {"width": 5}},
    "clients.lr: .*server.lr .*local.lr": {"clients": {"lr": 0.1}},
    "rounds: .*train.rounds": {"rounds": 5},
    "scheme.alpha: .*data.alpha .*data.partition = dirichlet": {"scheme": {"alpha": 0.5}},
}


@pytest.mark.parametrize("reason", IN_A_CONFIGURATION)
def test_a_configuration_with_a_key_that_nothing_uses_is_refused(reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^{reason}") as caught:
        parse(IN_A_CONFIGURATION[reason])
    errors.check("unused in a configuration", IN_A_CONFIGURATION[reason], caught.value)


CHOICES = [
    (section, choice, kind)
    for section in Config.model_fields
    for choice, kind in getattr(section_class(section), "choices", {}).items()
]


@pytest.mark.parametrize(
    ("section", "choice", "kind"), CHOICES, ids=lambda x: getattr(x, "noun", x)
)
def test_a_key_of_another_component_is_refused_with_every_component(
    section: str, choice: str, kind: Registry[Any]
) -> None:
    names = {n: f"{n}:x" if n in kind.prefixes else n for n in kind.entries}
    keys = {n: set(kind.find(name).options.model_fields) for n, name in names.items()}
    base = section_class(section)
    assert base is not None
    for name in names.values():
        for key in set().union(*keys.values()) - set(compose(base, {choice: name}).model_fields):
            owners = " or ".join(other for other in keys if key in keys[other])
            reason = rf"(?m)^{section}\.{key}: {name!r} .*{section}\.{choice} = {owners}$"
            with pytest.raises(ConfigError, match=reason):
                parse({section: {choice: name, key: 1}})


IN_A_RUN: dict[str, dict[str, Any]] = {
    "axes.least: .*units of an axis": {
        "scheme": {"granularity": "coordinate"},
        "axes": {"least": {"1": 0.5}},
    },
    "axes.whole: .*scheme.granularity = 'coordinate'": {
        "scheme": {"granularity": "coordinate"},
        "local": {"absent_labels": "keep"},
        "axes": {"whole": ["1"]},
    },
    "train.evaluate_train_examples: .*train.evaluate_train = true": {
        "train": {"evaluate_train_examples": 5}
    },
    "local.drop_last: .*batches": {"local": {"drop_last": True, "batch_size": 0}},
    "axes.least: 'nowhere' ": {"axes": {"least": {"nowhere": 0.5}}},
    "model.options: ": {"model": {"name": FACTORY, "options": {"wdith": 8}}},
}


@pytest.mark.parametrize("reason", IN_A_RUN)
def test_a_run_with_a_setting_that_it_cannot_use_is_refused(reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^{reason}") as caught:
        prepare(parse({"model": SMALL, **IN_A_RUN[reason]}))
    errors.check("unused in a run", IN_A_RUN[reason], caught.value)


def test_fewer_examples_are_taken_also_of_a_source_that_does_not_count_them() -> None:
    data = {"name": "submodel:digits", "examples": 100, "test_examples": 20, "partition": "iid"}
    found = prepare(parse({"model": SMALL, "data": data})).clients.dataset
    assert (len(found.train), len(found.test)) == (100, 20)


FROM_PYTHON: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "engine: .*'auto' or 'local'": ({"engine": {"name": "torchrun"}}, {}),
    "engine: .*'submodel serve": ({"engine": {"name": "flower"}}, {}),
    "engine: .*processes": ({"engine": {"processes": 2}}, {}),
    "model.name: 'cnn' .*Python": ({"model": {"name": "cnn"}}, {}),
    "model.width: ": ({"model": {"width": 8}}, {}),
    "data.name: 'digits' .*Python": ({"data": {"name": "digits"}}, {}),
    "data.path: 'digits' ": ({"data": {"path": "x"}}, {}),
    "devices.deadline: .*engine.name = flower": ({"devices": {"deadline": 5}}, {}),
    "resume: .*out": ({}, {"resume": True}),
    "axes.freeze: .*axes=": ({"axes": {"freeze": ["1"]}}, {"axes": {}}),
    "data.partition: .*clients=": ({"data": {"partition": "iid"}}, {"clients": [[0, 1], [2, 3]]}),
}


@pytest.mark.parametrize("reason", FROM_PYTHON)
def test_training_from_python_refuses_what_it_would_not_follow(reason: str) -> None:
    config, arguments = FROM_PYTHON[reason]
    with pytest.raises(ConfigError, match=f"^{reason}") as caught:
        library.train(factory(), library.digits(), config, progress=False, **arguments)
    errors.check("unused from Python", FROM_PYTHON[reason], caught.value)


def test_the_path_of_a_source_is_refused_with_data_in_python() -> None:
    config = {"data": {"name": "cifar10", "path": "x"}}
    with pytest.raises(ConfigError, match=r"(?m)^data\.path: ") as caught:
        library.train(factory(), library.digits(), config, progress=False)
    assert len(caught.value.problems) == 2


AT_THE_COMMAND_LINE = {
    "engine.processes: 0 ": ["--processes", "0"],
    "--processes: ": [
        *("--processes", "2", "--engine", "local"),
    ],
    "engine.processes: 'local' ": [
        *("--set", "engine.name=local", "--set", "engine.processes=2"),
    ],
    "engine.name: ": ["--engine", "flower"],
    "clients.cuont: ": ["--set", "clients.cuont=5"],
}


@pytest.mark.slow
@pytest.mark.parametrize("key", AT_THE_COMMAND_LINE)
def test_the_command_refuses_it_too_and_begins_no_run(
    key: str, submodel: Command, tmp_path: Path
) -> None:
    done = submodel("train", *AT_THE_COMMAND_LINE[key], cwd=tmp_path)
    errors.check("unused at the command line", AT_THE_COMMAND_LINE[key], done)
    assert done.returncode == 2
    assert key in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_loss_in_the_configuration_and_one_in_python_are_one_too_many() -> None:
    config = {"task": {"loss": "squared-error"}}
    loss = nn.functional.cross_entropy
    with pytest.raises(ConfigError, match=r"^task\.loss: 'squared-error' .*Python"):
        library.train(factory(), library.digits(), config, loss=loss, progress=False)


def test_an_own_engine_is_not_replaced_by_the_processes_of_torchrun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    config = parse({"model": SMALL, "engine": {"name": "my_engines:Engine"}})
    with pytest.raises(ConfigError, match=r"^engine\.name: 'my_engines:Engine' "):
        choose_engine(config, prepare(config))
    assert (
        choose_engine(parse({"model": SMALL}), prepare(parse({"model": SMALL}))).engine.processes
        == 2
    )


def test_what_is_set_to_its_default_is_no_mistake() -> None:
    assert parse({"devices": {"quorum": 1.0}}) == parse({})
