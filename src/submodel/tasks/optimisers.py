"""Optimisers of clients: SGD, Adam, Adafactor, FedProx; and the state they keep between rounds.

A slot is kept weight by weight, as a tensor of the shape of its parameter, even if the optimiser
has one number for many weights, such as Adam's count of steps. So a weight that the client did not
hold before starts afresh beside one that it did. The slot of a weight never held is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Protocol, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from submodel.core.options import Decay, Positive, Section

Gradients = Sequence[Tensor | None]
"""Gradients of the trained parameters, in their order; None if the loss does not depend on one."""
Slots = Sequence[Sequence[Tensor]]
"""State of an optimiser: some tensors of the shape of each parameter, in their order."""


class Optimiser(Protocol):
    """An optimiser moves parameters along their gradients, weight by weight.

    The optimiser of a client starts afresh in every round, or, with ``local.optimiser_state =
    "kept"``, with the slots of its last one. Slots must have the shapes of the parameters, or
    broadcast to them. An optimiser whose first slots are valid for one round only gives their
    number as ``slots_of_round``. Clients of equal shape are trained as one tensor, so a step must
    treat every weight separately, without sums over a tensor. An optimiser that needs such sums
    sets ``whole_tensors = True``; its clients then step one after another.
    """

    @property
    def copies(self) -> int:
        """Number of values it keeps per weight, for the estimate of `submodel cost --memory`."""
        ...

    def begin(self, parameters: Sequence[Tensor]) -> Slots:
        """Return the initial state: ``copies`` lists of tensors."""
        ...

    def step(
        self, parameters: Sequence[Tensor], gradients: Gradients, slots: Slots, lr: float
    ) -> None:
        """Update parameters and slots in place."""
        ...

    def plain(self) -> Optimiser:
        """Return the optimiser of a gradient step on the same objective, for the output step."""
        ...


@dataclass(frozen=True)
class Sgd:
    """SGD, with the steps of `torch.optim.SGD` at a fraction of its overhead.

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
                raise ValueError("nesterov: requires momentum above 0")
            return self

    @property
    def copies(self) -> int:
        """Number of values per weight: one with momentum, otherwise none."""
        return 1 if self.momentum else 0

    def begin(self, parameters: Sequence[Tensor]) -> Slots:
        """Return zero momenta."""
        return [[torch.zeros_like(p) for p in parameters]] if self.momentum else []

    @torch.no_grad()
    def step(
        self, parameters: Sequence[Tensor], gradients: Gradients, slots: Slots, lr: float
    ) -> None:
        """Move every parameter that has a gradient."""
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
        """Return SGD without momentum; the decay is part of the objective."""
        return replace(self, momentum=0.0, nesterov=False)


@dataclass(frozen=True)
class Proximal:
    """Another optimiser on the objective f(w) + (mu / 2) ||w - w_r||^2; w_r was received.

    >>> w = [torch.tensor([1.0])]
    >>> proximal = Proximal(Sgd(), mu=0.5)
    >>> slots = proximal.begin(w)
    >>> for _ in range(2):
    ...     proximal.step(w, [torch.tensor([1.0])], slots, 0.1)
    >>> w
    [tensor([0.8050])]
    """

    optimiser: Optimiser
    mu: float

    @property
    def slots_of_round(self) -> int:
        """Number of slots valid for one round: the received model changes every round."""
        return 1 + int(getattr(self.optimiser, "slots_of_round", 0))

    @property
    def copies(self) -> int:
        """Number of values per weight: one for the received model, plus the other optimiser's."""
        return 1 + self.optimiser.copies

    @property
    def whole_tensors(self) -> bool:
        """Whether the other optimiser needs whole tensors."""
        return bool(getattr(self.optimiser, "whole_tensors", False))

    def begin(self, parameters: Sequence[Tensor]) -> Slots:
        """Return the current parameters, then the slots of the other optimiser."""
        return [[p.detach().clone() for p in parameters], *self.optimiser.begin(parameters)]

    @torch.no_grad()
    def step(
        self, parameters: Sequence[Tensor], gradients: Gradients, slots: Slots, lr: float
    ) -> None:
        """Take a step with mu (w - w_r) added to the gradient."""
        start, *others = slots
        nearer = [
            None if gradient is None else gradient + self.mu * (parameter - begin)
            for parameter, gradient, begin in zip(parameters, gradients, start, strict=True)
        ]
        self.optimiser.step(parameters, nearer, others, lr)

    def plain(self) -> Optimiser:
        """Return the plain optimiser: the output step starts where the proximal term is 0."""
        return self.optimiser.plain()


