"""Callbacks: their input and additions, without effect on the run, and their failures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import submodel
from submodel.algorithm.types import State
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.errors import CallbackError, ConfigError
from submodel.data import Dataset
from submodel.engines.processes.group import ProcessGroup
from submodel.runs import loop
from submodel.runs.callbacks import RoundCallback
from submodel.runs.checkpoint import model_sha256, saved_round
from submodel.runs.folder import RunFolder
from submodel.runs.metrics import Metrics
from submodel.runs.training import Training
from tests.support.ranks import run_group

pytestmark = pytest.mark.slow

CONFIG: dict[str, Any] = {
    "clients": {"count": 6, "per_round": 3},
    "train": {"rounds": 4, "evaluate_every": 2, "checkpoint_every": 10},
}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


def train(*callbacks: submodel.Callback, **options: Any) -> submodel.Result:
    return submodel.train(
        net(), submodel.digits(), CONFIG, callbacks=callbacks, progress=False, **options
    )


@pytest.fixture(scope="module")
def plain() -> submodel.Result:
    return train()


class Watcher(submodel.Callback):
    """Record all calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        assert isinstance(training.model(state), nn.Module)
        self.calls.append(("begin", state.round, len(history)))

    def measure(self, before: State, after: State) -> Mapping[str, Any]:
        moved = max(float((t - before.tensors[n]).abs().max()) for n, t in after.tensors.items())
        self.calls.append(("measure", before.round, after.round))
        return {"moved": moved, "own": {"a": 1}}

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        assert line["moved"] > 0
        self.calls.append(("after", before.round, after.round, line["round"]))

    def stop(self, state: State, history: Sequence[Metrics]) -> None:
        self.calls.append(("stop", state.round, len(history)))

    def finish(self, last: State, final: State, history: Sequence[Metrics]) -> Mapping[str, Any]:
        self.calls.append(("finish", last.round, final.round, len(history)))
        return {"far": 3}

    def close(self) -> None:
        self.calls.append("close")


def test_a_callback_sees_every_round_and_adds_to_its_line_and_the_summary(tmp_path: Path) -> None:
    watcher = Watcher()
    result = train(watcher, out=tmp_path / "run")
    rounds = [
        calls for r in range(4) for calls in (("measure", r, r + 1), ("after", r, r + 1, r + 1))
    ]
    assert watcher.calls == [("begin", 0, 0), *rounds, ("finish", 4, 4, 4), "close"]
    lines = RunFolder(tmp_path / "run").metrics()
    assert lines == result.history
    assert all(line["moved"] > 0 and line["own"] == {"a": 1} for line in lines)
    assert (RunFolder(tmp_path / "run").summary() or {})["far"] == 3


class Vandal(submodel.Callback):
    """Modify all arguments."""

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        history.append({"round": 99})
        self._spoil(state)

    def measure(self, before: State, after: State) -> Mapping[str, Any]:
        self._spoil(before, after)
        return {}

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        line["refused"]["0"] = "a lie"
        self._spoil(before, after)

    def finish(self, last: State, final: State, history: Sequence[Metrics]) -> Mapping[str, Any]:
        history[0].clear()
        self._spoil(last, final)
        return {}

    def _spoil(self, *states: State) -> None:
        for state in states:
            for tensor in (*state.tensors.values(), *state.memory.values()):
                tensor.numpy()[...] = 7


def test_a_callback_cannot_change_the_training(plain: submodel.Result) -> None:
    result = train(Vandal())
    assert model_sha256(result.state.tensors) == model_sha256(plain.state.tensors)
    for one, two in zip(result.history, plain.history, strict=True):
        assert {**one, "seconds": 0} == {**two, "seconds": 0}


class Failing(submodel.Callback):
    """Fail in one method in the third round."""

    def __init__(self, method: str) -> None:
        def fail(*given: Any) -> None:
            if any(isinstance(g, State) and g.round == 3 for g in given) or method == "finish":
                raise ZeroDivisionError("by zero")

        self._method = method
        self._fail = fail

    def measure(self, before: State, after: State) -> Mapping[str, Any]:
        if self._method == "measure":
            self._fail(after)
        return {}

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        if self._method == "after_round":
            self._fail(after)

    def finish(self, last: State, final: State, history: Sequence[Metrics]) -> Mapping[str, Any]:
        if self._method == "finish":
            self._fail(final)
        return {}


