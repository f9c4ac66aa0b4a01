"""Logits beside the labels that they speak of: of examples, or of every place of a sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from submodel.errors import ConfigError

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
