"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from submodel.local.optimisers import Gradients, Slots
from submodel.options import Decay, Section


@dataclass(frozen=True)
class Sgd:
    """A step of SGD, as `torch.optim.SGD` takes it, with a fraction of its overhead.

    >>> w = [torch.tensor([1.0])]
    >>> Sgd(momentum=0.9).step(w, [torch.tensor([2.0])], [[torch.tensor([1.0])]], 0.1)
    >>> w
    [tensor([0.7100])]
    """

    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    class Options(Section):
        """The keys of ``sgd``."""

        momentum: Decay = Field(0.9, description="SGD momentum")
        weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="L2 decay")
        nesterov: bool = Field(False, description="Nesterov's momentum")

        @model_validator(mode="after")
        def _has_momentum(self) -> Self:
            if self.nesterov and not self.momentum:
                raise ValueError("nesterov: goes with momentum above 0")
            return self

    @property
    def copies(self) -> int:
        """One, for the momentum."""
        return 1 if self.momentum else 0

    def begin(self, parameters: Sequence[Tensor]) -> Slots:
        """Momenta of nought."""
        return [[torch.zeros_like(p) for p in parameters]] if self.momentum else []

    @torch.no_grad()
    def step(
        self, parameters: Sequence[Tensor], gradients: Gradients, slots: Slots, lr: float
    ) -> None:
        """A parameter without gradient stays."""
        indices = [i for i, gradient in enumerate(gradients) if gradient is not None]
        moves = [gradient for gradient in gradients if gradient is not None]
        active_parameters = [parameters[i] for i in indices]
        if self.weight_decay:
            moves = list(torch._foreach_add(moves, active_parameters, alpha=self.weight_decay))
        if slots:
            momenta = [slots[0][i] for i in indices]
            torch._foreach_mul_(momenta, self.momentum)
            torch._foreach_add_(momenta, moves)
            if self.nesterov:
                moves = list(torch._foreach_add(moves, momenta, alpha=self.momentum))
            else:
                moves = momenta
        torch._foreach_add_(active_parameters, moves, alpha=-lr)

    def plain(self) -> Self:
        """Without momentum; the decay is part of the objective."""
        return replace(self, momentum=0.0, nesterov=False)
