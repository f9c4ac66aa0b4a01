"""What optimisers keep from one round to the next, weight by weight.

A slot is kept as a tensor of its parameter's shape, also where the optimiser has one number for
many weights, such as Adam's count of steps: a weight that a client did not hold before then begins
afresh beside one that it did. What was never held is not a number (NaN).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from submodel.local.optimisers import Optimiser, Slots


def first_slot(optimiser: Optimiser) -> int:
    """The number of the first slot that may be kept; those before it are of the round.

    >>> from submodel.local.proximal import Proximal
    >>> from submodel.local.sgd import Sgd
    >>> first_slot(Sgd()), first_slot(Proximal(Sgd(), 0.1))
    (0, 1)
    """
    return int(getattr(optimiser, "slots_of_round", 0))


def slot_forms(optimiser: Optimiser, shapes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What there is to be kept, as tensors without values by the slot's number and the parameter.

    Args:
        optimiser: keeps it.
        shapes: the parameters by name, or tensors like them.

    >>> from submodel.local.sgd import Sgd
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
