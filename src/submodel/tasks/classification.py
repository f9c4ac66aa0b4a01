"""Classification: class labels, and the cross-entropy of clients that lack some of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from submodel.options import Decay, Section
from submodel.tasks.absent import AbsentLabels
from submodel.tasks.base import TaskContext, TaskKind
from submodel.tasks.loss import Loss


class MaskedCrossEntropy:
    """Cross-entropy for a client that lacks some labels.

    ``zero`` sets the absent logits to zero, as HeteroFL and FedRolex do: they still count in the
    softmax. ``leave_out`` takes them out of it. Works on the logits of all classes or, where the
    classifier's rows are cut, on those that are left.

    >>> import math
    >>> loss = MaskedCrossEntropy(torch.tensor([2, 5]), classes=10, absent="leave_out")
    >>> round(float(loss(torch.zeros(1, 10), torch.tensor([5]))), 4) == round(math.log(2), 4)
    True
    """

    def __init__(
        self, present: Tensor, classes: int, absent: AbsentLabels, smoothing: float = 0.0
    ) -> None:
        self.present, self.smoothing = present, smoothing
        self.padding = classes - len(present) if absent == "zero" else 0

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean over the batch."""
        return functional.cross_entropy(
            self.logits(logits),
            torch.searchsorted(self.present, targets),
            label_smoothing=self.smoothing,
        )

    def count(self, targets: Tensor) -> int:
        """Every example."""
        return len(targets)

    def logits(self, logits: Tensor) -> Tensor:
        """Those that enter the softmax."""
        if logits.shape[1] != len(self.present):
            logits = logits[:, self.present]
        return functional.pad(logits, (0, self.padding)) if self.padding else logits


class Smoothing(Section):
    """The keys of tasks that have labels."""

    label_smoothing: Decay = Field(
        0.0, description="the share of every label that is spread over all classes"
    )


@dataclass(frozen=True)
class Classification:
    """Targets are class labels."""

    Options = Smoothing

    @classmethod
    def configured(cls, options: Smoothing, context: TaskContext) -> TaskKind:
        """The cross-entropy; accuracy is the headline."""
        smoothing = context.smoothing(options)
        loss: Loss = functional.cross_entropy
        if smoothing:
            loss = nn.CrossEntropyLoss(label_smoothing=smoothing)
        return context.kind("classification", loss, ["accuracy"], headline="accuracy")


def smoothing_of(loss: Loss) -> float:
    """The label smoothing of a cross-entropy.

    >>> smoothing_of(nn.CrossEntropyLoss(label_smoothing=0.1)), smoothing_of(nn.MSELoss())
    (0.1, 0.0)
    """
    return loss.label_smoothing if isinstance(loss, nn.CrossEntropyLoss) else 0.0
