"""Adafactor: second moments of matrices from those of their rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from submodel.local.optimisers import Gradients, Slots
from submodel.local.sgd import Sgd
from submodel.options import Positive, Section


@dataclass(frozen=True)
class Adafactor:
    """A step of Adafactor, as `torch.optim.Adafactor` takes it (Shazeer and Stern 2018).

    Its rate is relative: ``lr`` is the most that a tensor changes in a step, measured by its size.

    >>> w = [torch.ones(2, 2)]
    >>> adafactor = Adafactor()
    >>> adafactor.step(w, [torch.ones(2, 2)], adafactor.begin(w), 0.1)
    >>> w
    [tensor([[0.9000, 0.9000],
            [0.9000, 0.9000]])]
    """

    beta2_decay: float = -0.8
    least_size: float = 1e-3
    clip_threshold: float = 1.0
    weight_decay: float = 0.0

    whole_tensors = True
    """It takes norms of whole tensors, so the clients of a stack step one after another."""

    class Options(Section):
        """The keys of ``adafactor``."""

        beta2_decay: Annotated[float, Field(ge=-10, lt=0)] = Field(
            -0.8, description="of the means of squares: step t weighs t to this power"
        )
        least_size: Positive = Field(
            1e-3, description="what a tensor's size counts at least, for its rate"
        )
        clip_threshold: Positive = Field(1.0, description="the largest mean square of an update")
        weight_decay: Annotated[float, Field(ge=0)] = Field(
            0.0, description="decay of the weights themselves, beside the gradient"
        )

    @property
    def copies(self) -> int:
        """Hardly any: rows and columns of matrices; one value for every weight of a vector."""
        return 0

    def begin(self, parameters: Sequence[Tensor]) -> Slots:
        """Means of the squares of rows, or of all, and of columns; the number of steps."""
        rows = [torch.zeros_like(p[..., :1] if p.dim() > 1 else p) for p in parameters]
        columns = [
            torch.zeros_like(p[..., :1, :]) if p.dim() > 1 else p.new_zeros(0) for p in parameters
        ]
        counts = [torch.zeros((), dtype=torch.float64) for _ in parameters]
        return [rows, columns, counts]

    @torch.no_grad()
    def step(
        self, parameters: Sequence[Tensor], gradients: Gradients, slots: Slots, lr: float
    ) -> None:
        """A parameter without gradient stays."""
        for place, (weight, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            if gradient is not None:
                rows, columns, counts = (slot[place] for slot in slots)
                self._step(weight, gradient, rows, columns, counts, lr)

    def _step(
        self, weight: Tensor, gradient: Tensor, rows: Tensor, columns: Tensor, count: Tensor,
        lr: float,
    ) -> None:  # fmt: skip
        count += 1
        number, eps = float(count), torch.finfo(weight.dtype).eps
        share = number**self.beta2_decay
        size = float(weight.norm(2)) / weight.numel() ** 0.5
        rate = max(self.least_size, size) * min(lr, number**-0.5)
        if self.weight_decay:
            weight.mul_(1 - lr * self.weight_decay)
        if gradient.dim() > 1:
            rows.lerp_(gradient.square().mean(-1, keepdim=True), share)
            columns.lerp_(gradient.square().mean(-2, keepdim=True), share)
            squares = (rows @ columns).div_(rows.mean(-2, keepdim=True).clamp_(min=eps))
        else:
            rows.lerp_(gradient.square(), share)
            squares = rows.clone()
        update = squares.clamp_(min=eps * eps).rsqrt_().mul_(gradient)
        mean_square = float(update.norm(2)) / update.numel() ** 0.5
        weight.add_(update, alpha=-rate / max(1.0, mean_square / self.clip_threshold))

    def plain(self) -> Sgd:
        """A gradient step of the loss: the decay is no part of any objective."""
        return Sgd()
