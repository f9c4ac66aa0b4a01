"""Losses, and the logits that they and the metrics read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from submodel.errors import ConfigError
from submodel.tasks.registry import AbsentLabels

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> the mean loss over the batch.

Where not all examples count alike, ``loss.count(targets)``, if it has that, tells how many terms it
is the mean of (`submodel.tasks.counting`)."""

NO_LABEL = -100
"""A label that does not count, as torch's cross-entropy and Hugging Face's models have it."""


def by_label(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """One row of logits for every label that counts.

    Outputs are (examples, classes) for labels (examples,); for sequences (examples, places) they
    are (examples, places, classes), as language models give them, or (examples, classes, places),
    as torch's cross-entropy takes them. Where both fit, the former is meant.

    >>> logits, labels = by_label(torch.zeros(2, 3, 5), torch.tensor([[1, 2, -100], [0, 4, 4]]))
    >>> logits.shape, labels.tolist()
    (torch.Size([5, 5]), [1, 2, 0, 4, 4])
    """
    rows, labels = flat_logits(outputs, targets)
    counts = labels != NO_LABEL
    if not bool(counts.all()):
        rows, labels = rows[counts], labels[counts]
    if len(labels) and int(labels.max()) >= rows.shape[1]:
        raise ConfigError(
            [f"task: {rows.shape[1]} outputs are no logits for labels up to {int(labels.max())}"]
        )
    return rows, labels


def flat_logits(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """As `by_label`, with the labels that do not count.

    >>> flat_logits(torch.zeros(2, 5, 3), torch.zeros(2, 3, dtype=torch.long))[0].shape
    torch.Size([6, 5])
    """
    if outputs.shape[:-1] == targets.shape:
        return outputs.flatten(0, -2), targets.flatten()
    if outputs.dim() == targets.dim() + 1 and outputs[:, 0].shape == targets.shape:
        return torch.movedim(outputs, 1, -1).flatten(0, -2), targets.flatten()
    raise ConfigError(
        [
            f"task: outputs of shape {tuple(outputs.shape)} are no logits for targets of shape "
            f"{tuple(targets.shape)}; want {(*targets.shape, 'classes')}"
        ]
    )


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


def smoothing_of(loss: Loss) -> float:
    """The label smoothing of a cross-entropy.

    >>> smoothing_of(nn.CrossEntropyLoss(label_smoothing=0.1)), smoothing_of(nn.MSELoss())
    (0.1, 0.0)
    """
    return loss.label_smoothing if isinstance(loss, nn.CrossEntropyLoss) else 0.0


@dataclass(frozen=True)
class TokenCrossEntropy:
    """The mean cross-entropy over all places whose target counts; -100 does not.

    >>> loss = TokenCrossEntropy()
    >>> targets = torch.tensor([[0, -100], [1, 1]])
    >>> round(float(loss(torch.zeros(2, 2, 4), targets)), 3), loss.count(targets)
    (1.386, 3)
    """

    label_smoothing: float = 0.0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over what counts."""
        rows, labels = flat_logits(outputs, targets)
        return functional.cross_entropy(
            rows, labels.long(), ignore_index=NO_LABEL, label_smoothing=self.label_smoothing
        )

    def count(self, targets: Tensor) -> int:
        """The places that count."""
        return int((targets != NO_LABEL).sum())