@pytest.mark.parametrize(("method", "saved"), [("measure", 2), ("after_round", 3), ("finish", 4)])
def test_a_callback_that_fails_is_named_and_the_run_goes_on_without_it(
    method: str, saved: int, tmp_path: Path, plain: submodel.Result
) -> None:
    path = tmp_path / "run"
    reason = f"callback Failing: {method} .*ZeroDivisionError: by zero"
    with pytest.raises(CallbackError, match=reason) as caught:
        train(Failing(method), out=path)
    assert f"round {saved} " in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert saved_round(path / "checkpoints") == saved
    assert len(RunFolder(path).metrics()) == saved
    result = train(out=path, resume=True)
    assert model_sha256(result.state.tensors) == model_sha256(plain.state.tensors)
    assert [line["round"] for line in RunFolder(path).metrics()] == [1, 2, 3, 4]
    with pytest.raises(CallbackError, match=reason):
        train(Failing(method))


def test_ctrl_c_in_a_callback_is_ctrl_c(tmp_path: Path, plain: submodel.Result) -> None:
    class Impatient(submodel.Callback):
        def after_round(self, before: State, after: State, line: Metrics) -> None:
            if after.round == 2:
                raise KeyboardInterrupt

    watcher = Watcher()
    with pytest.raises(loop.Interruption, match=r"\bround 2\b"):
        train(Impatient(), watcher, out=tmp_path / "run")
    assert watcher.calls[-2:] == [("stop", 2, 2), "close"]
    result = train(out=tmp_path / "run", resume=True)
    assert model_sha256(result.state.tensors) == model_sha256(plain.state.tensors)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"test_loss": 1.0}, "'test_loss'"),
        ({"seconds": {"mine": 1.0}}, "'seconds'"),
        ({"a": float("nan")}, "JSON"),
        ({"a": torch.zeros(2)}, "JSON"),
        ({1: 2}, "dictionary"),
        (None, "dictionary"),
    ],
)
def test_entries_that_no_line_can_hold_are_refused(entries: Any, reason: str) -> None:
    class Adding(submodel.Callback):
        def measure(self, before: State, after: State) -> Mapping[str, Any]:
            found: Mapping[str, Any] = entries
            return found

    with pytest.raises(CallbackError, match="callback Adding: measure ") as caught:
        train(Adding())
    assert reason in str(caught.value)


def test_what_is_no_callback_or_metric_is_refused_before_anything_runs() -> None:
    for bad, reason in (([Watcher], "Watcher"), ([print], "on_round="), (3, "list")):
        with pytest.raises(ConfigError, match=reason):
            submodel.train(net(), submodel.digits(), callbacks=bad)  # type: ignore[arg-type]
    for metrics, reason in (
        ({"test_loss": len}, "test_loss"),
        ({"f1": 3}, "f1"),
        (len, "dictionary"),
    ):
        with pytest.raises(ConfigError, match=reason):
            submodel.train(net(), submodel.digits(), metrics=metrics)  # type: ignore[arg-type]


def test_own_metrics_stand_with_the_other_scores(tmp_path: Path) -> None:
    def right(model: nn.Module, data: Dataset) -> float:
        assert not model.training
        with torch.no_grad():
            return float((model(data.test.x).argmax(1) == data.test.y).float().mean())

    metrics = {"right": right, "undefined": lambda *_: float("nan")}
    result = train(out=tmp_path / "run", metrics=metrics)
    scored = [line for line in result.history if "test_loss" in line]
    assert [line["round"] for line in scored] == [2, 4]
    for line in scored:
        assert line["right"] == pytest.approx(line["test_accuracy"], abs=1e-6)
        assert line["undefined"] is None
    assert all("right" not in line for line in result.history if "test_loss" not in line)
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["right"] == scored[-1]["right"]

    def failing(model: nn.Module, data: Dataset) -> float:
        raise ValueError("no such thing")

    with pytest.raises(CallbackError, match=r"metric 'failing' .*2: ValueError"):
        train(out=tmp_path / "failed", metrics={"failing": failing})
    again = train(out=tmp_path / "failed", resume=True)
    assert model_sha256(again.state.tensors) == model_sha256(result.state.tensors)


def test_progress_is_shown_unless_it_is_not_wanted(capfd: pytest.CaptureFixture[str]) -> None:
    train()
    assert capfd.readouterr() == ("", "")
    submodel.train(net(), submodel.digits(), CONFIG)
    out, err = capfd.readouterr()
    assert out == ""
    assert "round 2/4: train loss" in err
    assert "round 4/4: train loss" in err


def note_rounds(group: ProcessGroup, folder: str) -> None:
    """Train in a group; every process has a callback that would record its rounds."""
    notes = Path(folder) / f"rank-{group.rank}"

    def note(line: Metrics) -> None:
        with notes.open("a") as file:
            file.write(f"{line['round']} ")

    config = parse({"model": {"name": "mlp", "width": 8}, **CONFIG})
    loop.run_rounds(Training(config, prepare(config)), callbacks=[RoundCallback(note)], group=group)


def test_of_a_group_of_processes_the_first_alone_calls_them(tmp_path: Path) -> None:
    run_group(note_rounds, str(tmp_path), processes=2)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"rank-0": "1 2 3 4 "}
