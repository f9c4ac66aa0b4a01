"""The share of answers of which the right one is among the best five."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from submodel.tasks.logits import by_label
from submodel.tasks.metrics.base import ratio

_BEST = 5


@dataclass(frozen=True)
class TopFive:
    """How often the right logit is among the largest five.

    >>> TopFive().sums(torch.arange(6.0)[None], torch.tensor([0])).tolist()
    [0.0, 1.0]
    """

    higher_is_better = True
    width = 2

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """How many are right, and how many there are."""
        logits, labels = by_label(outputs, targets)
        best = logits.topk(min(_BEST, logits.shape[1]), dim=1).indices
        right = (best == labels[:, None]).any(1).sum()
        return torch.tensor([float(right), float(len(labels))], dtype=torch.float64)

    def value(self, sums: Tensor, loss: float) -> float:  # noqa: ARG002
        """The share."""
        return ratio(sums)
