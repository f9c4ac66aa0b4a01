"""The expected calibration error: how far confidence is from being right."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from submodel.tasks.logits import by_label

_BINS = 15


@dataclass(frozen=True)
class CalibrationError:
    """sum_b (n_b / n) |accuracy_b - confidence_b| over 15 equal bins of confidence.

    As Guo et al. 2017 define it; confidence is the largest softmax probability.

    >>> metric = CalibrationError()
    >>> sums = metric.sums(torch.tensor([[30.0, 0.0], [30.0, 0.0]]), torch.tensor([0, 1]))
    >>> round(metric.value(sums, 0.0), 3)
    0.5
    """

    higher_is_better = False
    width = 3 * _BINS

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Answers, right ones and the sum of confidences by bin."""
        logits, labels = by_label(outputs, targets)
        confidence, answers = logits.double().softmax(1).max(1)
        place = (confidence * _BINS).ceil().long().clamp(1, _BINS) - 1  # bins (a, b]
        right = (answers == labels).double()
        rows = [torch.ones_like(confidence), right, confidence]
        return torch.cat([torch.bincount(place, row, _BINS) for row in rows]).cpu()

    def value(self, sums: Tensor, loss: float) -> float:  # noqa: ARG002
        """The mean distance, bins weighing what they hold."""
        count, right, confidence = sums.view(3, -1)
        return float((right - confidence).abs().sum() / count.sum())
