"""A local optimiser: sign-SGD (Bernstein et al. 2018)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from pydantic import Field
from torch import Tensor

from submodel.core import Positive, Section
from submodel.tasks.optimisers import Gradients, Slots


@dataclass(frozen=True)
class SignSgd:
    """Move every weight with a gradient by ``stretch`` learning rates."""

    stretch: float = 1.0
    copies: int = 0

    class Options(Section):
        stretch: Positive = Field(1.0, description="learning rates per step")

    def begin(self, parameters: Sequence[Tensor]) -> Slots:
        return []

    @torch.no_grad()
    def step(
        self, parameters: Sequence[Tensor], gradients: Gradients, slots: Slots, lr: float
    ) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                parameter.sub_(gradient.sign(), alpha=lr * self.stretch)

    def plain(self) -> Self:
        return self
