"""Which tensors travel: what is trained goes both ways, what is not never comes back.

Of what is not trained (``requires_grad = False``), a client needs the same in every round where no
cut ever takes a part of it: such a *base* is sent once, before a client's first task, and kept.
Buffers that hold a value that is not finite, as a mask of minus infinities, are no mean of anything
and do not come back either.
Where cuts do take parts, as of a frozen layer whose width is cut, a client holds another part in
every round, and gets it in every round: to keep the whole would be to hold more than it can.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor, nn

from submodel.model.axes import CLASSES, Axes

_T = TypeVar("_T")


@dataclass(frozen=True)
class Travel:
    """The names of the tensors that do not go both ways in every round.

    Args:
        untrained_names: never come back
        base_names: of these, the ones that every client holds whole: they are sent once
    """

    untrained_names: frozenset[str] = frozenset()
    base_names: frozenset[str] = frozenset()

    def of_update(self, tensors: Mapping[str, _T]) -> dict[str, _T]:
        """What comes back, is merged, and takes the server's step.

        >>> Travel(frozenset({"a", "b"}), frozenset({"a"})).of_update({"a": 1, "b": 2, "c": 3})
        {'c': 3}
        """
        return {name: value for name, value in tensors.items() if name not in self.untrained_names}

    def of_task(self, tensors: Mapping[str, _T]) -> dict[str, _T]:
        """What goes out in every round."""
        return {name: value for name, value in tensors.items() if name not in self.base_names}

    def of_base(self, tensors: Mapping[str, _T]) -> dict[str, _T]:
        """What goes out once."""
        return {name: value for name, value in tensors.items() if name in self.base_names}


EVERYTHING = Travel()
"""All tensors go both ways."""


def untrained_names(module: nn.Module) -> frozenset[str]:
    """The parameters that training does not change."""
    return frozenset(name for name, p in module.named_parameters() if not p.requires_grad)


def constant_names(module: nn.Module) -> frozenset[str]:
    """The exchanged buffers that hold a value that is not finite.

    >>> import torch
    >>> net = nn.Identity()
    >>> net.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    >>> constant_names(net)
    frozenset({'mask'})
    """
    persistent = module.state_dict().keys()
    return frozenset(
        name
        for name, buffer in module.named_buffers()
        if name in persistent and buffer.is_floating_point() and not buffer.is_meta
        if not bool(buffer.isfinite().all())
    )


def travel_of(
    module: nn.Module, axes: Axes, by_units: bool = True, constants: AbstractSet[str] = frozenset()
) -> Travel:
    """What travels in a run that cuts along these axes.

    Args:
        module: the model
        axes: of the run
        by_units: whether cuts take units of the axes, and nothing else; masks of single weights,
            or channels drawn layer by layer, leave no tensor whole
        constants: the buffers that do not come back

    >>> from submodel.model.axes import declare
    >>> layer = nn.Linear(2, 1, bias=False).requires_grad_(False)
    >>> travel_of(layer, declare({}, {})).base_names
    frozenset({'weight'})
    """
    names = untrained_names(module) | constants
    if not by_units:
        return Travel(names)
    cut_axes = {*axes.cut_by_capacity, CLASSES} & axes.sizes.keys()
    base = frozenset(
        name
        for name in names
        if not any(cut_axes & set(layout.axes()) for layout in axes.layouts.get(name, ()))
    )
    return Travel(names, base)


def size_in_bytes(tensors: Mapping[str, Tensor]) -> int:
    """What tensors take, exact to the bit."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
