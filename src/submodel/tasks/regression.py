"""Regression: numbers, and how far from them the outputs are."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from submodel.data import Examples
from submodel.options import Section
from submodel.tasks.base import TaskContext, TaskKind


@dataclass(frozen=True)
class Regression:
    """Targets are numbers; whole ones, too, which would otherwise be labels.

    >>> task = Regression.configured(Section(), TaskContext())
    >>> task.examples(Examples(torch.zeros(2, 3), torch.tensor([4, 7]))).y
    tensor([[4.],
            [7.]])
    """

    @classmethod
    def configured(cls, options: Section, context: TaskContext) -> TaskKind:  # noqa: ARG003
        """The squared error; R^2 and the mean absolute error are told."""
        task = context.kind("regression", functional.mse_loss, ["r2", "mae"])
        return replace(task, examples=_as_numbers)


def _as_numbers(part: Examples) -> Examples:
    """A column of numbers in the place of whole numbers, one per example."""
    if part.y.is_floating_point():
        return part
    numbers = part.y.to(torch.get_default_dtype())
    return Examples(part.x, numbers[:, None] if numbers.dim() == 1 else numbers)
