"""Classes, functions and objects instead of names: behaviour, records and refusals of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import submodel
from submodel import plugins
from submodel.config import parse, to_toml
from submodel.core import ConfigError
from submodel.schemes import Draw, Mask, Static
from submodel.schemes.builtin_schemes import SCHEMES
from submodel.tasks.builtin_tasks import SCHEDULES
from submodel.testing import check_scheme
from tests.support.commands import Command

NET = torch.nn.Sequential(
    torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.ReLU(), torch.nn.Linear(8, 10)
)
BASE: dict[str, Any] = {
    "clients": {"count": 6, "per_round": 2, "capacities": [1.0, 0.5]},
    "data": {"examples": 60, "test_examples": 20},
    "train": {"rounds": 2},
}


class Prefix:
    """The cut of `static` in a class that only has `select`."""

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        mask: Mask = np.arange(size) < np.ceil(capacity * size)
        return mask


class Counts(submodel.Callback):
    """A callback in the form that users write, with its own arguments."""

    made: list[Counts] = []  # noqa: RUF012

    def __init__(self, text: str = "round") -> None:
        self.lines: list[str] = []
        self.text = text
        self.made.append(self)

    def after_round(self, before: Any, after: Any, line: Any) -> None:
        self.lines.append(f"{self.text} {line['round']}")


def trained(out: Path | None = None, resume: bool = False, **sections: Any) -> submodel.Result:
    config = {name: {**BASE.get(name, {}), **sections.get(name, {})} for name in BASE | sections}
    return submodel.train(NET, submodel.digits(), config, out=out, resume=resume, progress=False)


def bits(result: submodel.Result) -> dict[str, bytes]:
    return {name: t.numpy().tobytes() for name, t in result.state.tensors.items()}


@dataclass(frozen=True)
class Flat:
    """A schedule without an import path."""

    value: float = 1.0

    def factor(self, round_: int) -> float:
        return self.value


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [Prefix, Prefix(), f"{__name__}:Prefix"])
def test_a_scheme_needs_nothing_but_select(scheme: Any) -> None:
    assert bits(trained(scheme={"name": scheme})) == bits(trained(scheme={"name": "static"}))
    assert check_scheme({"name": scheme, "granularity": "unit"})


def test_what_has_no_select_is_no_scheme() -> None:
    with pytest.raises(ConfigError, match=r"^scheme.name: .*a Counts, .*scheme"):
        trained(scheme={"name": Counts})


@pytest.mark.parametrize("tracker", ["class", "object", "path"])
def test_a_callback_is_a_tracker(tracker: str) -> None:
    Counts.made.clear()
    kinds = {"class": Counts, "path": f"{__name__}:Counts", "object": Counts("mine")}
    text = "mine" if tracker == "object" else "round"
    trained(train={"rounds": 2, "trackers": [kinds[tracker]]})
    assert Counts.made[-1].lines == [f"{text} 1", f"{text} 2"]


def test_what_can_be_imported_is_recorded_by_its_path_and_ours_by_its_name(tmp_path: Path) -> None:
    run = tmp_path / "run"
    trained(run, scheme={"name": Prefix}, task={"loss": torch.nn.functional.cross_entropy})
    config = submodel.open(run, model=NET, data=submodel.digits()).config
    assert (config.scheme.name, config.task.loss) == (f"{__name__}:Prefix", "cross-entropy")
    assert parse({"scheme": {"name": Static}}).scheme.name == "static"


@pytest.mark.slow
def test_what_no_path_leads_to_goes_on_in_python_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, submodel: Command
) -> None:
    out = tmp_path / "run"

    class Mine(Prefix):
        pass

    whole = trained(scheme={"name": Mine}, train={"rounds": 3})
    trained(out, scheme={"name": Mine})
    assert "# scheme.name = 'python:Mine'" in (out / "config.toml").read_text()
    monkeypatch.setattr(plugins, "_given", {})  # as in another process
    done = submodel("show", str(out))
    assert done.returncode == 0, done.stderr
    import submodel as library

    def opened(**given: Any) -> library.Run:
        return library.open(out, model=NET, data=library.digits(), **given)

    with pytest.raises(ConfigError, match=r"^scheme.name: 'python:Mine' .*Python"):
        opened().resume({"train": {"rounds": 3}}, progress=False)
    resumed = opened(parts=[Mine]).resume({"train": {"rounds": 3}}, progress=False)
    assert {n: t.numpy().tobytes() for n, t in resumed.model.state_dict().items()} == bits(whole)
    monkeypatch.setattr(plugins, "_given", {})
    assert bits(trained(out, resume=True, scheme={"name": Mine}, train={"rounds": 3})) == bits(
        whole
    )


def test_two_of_one_name_are_not_confused() -> None:
    configs = [parse({"local": {"schedule": Flat(value)}}) for value in (0.25, 0.5)]
    again = [type(config).model_validate(config.model_dump()) for config in configs]
    for value, config in zip((0.25, 0.5), again, strict=True):
        name = config.local.schedule
        assert (name, SCHEDULES.find(name).make(config.local, 2).factor(0)) == (
            "python:Flat",
            value,
        )


def test_an_object_has_no_keys() -> None:
    with pytest.raises(ConfigError, match=r"^scheme\.options: "):
        parse({"scheme": {"name": Prefix(), "options": {"a": 1}}})


def test_a_function_of_a_notebook_is_a_loss_a_metric_and_an_augmentation() -> None:
    def doubled(outputs: Tensor, targets: Tensor) -> Tensor:
        return 2 * torch.nn.functional.cross_entropy(outputs, targets)

    result = trained(
        task={"loss": doubled, "metrics": [doubled]}, data={"augment": [lambda x, _: x]}
    )
    line = result.history[-1]
    assert line["test_doubled"] == pytest.approx(line["test_loss"], rel=1e-5)  # means of batches
    assert "data.augment = 'python:lambda'" in to_toml(result.training.config)


def test_model_and_data_come_from_the_configuration_where_none_are_given() -> None:
    def net() -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, 4), torch.nn.Linear(4, 10)
        )

    config = {**BASE, "model": {"name": net}, "data": {"name": submodel.digits, "examples": 60}}
    result = submodel.train(config=config, progress=False)
    assert result.model.get_submodule("1").weight.shape == (4, 64)
    assert len(result.setup.clients.dataset.train) == 60


def test_a_module_is_not_a_name() -> None:
    with pytest.raises(ConfigError, match=r"^model\.name: Sequential\("):
        parse({"model": {"name": NET}})


def test_other_processes_are_given_no_object(tmp_path: Path) -> None:
    config = {"local": {"schedule": Flat()}, "train": {"rounds": 1}}
    with pytest.raises(ConfigError, match=r"^local.schedule: .* 'python:Flat'"):
        submodel.compare("static", config, out=tmp_path, seeds=1)
    with pytest.raises(ConfigError, match=r"^engine: submodel\.train "):
        trained(engine={"name": "torchrun"}, local={"schedule": Flat()})


ADVICE = {"heterofl": '"static"', "fedrolex": '"rolling"', "fjord": '"ordered"'}


@pytest.mark.parametrize("name", ADVICE)
def test_names_of_the_field_are_refused_with_what_to_use(name: str) -> None:
    for refused in (lambda: parse({"scheme": {"name": name}}), lambda: SCHEMES.find(name)):
        with pytest.raises(ConfigError) as caught:
            refused()
        (problem,) = caught.value.problems
        assert problem.startswith(f"scheme.name: {name!r} ")
        assert ADVICE[name] in problem
        assert f"examples/{name}.toml" in problem


def test_an_unknown_key_beside_a_class_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"^scheme\.bad: 'tests.*:Prefix' "):
        parse({"scheme": {"name": Prefix, "bad": 1}})
