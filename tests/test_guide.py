"""Every program of docs/guide.md runs as written, is short, and has the stated result."""

from __future__ import annotations

import math
import re
import runpy
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import f1_score
from torch.nn import functional

import submodel
from submodel.tasks.optimisers import LocalAdamW

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/guide.md").read_text("utf-8")
PROGRAMS: dict[str, str] = {
    title: code
    for title, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    for code in re.findall(r"```python\n(.*?)```", body, re.DOTALL)
}
MOST_LINES = 15


def check_dataset(names: dict[str, Any]) -> None:
    result = names["result"]
    assert (len(result.setup.clients.dataset.train), result.setup.clients.dataset.classes) == (
        600,
        3,
    )
    assert result.accuracy > 0.6
    assert result.submodel("1/4")[0].out_features == 4


def check_loss(names: dict[str, Any]) -> None:
    result, test = names["result"], submodel.digits().test
    losses = [line["test_loss"] for line in result.history if "test_loss" in line]
    assert losses[-1] < losses[0]
    with torch.no_grad():
        assert losses[-1] == pytest.approx(float(names["focal"](result.model(test.x), test.y)))


def check_squared_error(names: dict[str, Any]) -> None:
    result, x, y = names["result"], names["x"][1000:], names["y"][1000:]
    with torch.no_grad():
        error = float((result.model(x) - y).square().mean())
    assert result.history[-1]["test_loss"] == pytest.approx(error, rel=1e-5)
    assert result.history[-1]["test_r2"] == pytest.approx(
        1 - error / float(y.var(correction=0)), rel=1e-4
    )
    assert result.history[-1]["test_r2"] > 0.4


def check_tokens(names: dict[str, Any]) -> None:
    line, tokens, targets = names["result"].history[-1], names["tokens"], names["targets"]
    with torch.no_grad():
        logits = names["result"].model(tokens[300:])[:, :8]  # counted lines
        loss = float(functional.cross_entropy(logits.flatten(0, 1), targets[300:, :8].flatten()))
    assert line["test_loss"] == pytest.approx(loss, rel=1e-5)
    assert line["test_perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    assert line["test_perplexity"] < 5  # of 20 tokens


def check_adamw(names: dict[str, Any]) -> None:
    optimiser = names["result"].setup.work.optimiser
    assert isinstance(optimiser, LocalAdamW)
    assert names["result"].accuracy > 0.4


def check_schedule(names: dict[str, Any]) -> None:
    rates = names["rates"]
    assert rates.index(max(rates)) == 2  # the last round of the warm-up, or the one after it
    assert rates[0] < rates[1] < rates[2]
    assert all(before > after for before, after in pairwise(rates[3:]))
    assert names["result"].accuracy > 0.6


def check_augmentation(names: dict[str, Any]) -> None:
    (step,) = names["result"].setup.augment.steps
    assert step is names["noise"]
    plain = submodel.train(names["net"], submodel.digits(), {"train": {"rounds": 10}})
    assert names["result"].history[0]["train_loss"] != plain.history[0]["train_loss"]
    assert names["result"].accuracy > 0.5


def check_proximal(names: dict[str, Any]) -> None:
    assert names["result"].training.config.local.proximal == 1.0
    assert names["result"].accuracy > 0.6


def check_f1(names: dict[str, Any]) -> None:
    result, test = names["result"], submodel.digits().test
    with torch.no_grad():
        answers = result.model(test.x).argmax(1)
    line = result.history[-1]
    assert line["test_f1"] == pytest.approx(f1_score(test.y, answers, average="macro"))
    assert line["capacity_f1"]["1"] == line["test_f1"]
    assert set(line["capacity_margin"]) == {"1", "0.5", "0.25", "0.125"}


def check_tensorboard(_: dict[str, Any]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator("runs/first/tensorboard")
    events.Reload()
    history = submodel.open("runs/first").history
    shown = {event.step: event.value for event in events.Scalars("test_accuracy")}
    assert shown == pytest.approx({line["round"]: line["test_accuracy"] for line in history})
    assert len(shown) == 10


def check_open(names: dict[str, Any]) -> None:
    assert names["small"][1].out_features == 8
    assert names["run"].finished
    assert names["worst"]["accuracy"] <= names["run"].summary["test_accuracy"]


def check_resume(names: dict[str, Any]) -> None:
    run = names["run"]
    assert run.finished
    assert [line["round"] for line in run.history] == list(range(1, 11))
    whole = submodel.train(names["net"], submodel.digits(), {"train": {"rounds": 10}})
    tensors = run.model.state_dict()
    assert all(torch.equal(tensors[n], t) for n, t in whole.model.state_dict().items())


CHECKS: dict[str, Callable[[dict[str, Any]], None]] = {
    "A torch Dataset of your own": check_dataset,
    "A loss of your own": check_loss,
    "Mean squared error": check_squared_error,
    "A loss per token, with an ignore index": check_tokens,
    "AdamW": check_adamw,
    "A schedule": check_schedule,
    "Augmentation": check_augmentation,
    "FedProx": check_proximal,
    "F1, and metrics of your own": check_f1,
    "TensorBoard": check_tensorboard,
    "Opening a run in Python": check_open,
    "Resuming in Python": check_resume,
}


def test_there_are_twelve_programs_each_with_a_check() -> None:
    assert list(PROGRAMS) == list(CHECKS)
    assert PAGE.count("```python") == len(PROGRAMS) == 12


@pytest.mark.parametrize("title", PROGRAMS)
def test_a_program_is_short(title: str) -> None:
    assert len([line for line in PROGRAMS[title].splitlines() if line.strip()]) <= MOST_LINES


@pytest.mark.slow
@pytest.mark.parametrize("title", PROGRAMS)
def test_a_program_does_what_the_guide_says(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    (tmp_path / "program.py").write_text(PROGRAMS[title])
    CHECKS[title](runpy.run_path("program.py", run_name="__main__"))


@pytest.mark.docs
@pytest.mark.parametrize("page", ["README.md", "docs/configuration.md"])
def test_the_guide_is_linked(page: str) -> None:
    assert "guide.md)" in (ROOT / page).read_text("utf-8")
