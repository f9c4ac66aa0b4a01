"""Plain integers in modules of unknown types, such as `self.heads = 4`: set to what the cut leaves.

A trace knows which dimension an integer makes (see `submodel.axes.stored`), so there is nothing to
guess. Declared axes do not tell; then an integer is followed if the nearest tensors with a part of
that size (the module's own, else its children's, ...) all say the same, and doubt is an error.

Floats are never touched: a stored scale such as 1/sqrt(size of a head) stays that of the full
model, and with it the sub-model stays the full model with the dropped units zeroed. A scale that
the forward computes from a shape or a followed integer is that of the sub-model.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from submodel.axes.stored import StoredSize
from submodel.build.sizes import Sizes, kept


def plain_integers(layer: nn.Module) -> dict[str, int]:
    """The attributes of one module that may be sizes.

    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.heads, self.bias, self.scale = 4, True, 0.5
    >>> plain_integers(Net())
    {'heads': 4}
    """
    return {name: value for name, value in vars(layer).items() if type(value) is int}


def follow_integers(
    layer: nn.Module, path: str, sizes: Sizes, stored: Mapping[str, StoredSize] | None
) -> list[str]:
    """Set the integers of ``layer`` that the cut changes; what cannot be told, in words."""
    doubts = []
    for name, value in plain_integers(layer).items():
        if stored is None:
            becomes, doubt = sizes.inside(path, value), ""
        else:
            use = stored.get(f"{path}.{name}" if path else name, StoredSize())
            becomes, doubt = _by_use(use, value, path, sizes)
        if len(becomes) > 1:
            doubt = f"may become any of {sorted(becomes)}"
        if doubt:
            doubts.append(f"{name} = {value} {doubt}")
        elif becomes:
            setattr(layer, name, next(iter(becomes)))
    return doubts


def _by_use(use: StoredSize, value: int, path: str, sizes: Sizes) -> tuple[frozenset[int], str]:
    """What a watched integer becomes, and why that cannot be told."""
    exact = frozenset(kept(layout, sizes.kept) for layout in use.exact)
    if exact or use == StoredSize():
        return exact, ""
    near = sizes.inside(path, value)
    if use.computed:
        changed = any(kept(layout, sizes.kept) != layout.size for layout in use.computed)
        lost = changed and not near
        return near, "enters the computation of a size that the cut changes" if lost else ""
    if near - {value}:
        return near, "may be a size that the cut changes, or not"
    return frozenset(), ""
