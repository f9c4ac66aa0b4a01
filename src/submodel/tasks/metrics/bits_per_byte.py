"""Bits per byte of text: what models with different tokens can be compared by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from submodel.errors import ConfigError
from submodel.options import Section
from submodel.tasks.metrics.base import MetricContext


@dataclass(frozen=True)
class BitsPerByte:
    """The loss of a token in bits, over the bytes that a token of the test part has on average.

    >>> BitsPerByte(bytes_per_token=2.0).value(torch.zeros(0), math.log(16))
    2.0
    """

    bytes_per_token: float
    higher_is_better = False
    width = 0

    @classmethod
    def configured(cls, options: Section, context: MetricContext) -> Self:  # noqa: ARG003
        """For the tokens of the data."""
        if context.bytes_per_token is None:
            raise ConfigError(
                ["task.metrics: 'bits_per_byte' needs text, whose tokens have known bytes"]
            )
        return cls(context.bytes_per_token)

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG002
        """Nothing but the loss."""
        return torch.zeros(0, dtype=torch.float64)

    def value(self, sums: Tensor, loss: float) -> float:  # noqa: ARG002
        """Bits."""
        return loss / math.log(2) / self.bytes_per_token
