"""Metrics that a model's outputs do not allow: left out, or refused on request."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import submodel
from submodel.core.errors import ConfigError
from submodel.tasks.loss import Loss

X = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
NUMBERS = X.sum(1)


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.mean(1) - targets).square().mean()


def logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(
        outputs if targets.dim() == 2 else outputs.squeeze(1), targets.float()
    )


def train(outputs: int, y: Tensor, loss: Loss | None, **sections: Any) -> set[str]:
    """Return the scores of a run of one round."""
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, outputs))
    data = submodel.dataset((X[:100], y[:100]), (X[100:], y[100:]))
    config = {"train": {"rounds": 1}, "clients": {"count": 4, "per_round": 2}, **sections}
    result = submodel.train(net, data, config, loss=loss, progress=False)
    return {key for key in result.history[-1] if key.startswith("test")}


CASES: Mapping[str, tuple[int, Tensor, Loss, tuple[str, ...]]] = {
    "would be broadcast": (1, NUMBERS, squared, ("r2", "mae")),
    "cannot be broadcast": (3, NUMBERS, squared, ("r2", "mae")),
    "one output for two classes": (1, (NUMBERS > 0).long(), logistic, ("accuracy",)),
    "many labels": (3, (X[:, :3] > 0).long(), logistic, ("accuracy",)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("batching", ["never", "always"])
def test_metrics_that_do_not_fit_are_left_out(
    case: str, batching: str, caplog: pytest.LogCaptureFixture
) -> None:
    outputs, y, loss, names = CASES[case]
    with caplog.at_level(logging.WARNING, logger="submodel"):
        scores = train(outputs, y, loss, engine={"name": "local", "batching": batching})
    assert scores == {"test_loss"}
    (line,) = [message for message in caplog.messages if "left out" in message]
    assert all(name in line for name in names)


def failing(outputs: Tensor, targets: Tensor) -> float:
    raise RuntimeError(f"{len(outputs)} are too few for {targets.dtype}")


@pytest.mark.parametrize("name", ["mae", "accuracy", f"{__name__}:failing"])
def test_metrics_that_are_asked_for_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^task\.metrics: '{name.rpartition(':')[2]}'"):
        train(1, NUMBERS, squared, task={"metrics": [name]})


def test_metrics_that_fit_are_told_as_before(caplog: pytest.LogCaptureFixture) -> None:
    assert train(1, NUMBERS[:, None], None) == {"test_loss", "test_r2", "test_mae"}
    asked = {"metrics": ["accuracy", "f1"]}
    scores = train(2, (NUMBERS > 0).long(), None, task=asked)
    assert scores == {"test_loss", "test_accuracy", "test_f1"}
    assert not [message for message in caplog.messages if "left out" in message]
