"""Plain integers in modules of unknown types, such as `self.heads = 4`: set to what the cut leaves.

A trace knows which dimension an integer makes (see `submodel.axes.stored`), so there is nothing to
guess, and afterwards every size that the forward computes is checked. Declared axes do not tell;
then an integer is followed if the nearest tensors with a part of that size (the module's own, else
its children's, ...) all say the same, and doubt is an error.

Floats are never touched: a stored scale such as 1/sqrt(size of a head) stays that of the full
model, and with it the sub-model stays the full model with the dropped units zeroed. A scale that
the forward computes from a shape or a followed integer is that of the sub-model.
"""

from __future__ import annotations

from torch import nn

from submodel.axes.number import Attribute, SizeOf, evaluate, leaves
from submodel.axes.stored import Made, Stored
from submodel.build.sizes import Sizes, groups_kept, kept


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


def follow_integers(layer: nn.Module, path: str, sizes: Sizes, stored: Stored | None) -> list[str]:
    """Set the integers of ``layer`` that the cut changes; what cannot be told, in words."""
    doubts = []
    for name, value in plain_integers(layer).items():
        doubt = ""
        if stored is None:
            becomes = sizes.inside(path, value)
        else:
            source = Attribute(f"{path}.{name}" if path else name)
            exact = {m for m in stored.made if m.number == source}
            becomes = frozenset(n for m in exact if (n := _made(m, value, sizes)) is not None)
            computed = any(source in leaves(m.number) for m in stored.made)
            if not exact and (computed or source.name in stored.elsewhere):
                becomes = sizes.inside(path, value)
                if not computed and becomes - {value}:
                    doubt = "may be a size that the cut changes, or not"
        if len(becomes) > 1:
            doubt = f"may become any of {sorted(becomes)}"
        if doubt:
            doubts.append(f"{name} = {value} {doubt}")
        elif becomes:
            setattr(layer, name, next(iter(becomes)))
    return doubts


def misfits(small: nn.Module, sizes: Sizes, stored: Stored) -> list[str]:
    """The sizes that the forward of ``small`` would compute wrongly, in words."""
    problems: dict[str, None] = {}

    def value(leaf: Attribute | SizeOf) -> int:
        if isinstance(leaf, SizeOf):
            return kept(leaf.dimension, sizes.kept)
        path, _, name = leaf.name.rpartition(".")
        return int(getattr(small.get_submodule(path), name))

    def original(leaf: Attribute | SizeOf) -> int:
        return leaf.dimension.size if isinstance(leaf, SizeOf) else sizes.stored(leaf.name)

    for made in stored.made:
        got, before = evaluate(made.number, value), evaluate(made.number, original)
        needed = _made(made, before, sizes)
        if got != needed:
            names = sorted({n.name for n in leaves(made.number) if isinstance(n, Attribute)})
            where = (
                f"{made.where or 'the model'} ({type(small.get_submodule(made.where)).__name__})"
            )
            by = f"computed from {', '.join(names)} " if names else ""
            what = "number of groups" if made.groups else "size"
            problems[f"{where}: a {what} {by}is {got} and should be {needed}"] = None
    return list(problems)


def _made(made: Made, before: int, sizes: Sizes) -> int | None:
    """What the number must be in the sub-model; None if no number is right."""
    if not made.groups:
        return kept(made.dimension, sizes.kept)
    left = groups_kept(made.dimension, made.dimension.size // before, sizes.kept)
    if left is None or len({units for _, units in left}) > 1:
        return None
    return sum(count for count, _ in left)
