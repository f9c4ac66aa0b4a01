"""What the clients' optimisers keep between rounds, on the coordinates of the global model.

Of every weight a client has what its optimiser had when the client held the weight last. A cut
takes its part of that; a weight that the client never held begins afresh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from submodel.algorithm.types import Setup, State, Task, Update
from submodel.errors import SubmodelError
from submodel.local.slots import slot_forms
from submodel.local.training import trainable_parameters
from submodel.model.cut import Cut


class ClientSlots:
    """The slots of all clients in one round: given out with tasks, taken back with updates.

    Args:
        setup: says whether anything is kept
        state: where the round begins
    """

    def __init__(self, setup: Setup, state: State) -> None:
        self._slots = dict(state.client_slots)
        self._forms: dict[str, Tensor] = {}
        if setup.keeps_slots:
            parameters = trainable_parameters(setup.module)
            self._forms = slot_forms(setup.work.optimiser, parameters)

    def give(self, task: Task) -> Task:
        """The task with the client's part of what its optimiser kept."""
        if not self._forms:
            return task
        cut, client = task.cut, task.assignment.client
        slots = {
            name: _part(cut, _parameter(name), self._whole(client, name)) for name in self._forms
        }
        return replace(task, slots=slots)

    def take(self, update: Update) -> None:
        """Keep what came back with a sound update."""
        if self._forms and update.slots is None:
            raise SubmodelError(
                "local.optimiser_state: 'kept', but the engine does not say what optimisers keep"
            )
        for name, values in (update.slots or {}).items():
            whole = self._whole(update.assignment.client, name)
            key = f"{update.assignment.client}/{name}"
            self._slots[key] = _put(update.cut, _parameter(name), whole, values)

    def _whole(self, client: int, name: str) -> Tensor:
        """A client's slot of a whole parameter; NaN where it never held a weight."""
        key = f"{client}/{name}"
        if key in self._slots:
            return self._slots[key]
        form = self._forms[name]
        return torch.full(form.shape, torch.nan, dtype=form.dtype)

    def keep_in(self, state: State) -> State:
        """The state with the slots as they are now."""
        return replace(state, client_slots=self._slots) if self._forms else state


def _parameter(name: str) -> str:
    """The parameter that a slot is of.

    >>> _parameter("0/layers/1.weight")
    'layers/1.weight'
    """
    return name.partition("/")[2]


def _part(cut: Cut, name: str, whole: Tensor) -> Tensor:
    mask = cut.mask(name)
    if mask is not None:
        return whole.where(mask.bool(), torch.nan)
    return cut.part(name, whole).clone()


def _put(cut: Cut, name: str, whole: Tensor, values: Tensor) -> Tensor:
    """The whole with the values of a cut's part in their places."""
    mask = cut.mask(name)
    if mask is not None:
        return torch.where(mask.bool(), values, whole)
    places = cut.part(name, torch.arange(whole.numel()).view(whole.shape))
    new = whole.clone().view(-1)
    new[places.reshape(-1)] = values.reshape(-1)
    return new.view(whole.shape)


def check_slots(slots: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> bool:
    """Whether slots are of these tensors: client, slot and tensor by name, and their shapes.

    >>> check_slots({"0/0/w": torch.ones(2)}, {"w": torch.ones(2)})
    True
    >>> check_slots({"0/0/w": torch.ones(3)}, {"w": torch.ones(2)})
    False
    """
    for key, slot in slots.items():
        client, _, name = key.partition("/")
        like = tensors.get(_parameter(name))
        numbers = client, name.partition("/")[0]
        if like is None or like.shape != slot.shape or not all(n.isdecimal() for n in numbers):
            return False
    return True
