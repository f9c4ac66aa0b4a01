"""The mean absolute error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from submodel.options import Section
from submodel.tasks.metrics.base import MetricContext, check_same_shape, ratio


@dataclass(frozen=True)
class MeanAbsoluteError:
    """How far outputs are from their targets, on average over all of them.

    Args:
        unit: what one is, in the unit of the user's targets.

    >>> MeanAbsoluteError().sums(torch.zeros(2, 1), torch.tensor([[1.0], [-3.0]])).tolist()
    [4.0, 2.0]
    """

    unit: float = 1.0
    higher_is_better: ClassVar[bool] = False
    width: ClassVar[int] = 2

    @classmethod
    def configured(cls, options: Section, context: MetricContext) -> Self:  # noqa: ARG003
        """In the unit of the data."""
        return cls(context.unit)

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The sum of distances, and how many there are."""
        check_same_shape(outputs, targets)
        distance = (outputs.double() - targets.double()).abs()
        return torch.tensor([float(distance.sum()), float(distance.numel())], dtype=torch.float64)

    def value(self, sums: Tensor, loss: float) -> float:  # noqa: ARG002
        """The mean."""
        return ratio(sums) * self.unit
