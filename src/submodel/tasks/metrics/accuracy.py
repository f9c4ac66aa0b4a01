"""The share of right answers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from submodel.tasks.logits import by_label
from submodel.tasks.metrics.base import ratio


@dataclass(frozen=True)
class Accuracy:
    """How often the largest logit is the right one, over all labels that count.

    >>> Accuracy().sums(torch.tensor([[2.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0])).tolist()
    [1.0, 2.0]
    """

    higher_is_better = True
    width = 2

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """How many are right, and how many there are."""
        logits, labels = by_label(outputs, targets)
        right = (logits.argmax(1) == labels).sum()
        return torch.tensor([float(right), float(len(labels))], dtype=torch.float64)

    def value(self, sums: Tensor, loss: float) -> float:  # noqa: ARG002
        """The share."""
        return ratio(sums)