def first_slot(optimiser: Optimiser) -> int:
    """Return the number of the first slot that may be kept; earlier ones are valid for one round.

    >>> first_slot(Sgd()), first_slot(Proximal(Sgd(), 0.1))
    (0, 1)
    """
    return int(getattr(optimiser, "slots_of_round", 0))


def slot_forms(optimiser: Optimiser, shapes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the slots to keep, as tensors without values, by slot number and parameter.

    >>> list(slot_forms(Sgd(momentum=0.9), {"w": torch.ones(2)}))
    ['0/w']
    """
    parameters = {name: torch.empty_like(p, device="meta") for name, p in shapes.items()}
    return name_slots(optimiser, optimiser.begin(list(parameters.values())), parameters)


def name_slots(
    optimiser: Optimiser, slots: Slots, parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the slots to keep, by number and parameter, in the shape of the parameter."""
    start = first_slot(optimiser)
    return {
        f"{number}/{name}": tensor.expand(parameter.shape)
        for number, slot in enumerate(slots[start:], start)
        for tensor, (name, parameter) in zip(slot, parameters.items(), strict=True)
    }


def restore_slots(
    optimiser: Optimiser,
    slots: Slots,
    parameters: Mapping[str, Tensor],
    earlier: Mapping[str, Tensor],
) -> Slots:
    """Return a client's initial slots, with its earlier values where it has any.

    ``earlier`` has the names of `name_slots`; NaN marks a missing value.
    """
    fresh_slots = name_slots(optimiser, slots, parameters)
    values = {
        name: torch.where(earlier[name].isnan(), fresh, earlier[name].to(fresh))
        for name, fresh in fresh_slots.items()
    }
    start = first_slot(optimiser)
    kept_slots: list[Sequence[Tensor]] = [
        [values[f"{number}/{name}"] for name in parameters] for number in range(start, len(slots))
    ]
    return [*slots[:start], *kept_slots]


def kept_copies(optimiser: Optimiser) -> int:
    """Return the number of float32 values per weight that a client keeps, with slots in full shape.

    >>> kept_copies(LocalAdam())
    4
    """
    parameter = torch.empty(1)
    size = sum(t.element_size() for t in slot_forms(optimiser, {"": parameter}).values())
    return first_slot(optimiser) + math.ceil(size / parameter.element_size())


def slot_problems(optimiser: Optimiser, name: str, shapes: Mapping[str, Tensor]) -> list[str]:
    """Return the reasons why an optimiser's state cannot be kept; empty if there are none."""
    key = "local.optimiser_state: 'kept'"
    if getattr(optimiser, "whole_tensors", False):
        return [
            f"{key} needs a state for every weight; {name!r} has one for whole rows and columns, "
            "which differ between sub-models; use adam or adamw, or 'fresh'"
        ]
    try:
        forms = slot_forms(optimiser, shapes)
    except RuntimeError as error:
        return [f"{key} needs slots of the shapes of the weights; those of {name!r}: {error}"]
    if not forms:
        return [f"{key}: {name!r} has no state (momentum is 0); leave it out"]
    if not all(form.is_floating_point() for form in forms.values()):
        return [f"{key} needs slots of floating-point numbers; those of {name!r} are not"]
    return []


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
    """Adam, with the steps of `torch.optim.Adam` (Kingma and Ba 2015).

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
        """Two values per weight: the means; the number of steps is kept once per row."""
        return 2

    def begin(self, parameters: Sequence[Tensor]) -> Slots:
        """Return zero means and step counts: per row, as the rows of a stack belong to clients."""
        means = [[torch.zeros_like(p) for p in parameters] for _ in range(2)]
        return [*means, [_row_counts(p) for p in parameters]]

    @torch.no_grad()
    def step(
        self, parameters: Sequence[Tensor], gradients: Gradients, slots: Slots, lr: float
    ) -> None:
        """Move every parameter that has a gradient."""
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
        """Take the step in one pass over memory, for weights with equal numbers of steps."""
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
        """Return the gradients of the decayed objective."""
        if not self.weight_decay:
            return moves
        return list(torch._foreach_add(moves, list(weights), alpha=self.weight_decay))

    def plain(self) -> Sgd:
        """Return SGD; the decay is part of the objective."""
        return Sgd(weight_decay=self.weight_decay)


@dataclass(frozen=True)
class LocalAdamW(LocalAdam):
    """Adam with decoupled weight decay, as `torch.optim.AdamW` (Loshchilov and Hutter 2019).

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
        """Shrink the weights; return the gradients unchanged."""
        if self.weight_decay:
            torch._foreach_mul_(list(weights), 1 - lr * self.weight_decay)
        return moves

    def plain(self) -> Sgd:
        """Return SGD without decay, which is not part of the objective."""
        return Sgd()


def _row_counts(parameter: Tensor) -> Tensor:
    """Return a zero count per row, in float64, as 1 - beta^t is small after few steps."""
    shape = (len(parameter), *([1] * (parameter.dim() - 1))) if parameter.dim() else ()
    return torch.zeros(shape, dtype=torch.float64, device=parameter.device)


def _common_steps(counts: Sequence[Tensor]) -> float | None:
    """Return the number of steps of all rows; None if they differ or are not on the CPU."""
    if not counts or counts[0].device.type != "cpu":
        return None
    least, most = torch.cat([count.reshape(-1) for count in counts]).aminmax()
    return float(least) if least == most else None


def _lie_alike(
    weights: Sequence[Tensor], moves: Sequence[Tensor], *slots: Sequence[Tensor]
) -> bool:
    """Return whether all tensors have the same type and memory order."""
    types = {tensor.dtype for tensors in (weights, moves, *slots) for tensor in tensors}
    return len(types) == 1 and all(t.is_contiguous() for ts in (weights, *slots) for t in ts)


@dataclass(frozen=True)
class Adafactor:
    """Adafactor, with the steps of `torch.optim.Adafactor` (Shazeer and Stern 2018).

    Its rate is relative: ``lr`` bounds the change of a tensor in a step, relative to its size.

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
    """The steps use norms of whole tensors, so the clients of a stack step one after another."""

    class Options(Section):
        """The keys of ``adafactor``."""

        beta2_decay: Annotated[float, Field(ge=-10, lt=0)] = Field(
            -0.8, description="decay of the means of squares: step t has weight t to this power"
        )
        least_size: Positive = Field(
            1e-3, description="least size of a tensor in the computation of its rate"
        )
        clip_threshold: Positive = Field(1.0, description="the largest mean square of an update")
        weight_decay: Annotated[float, Field(ge=0)] = Field(
            0.0, description="decay of the weights themselves, beside the gradient"
        )

    @property
    def copies(self) -> int:
        """Almost none: row and column means of matrices; one value per weight of a vector."""
        return 0

    def begin(self, parameters: Sequence[Tensor]) -> Slots:
        """Return means of squares by row and column (by value of a vector), and step counts."""
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
        """Move every parameter that has a gradient."""
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
        """Return SGD without decay, which is not part of the objective."""
        return Sgd()
