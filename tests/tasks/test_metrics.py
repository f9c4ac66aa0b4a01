"""Metrics: what sums over batches come to is what scikit-learn says of all examples at once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from submodel.errors import ConfigError
from submodel.tasks.base import make_metrics
from submodel.tasks.metrics import BatchMetric, MetricContext
from submodel.tasks.registry import METRICS

FACTS = MetricContext(classes=7, bytes_per_token=2.0)


def in_batches(metric: BatchMetric, outputs: Tensor, targets: Tensor, loss: float = 0.0) -> float:
    parts = zip(torch.split(outputs, 4), torch.split(targets, 4), strict=True)
    sums = torch.stack([metric.sums(o, t) for o, t in parts])
    assert sums.shape[1] == metric.width
    return metric.value(sums.sum(0), loss)


@given(st.integers(1, 30), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_labels_are_scored_as_scikit_learn_does(count: int, seed: int) -> None:
    from sklearn import metrics as sklearn_metrics

    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, 7, generator=random)
    labels = torch.randint(0, 7, (count,), generator=random)
    metrics = make_metrics(["accuracy", "top5", "f1"], FACTS)
    answers = logits.argmax(1)
    assert in_batches(metrics["accuracy"], logits, labels) == pytest.approx(
        sklearn_metrics.accuracy_score(labels, answers), abs=1e-12
    )
    assert in_batches(metrics["top5"], logits, labels) == pytest.approx(
        sklearn_metrics.top_k_accuracy_score(labels, logits, k=5, labels=range(7)), abs=1e-12
    )
    assert in_batches(metrics["f1"], logits, labels) == pytest.approx(
        sklearn_metrics.f1_score(labels, answers, average="macro"), abs=1e-12
    )


@given(st.integers(2, 30), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_numbers_are_scored_as_scikit_learn_does(count: int, seed: int) -> None:
    from sklearn import metrics as sklearn_metrics

    random = torch.Generator().manual_seed(seed)
    outputs, targets = torch.randn(2, count, 1, generator=random, dtype=torch.float64)
    metrics = make_metrics(["mae", "r2"], FACTS)
    assert in_batches(metrics["mae"], outputs, targets) == pytest.approx(
        sklearn_metrics.mean_absolute_error(targets, outputs), abs=1e-12
    )
    assert in_batches(metrics["r2"], outputs, targets) == pytest.approx(
        sklearn_metrics.r2_score(targets, outputs),
        rel=1e-6,
        abs=1e-9,  # of y^2 less the mean's
    )


def test_the_mean_absolute_error_is_in_the_unit_of_the_users_targets() -> None:
    outputs, targets = torch.zeros(2, 1), torch.tensor([[1.0], [-2.0]])
    metrics = make_metrics(["mae", "r2"], MetricContext(unit=10.0))
    assert in_batches(metrics["mae"], outputs, targets) == 15.0
    plain = make_metrics(["r2"], MetricContext())["r2"]
    assert in_batches(metrics["r2"], outputs, targets) == in_batches(plain, outputs, targets)


def test_calibration_is_the_mean_distance_of_confidence_from_being_right() -> None:
    confidence = torch.tensor([0.55, 0.58, 0.95, 0.99])
    logits = torch.stack([confidence.log(), (1 - confidence).log()], 1)
    labels = torch.tensor([0, 1, 0, 0])
    metric = make_metrics(["calibration"], FACTS)["calibration"]
    bins = np.array([(0.5, [0.55, 0.58]), (1.0, [0.95, 0.99])], dtype=object)
    expected = sum(len(c) / 4 * abs(right - np.mean(c)) for right, c in bins)
    assert in_batches(metric, logits, labels) == pytest.approx(expected, abs=1e-6)


def test_tokens_that_do_not_count_are_left_out() -> None:
    logits = torch.zeros(2, 3, 7)
    logits[..., 1] = 1
    targets = torch.tensor([[1, 1, -100], [0, -100, -100]])
    assert in_batches(make_metrics(["accuracy"], FACTS)["accuracy"], logits, targets) == 2 / 3


def test_perplexity_and_bits_per_byte_follow_from_the_loss() -> None:
    metrics = make_metrics(["perplexity", "bits_per_byte"], FACTS)
    nothing = torch.zeros(0)
    assert metrics["perplexity"].value(nothing, math.log(5)) == pytest.approx(5)
    assert metrics["bits_per_byte"].value(nothing, math.log(4)) == 1.0


def test_a_function_is_a_metric_weighted_by_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_metrics.py").write_text(
        "def error(outputs, targets):\n    return (outputs != targets).double().mean()\n\n\n"
        "error.higher_is_better = False\n"
    )
    monkeypatch.chdir(tmp_path)
    metric = make_metrics(["my_metrics:error"], FACTS)["error"]
    outputs, targets = torch.arange(6.0), torch.tensor([0.0, 1, 2, 0, 0, 5])
    assert in_batches(metric, outputs, targets) == pytest.approx(2 / 6)
    assert not metric.higher_is_better


@pytest.mark.parametrize(
    ("name", "reason"),
    [("f1", "needs class labels"), ("bits_per_byte", "needs text"), ("f2", "is not one of")],
)
def test_a_metric_that_cannot_be_had_is_refused(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make_metrics([name], MetricContext())


def test_every_metric_says_which_direction_is_better() -> None:
    better = {n: m.higher_is_better for n, m in make_metrics(list(METRICS.offers), FACTS).items()}
    assert better == {
        "accuracy": True, "top5": True, "f1": True, "calibration": False, "perplexity": False,
        "bits_per_byte": False, "mae": False, "r2": True,
    }  # fmt: skip


def test_the_token_loss_is_torchs_cross_entropy_in_either_order() -> None:
    from submodel.tasks.loss import TokenCrossEntropy

    random = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 7, generator=random)
    targets: Any = torch.tensor([[1, -100, 6], [0, 2, -100]])
    expected = functional.cross_entropy(logits.transpose(1, 2), targets)
    for smoothing in (0.0, 0.1):
        loss = TokenCrossEntropy(smoothing)
        expected = functional.cross_entropy(
            logits.transpose(1, 2), targets, label_smoothing=smoothing
        )
        assert torch.allclose(loss(logits, targets), expected)
        assert torch.allclose(loss(logits.transpose(1, 2), targets), expected)
        assert loss.count(targets) == 4
