"""Plain integers in modules of unknown types: followed where the cut leaves no doubt.

`self.heads = 4` in a user's attention is a size that the cut changes, and nothing marks it as one.
An integer is followed if the nearest tensors with a part of that size (the module's own, else its
children's, ...) all say the same; if they disagree, building stops. Floats are never touched: a
scale such as 1/sqrt(head size) stays that of the full model, and with it the sub-model stays the
full model with the dropped units zeroed.
"""

from __future__ import annotations

from torch import nn

from submodel.build.sizes import Sizes


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


def follow_integers(layer: nn.Module, path: str, sizes: Sizes) -> list[str]:
    """Set the integers of ``layer`` that the cut changes; what cannot be told, in words."""
    doubts = []
    for name, value in plain_integers(layer).items():
        becomes = sizes.inside(path, value)
        if len(becomes) == 1:
            setattr(layer, name, next(iter(becomes)))
        elif becomes:
            doubts.append(f"{name} = {value} may become any of {sorted(becomes)}")
    return doubts
