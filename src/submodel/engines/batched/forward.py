"""Many equal modules computed as one: what the forward pass of a stack of clients is.

There are two ways, both exact up to the order of floating-point sums. *Wide* (`wide.py`): the
client axis is folded into the channels. *Mapped* (`vmap.py`): `torch.func.vmap` over the module,
for everything else that it can take, with rules of ours for transformers (`folding.py`).

A stack's tensors are *wide*: the first dimension is clients x rows, client by client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor, nn

from submodel.model.inputs import Inputs

Wide = Mapping[str, Tensor]
"""A stack's tensors, by name."""


class UnstackableError(Exception):
    """Why a module cannot be computed in this way, in words."""


class Forward(Protocol):
    """The forward pass of a stack."""

    module: nn.Module
    """What is computed for every client; its tensors are not used."""

    def largest(self, rows: Mapping[str, int]) -> int:
        """The most values that an example has in any activation, by the rows of the tensors."""
        ...

    def __call__(self, wide: Wide, clients: int, x: Inputs) -> Tensor:
        """Inputs of shape (batch, clients, ...) to outputs of shape (batch, clients, ...)."""
        ...
