"""What an optimiser is, SGD and FedProx; what optimisers keep from one round to the next.

A slot is kept weight by weight, as a tensor of its parameter's shape, also where the optimiser has
one number for many weights, such as Adam's count of steps: a weight that a client did not hold
before then begins afresh beside one that it did. What was never held is not a number (NaN).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Protocol, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from submodel.options import Decay, Section

Gradients = Sequence[Tensor | None]
"""Of the trained parameters, in their order; None where the loss does not depend on one."""
Slots = Sequence[Sequence[Tensor]]
"""What an optimiser keeps: some tensors of the shape of each parameter, in their order."""


class Optimiser(Protocol):
    """Moves parameters along their gradients, weight by weight.

    A client's optimiser begins afresh in every round, or, with ``local.optimiser_state = "kept"``,
    with the slots of its last one: they must have the shapes of the parameters, or stretch to
    them. An optimiser whose first slots are of a round alone has their number as
    ``slots_of_round``. Clients of equal shape are trained as one
    tensor, so a step must treat every weight by itself: nothing may be summed over a tensor. One
    that does has ``whole_tensors = True``, and its clients step one after another.
    """

    @property
    def copies(self) -> int:
        """How many values it keeps for every weight: what `submodel plan` reckons with."""
        ...

    def begin(self, parameters: Sequence[Tensor]) -> Slots:
        """What it keeps, at the start: ``copies`` lists."""
        ...

    def step(
        self, parameters: Sequence[Tensor], gradients: Gradients, slots: Slots, lr: float
    ) -> None:
        """Change parameters and slots in place."""
        ...

    def plain(self) -> Optimiser:
        """One that takes a gradient step of the same objective, for the algorithms' output."""
        ...


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


@dataclass(frozen=True)
class Proximal:
    """Another optimiser on the objective f(w) + (mu / 2) ||w - w_r||^2, w_r being what was sent.

    >>> from submodel.local.optimisers import Sgd
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
        """The model that was sent is another one in every round."""
        return 1 + int(getattr(self.optimiser, "slots_of_round", 0))

    @property
    def copies(self) -> int:
        """The model that was sent, and what the other one keeps."""
        return 1 + self.optimiser.copies

    @property
    def whole_tensors(self) -> bool:
        """As the other one."""
        return bool(getattr(self.optimiser, "whole_tensors", False))

    def begin(self, parameters: Sequence[Tensor]) -> Slots:
        """The parameters as they are now, then the slots of the other one."""
        return [[p.detach().clone() for p in parameters], *self.optimiser.begin(parameters)]

    @torch.no_grad()
    def step(
        self, parameters: Sequence[Tensor], gradients: Gradients, slots: Slots, lr: float
    ) -> None:
        """The gradient has mu (w - w_r) in addition."""
        start, *others = slots
        nearer = [
            None if gradient is None else gradient + self.mu * (parameter - begin)
            for parameter, gradient, begin in zip(parameters, gradients, start, strict=True)
        ]
        self.optimiser.step(parameters, nearer, others, lr)

    def plain(self) -> Optimiser:
        """The output step begins where its clients are: the term is nought there."""
        return self.optimiser.plain()


def first_slot(optimiser: Optimiser) -> int:
    """The number of the first slot that may be kept; those before it are of the round.

    >>> from submodel.local.optimisers import Proximal
    >>> from submodel.local.optimisers import Sgd
    >>> first_slot(Sgd()), first_slot(Proximal(Sgd(), 0.1))
    (0, 1)
    """
    return int(getattr(optimiser, "slots_of_round", 0))


def slot_forms(optimiser: Optimiser, shapes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What there is to be kept, as tensors without values by the slot's number and the parameter.

    Args:
        optimiser: keeps it.
        shapes: the parameters by name, or tensors like them.

    >>> from submodel.local.optimisers import Sgd
    >>> list(slot_forms(Sgd(momentum=0.9), {"w": torch.ones(2)}))
    ['0/w']
    """
    parameters = {name: torch.empty_like(p, device="meta") for name, p in shapes.items()}
    return name_slots(optimiser, optimiser.begin(list(parameters.values())), parameters)


def name_slots(
    optimiser: Optimiser, slots: Slots, parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The slots that may be kept, by number and parameter, in the shape of the parameter.

    Args:
        optimiser: whose they are.
        slots: as it has them.
        parameters: by name, in its order.
    """
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
    """The slots of a client that begins, with what it had where it had something.

    Args:
        optimiser: whose they are.
        slots: fresh ones.
        parameters: by name, in its order.
        earlier: what was kept, as `name_slots` has it; NaN: nothing.
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
    """How many values a client has for every weight of float32, all slots in their full shape.

    >>> from submodel.local.adam import LocalAdam
    >>> kept_copies(LocalAdam())
    4
    """
    parameter = torch.empty(1)
    size = sum(t.element_size() for t in slot_forms(optimiser, {"": parameter}).values())
    return first_slot(optimiser) + math.ceil(size / parameter.element_size())


def slot_problems(optimiser: Optimiser, name: str, shapes: Mapping[str, Tensor]) -> list[str]:
    """Why an optimiser's state cannot be kept; empty if it can.

    Args:
        optimiser: whose state it is.
        name: what the configuration calls it.
        shapes: the trained parameters, or tensors like them.
    """
    key = "local.optimiser_state: 'kept'"
    if getattr(optimiser, "whole_tensors", False):
        return [
            f"{key} needs a state for every weight; {name!r} has one for whole rows and columns, "
            "of which another sub-model holds other parts; use adam or adamw, or 'fresh'"
        ]
    try:
        forms = slot_forms(optimiser, shapes)
    except RuntimeError as error:
        return [f"{key} needs slots of the shapes of the weights; those of {name!r}: {error}"]
    if not forms:
        return [f"{key}: {name!r} keeps nothing (momentum is 0); leave it out"]
    if not all(form.is_floating_point() for form in forms.values()):
        return [f"{key} needs slots of floating-point numbers, which {name!r} has not"]
    return []
