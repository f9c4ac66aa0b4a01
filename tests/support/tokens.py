"""Small sequences of tokens, and the loss of their next tokens."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from submodel.data import Dataset, dataset

VOCABULARY, LENGTH = 29, 8


def tiny_text(examples: int = 56) -> Dataset:
    """Make sequences in which every token is the previous one plus three; all tokens occur."""
    starts = torch.arange(examples) % VOCABULARY
    tokens = (starts[:, None] + 3 * torch.arange(LENGTH + 1)) % VOCABULARY
    part = (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    return dataset(part, part)


def tiny_labelled_text(examples: int = 56, classes: int = 4) -> Dataset:
    """Make the same sequences with labels that depend on the first token."""
    x = tiny_text(examples).train.x
    return dataset((x, x[:, 0] % classes), (x, x[:, 0] % classes))


def token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over all positions."""
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())
