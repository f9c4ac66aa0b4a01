"""The mean absolute error."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from submodel.tasks.metrics.base import ratio


@dataclass(frozen=True)
class MeanAbsoluteError:
    """How far outputs are from their targets, on average over all of them.

    >>> MeanAbsoluteError().sums(torch.zeros(2, 1), torch.tensor([[1.0], [-3.0]])).tolist()
    [4.0, 2.0]
    """

    higher_is_better = False
    width = 2

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The sum of distances, and how many there are."""
        distance = (outputs.double() - targets.double()).abs()
        return torch.tensor([float(distance.sum()), float(distance.numel())], dtype=torch.float64)

    def value(self, sums: Tensor, loss: float) -> float:  # noqa: ARG002
        """The mean."""
        return ratio(sums)
