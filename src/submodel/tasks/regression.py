"""Regression: numbers, and how far from them the outputs are."""

from __future__ import annotations

from dataclasses import dataclass

from torch.nn import functional

from submodel.options import Section
from submodel.tasks.base import TaskContext, TaskKind


@dataclass(frozen=True)
class Regression:
    """Targets are numbers."""

    @classmethod
    def configured(cls, options: Section, context: TaskContext) -> TaskKind:  # noqa: ARG003
        """The squared error; R^2 and the mean absolute error are told."""
        return context.kind("regression", functional.mse_loss, ["r2", "mae"])
