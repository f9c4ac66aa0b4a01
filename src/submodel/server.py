"""What the server does with the merged change: takes it as it is, or as a gradient (FedOpt)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

Tensors = Mapping[str, Tensor]


class ServerStep(Protocol):
    """A rule that makes of the merged change the next global model; it may remember."""

    def begin(self, parameters: Tensors) -> dict[str, Tensor]:
        """The memory at the start; its names and shapes stay the same over the run."""
        ...

    def step(
        self, old: Tensors, merged: Tensors, covered: Tensors, memory: Tensors
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The new tensors and the new memory; what nobody held (``covered`` false) stays."""
        ...


class Plain:
    """The merged model is the next one."""

    def begin(self, parameters: Tensors) -> dict[str, Tensor]:  # noqa: ARG002
        """Nothing to remember."""
        return {}

    def step(
        self,
        old: Tensors,  # noqa: ARG002
        merged: Tensors,
        covered: Tensors,  # noqa: ARG002
        memory: Tensors,  # noqa: ARG002
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The merged tensors."""
        return dict(merged), {}
