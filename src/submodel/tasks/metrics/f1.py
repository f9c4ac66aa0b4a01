"""The F1 score: precision and recall of every class in one number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from submodel.errors import ConfigError
from submodel.options import Section
from submodel.tasks.logits import by_label
from submodel.tasks.metrics.base import MetricContext


@dataclass(frozen=True)
class MacroF1:
    """The mean over the classes of 2 tp / (2 tp + fp + fn), as scikit-learn's ``average="macro"``.

    Classes that are neither there nor answered do not count.

    >>> metric = MacroF1(classes=2)
    >>> sums = metric.sums(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
    >>> round(metric.value(sums, 0.0), 3)
    0.333
    """

    classes: int
    higher_is_better = True

    @classmethod
    def configured(cls, options: Section, context: MetricContext) -> Self:  # noqa: ARG003
        """For the classes of the data."""
        if context.classes is None:
            raise ConfigError(["task.metrics: 'f1' needs class labels"])
        return cls(context.classes)

    @property
    def width(self) -> int:
        """Right answers, answers and examples of every class."""
        return 3 * self.classes

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Counts by class."""
        logits, labels = by_label(outputs, targets)
        answers = logits.argmax(1)
        counts = [
            torch.bincount(values, minlength=self.classes)[: self.classes]
            for values in (labels[answers == labels], answers, labels)
        ]
        return torch.cat(counts).double().cpu()

    def value(self, sums: Tensor, loss: float) -> float:  # noqa: ARG002
        """The mean over the classes that came up."""
        right, answers, examples = sums.view(3, -1)
        either = answers + examples
        return float((2 * right[either > 0] / either[either > 0]).mean())
