"""Perplexity: between how many tokens the model is at a loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_LARGEST = 700.0  # e to more than that is no number


@dataclass(frozen=True)
class Perplexity:
    """e to the mean loss of a token.

    >>> round(Perplexity().value(torch.zeros(0), math.log(8)), 6)
    8.0
    """

    higher_is_better = False
    width = 0

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG002
        """Nothing but the loss."""
        return torch.zeros(0, dtype=torch.float64)

    def value(self, sums: Tensor, loss: float) -> float:  # noqa: ARG002
        """The exponential."""
        return math.exp(min(loss, _LARGEST))
