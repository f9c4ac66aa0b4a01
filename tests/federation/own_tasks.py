"""Data and a model with several inputs, named by path as in a package on a device."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from submodel.data import Dataset, dataset


def pairs(first: int = 0) -> Dataset:
    """Make rows of two named inputs and a number."""
    generator = torch.Generator().manual_seed(5)
    left, right = torch.randn(2, 80, 4, generator=generator)
    y = (left * right).sum(1, keepdim=True)
    train = {"left": left[first:60], "right": right[first:60]}, y[first:60]
    return dataset(train, ({"left": left[60:], "right": right[60:]}, y[60:]))


class Pairs(nn.Module):
    """A net of two inputs that returns an object, like models of Hugging Face."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 8), nn.Linear(4, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, left: Tensor, right: Tensor) -> object:
        """Return logits among other things."""
        return Returned(self.out(torch.tanh(self.left(left) + self.right(right))))


class Returned:
    """The return value of such a model."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
