"""R squared: the share of the targets' variance that a model explains."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from submodel.tasks.metrics.base import check_same_shape


@dataclass(frozen=True)
class ExplainedVariance:
    """1 - sum (y - f)^2 / sum (y - mean)^2, over all targets together.

    >>> metric, targets = ExplainedVariance(), torch.tensor([[1.0], [3.0]])
    >>> metric.value(metric.sums(torch.tensor([[1.0], [2.0]]), targets), 0.0)
    0.5
    """

    higher_is_better = True
    width = 4

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Squared errors, targets, their squares, and how many there are."""
        check_same_shape(outputs, targets)
        numbers = targets.double()
        error = (outputs.double() - numbers).square().sum()
        sums = [error, numbers.sum(), numbers.square().sum()]
        return torch.tensor([*map(float, sums), float(numbers.numel())], dtype=torch.float64)

    def value(self, sums: Tensor, loss: float) -> float:  # noqa: ARG002
        """The share; nought where targets do not vary."""
        error, total, squares, count = sums.tolist()
        variance = squares - total * total / count
        return 1 - error / variance if variance > 0 else 0.0
