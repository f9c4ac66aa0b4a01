"""The exchanged tensors: trained ones go both ways, others never come back.

Tensors that are not trained (``requires_grad = False``) and that no cut divides are the same for a
client in every round: this *base* is sent once, before the client's first task, and kept. Buffers
with a value that is not finite, such as a mask of minus infinities, cannot be averaged and do not
come back either. Where cuts divide a tensor that is not trained, such as a frozen layer whose width
is cut, a client gets its part in every round: keeping the whole could exceed its memory.
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
    """The names of the tensors that are not exchanged both ways in every round.

    Args:
        untrained_names: never come back
        base_names: the subset that every client holds whole; it is sent once
    """

    untrained_names: frozenset[str] = frozenset()
    base_names: frozenset[str] = frozenset()

    def of_update(self, tensors: Mapping[str, _T]) -> dict[str, _T]:
        """The tensors that clients return and the server merges.

        >>> Travel(frozenset({"a", "b"}), frozenset({"a"})).of_update({"a": 1, "b": 2, "c": 3})
        {'c': 3}
        """
        return {name: value for name, value in tensors.items() if name not in self.untrained_names}

    def of_task(self, tensors: Mapping[str, _T]) -> dict[str, _T]:
        """The tensors that the server sends in every round."""
        return {name: value for name, value in tensors.items() if name not in self.base_names}

    def of_base(self, tensors: Mapping[str, _T]) -> dict[str, _T]:
        """The tensors that the server sends once."""
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
    """The tensors to exchange in a run that cuts along these axes.

    Args:
        module: the model
        axes: of the run
        by_units: whether cuts only take units of the axes; masks of single weights, or channels
            drawn layer by layer, divide every tensor
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
    """The total size of tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
