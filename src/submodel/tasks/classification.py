"""Class labels: the cross-entropy of clients that lack some of them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from submodel.tasks.absent import AbsentLabels


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

    def __init__(self, present: Tensor, classes: int, absent: AbsentLabels) -> None:
        self.present = present
        self.padding = classes - len(present) if absent == "zero" else 0

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean over the batch."""
        return functional.cross_entropy(
            self.logits(logits), torch.searchsorted(self.present, targets)
        )

    def count(self, targets: Tensor) -> int:
        """Every example."""
        return len(targets)

    def logits(self, logits: Tensor) -> Tensor:
        """Those that enter the softmax."""
        if logits.shape[1] != len(self.present):
            logits = logits[:, self.present]
        return functional.pad(logits, (0, self.padding)) if self.padding else logits
