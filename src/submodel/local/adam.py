"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from submodel.local.optimisers import Gradients, Sgd, Slots
from submodel.options import Decay, Positive, Section


class AdamOptions(Section):
    """The keys of ``adam``."""

    beta1: Decay = Field(0.9, description="decay of the mean of gradients")
    beta2: Decay = Field(0.999, description="decay of the mean of their squares")
    eps: Positive = Field(1e-8, description="added to the root of the latter")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="L2 decay")


class AdamWOptions(AdamOptions):
    """The keys of ``adamw``."""

    weight_decay: Annotated[float, Field(ge=0)] = Field(
        0.01, description="decay of the weights themselves, beside the gradient"
    )


@dataclass(frozen=True)
class LocalAdam:
    """A step of Adam, as `torch.optim.Adam` takes it (Kingma and Ba 2015).

    >>> w = [torch.tensor([1.0])]
    >>> adam = LocalAdam()
    >>> adam.step(w, [torch.tensor([2.0])], adam.begin(w), 0.1)
    >>> w
    [tensor([0.9000])]
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    Options = AdamOptions
    _decays_weights: ClassVar[bool] = False

    @property
    def copies(self) -> int:
        """Two means; the number of steps is kept once for every row."""
        return 2

    def begin(self, parameters: Sequence[Tensor]) -> Slots:
        """Means of nought, and no steps: counted by row, as the rows of a stack are of clients."""
        means = [[torch.zeros_like(p) for p in parameters] for _ in range(2)]
        return [*means, [_row_counts(p) for p in parameters]]

    @torch.no_grad()
    def step(
        self, parameters: Sequence[Tensor], gradients: Gradients, slots: Slots, lr: float
    ) -> None:
        """A parameter without gradient stays."""
        places = [i for i, gradient in enumerate(gradients) if gradient is not None]
        moves = [gradient for gradient in gradients if gradient is not None]
        weights = [parameters[i] for i in places]
        means, squares, counts = ([slot[i] for i in places] for slot in slots)
        steps = _common_steps(counts)
        torch._foreach_add_(counts, 1)
        if steps is not None and _lie_alike(weights, moves, means, squares):
            self._step_at_once(weights, moves, means, squares, steps + 1, lr)
            return
        moves = self._decay(weights, moves, lr)
        torch._foreach_lerp_(means, moves, 1 - self.beta1)
        torch._foreach_mul_(squares, self.beta2)
        torch._foreach_addcmul_(squares, moves, moves, 1 - self.beta2)
        for weight, mean, square, count in zip(weights, means, squares, counts, strict=True):
            rate = (lr / (1 - self.beta1**count)).to(weight.dtype)
            root = (1 - self.beta2**count).sqrt().to(weight.dtype)
            weight.sub_(mean * rate / (square.sqrt() / root).add_(self.eps))

    def _step_at_once(
        self,
        weights: list[Tensor],
        moves: list[Tensor],
        means: list[Tensor],
        squares: list[Tensor],
        steps: float,
        lr: float,
    ) -> None:
        """The same in one pass over memory, for weights that have all taken as many steps."""
        kernel = torch._fused_adamw_ if self._decays_weights else torch._fused_adam_
        counts = [torch.tensor(steps)] * len(weights)
        kernel(
            weights, [move.contiguous() for move in moves], means, squares, [], counts, lr=lr,
            beta1=self.beta1, beta2=self.beta2, weight_decay=self.weight_decay, eps=self.eps,
            amsgrad=False, maximize=False,
        )  # fmt: skip

    def _decay(
        self,
        weights: Sequence[Tensor],
        moves: list[Tensor],
        lr: float,  # noqa: ARG002
    ) -> list[Tensor]:
        """The gradients of the decayed objective."""
        if not self.weight_decay:
            return moves
        return list(torch._foreach_add(moves, list(weights), alpha=self.weight_decay))

    def plain(self) -> Sgd:
        """A gradient step; the decay is part of the objective."""
        return Sgd(weight_decay=self.weight_decay)


@dataclass(frozen=True)
class LocalAdamW(LocalAdam):
    """Adam with a decay of its own, as `torch.optim.AdamW` (Loshchilov and Hutter 2019).

    >>> w = [torch.tensor([1.0])]
    >>> adamw = LocalAdamW(weight_decay=0.5)
    >>> adamw.step(w, [torch.tensor([2.0])], adamw.begin(w), 0.1)
    >>> w
    [tensor([0.8500])]
    """

    weight_decay: float = 0.01

    Options = AdamWOptions
    _decays_weights: ClassVar[bool] = True

    def _decay(self, weights: Sequence[Tensor], moves: list[Tensor], lr: float) -> list[Tensor]:
        """The weights shrink; gradients stay as they are."""
        if self.weight_decay:
            torch._foreach_mul_(list(weights), 1 - lr * self.weight_decay)
        return moves

    def plain(self) -> Sgd:
        """A gradient step of the loss: the decay is no part of any objective."""
        return Sgd()


def _row_counts(parameter: Tensor) -> Tensor:
    """A count for every row; of double precision, as 1 - beta^t of few steps is a small number."""
    shape = (len(parameter), *([1] * (parameter.dim() - 1))) if parameter.dim() else ()
    return torch.zeros(shape, dtype=torch.float64, device=parameter.device)


def _common_steps(counts: Sequence[Tensor]) -> float | None:
    """How many steps all rows have taken; None if they differ, or are not at hand."""
    if not counts or counts[0].device.type != "cpu":
        return None
    least, most = torch.cat([count.reshape(-1) for count in counts]).aminmax()
    return float(least) if least == most else None


def _lie_alike(
    weights: Sequence[Tensor], moves: Sequence[Tensor], *slots: Sequence[Tensor]
) -> bool:
    """Whether a pass over memory meets values that belong together, all of one type."""
    types = {tensor.dtype for tensors in (weights, moves, *slots) for tensor in tensors}
    return len(types) == 1 and all(t.is_contiguous() for ts in (weights, *slots) for t in ts)


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
