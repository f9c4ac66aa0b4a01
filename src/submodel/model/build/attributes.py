"""Plain integers in modules of unknown types, such as `self.heads = 4`: set to what the cut leaves.

A trace knows which dimension an integer makes (see `submodel.model.axes.stored`), so there is
nothing to guess, and afterwards every size that the forward computes is checked. Declared axes do
not tell; then an integer is followed if the nearest tensors with a part of that size (the module's
own, else its children's, ...) all say the same, and doubt is an error.

Floats are never touched: a stored scale such as 1/sqrt(size of a head) stays that of the full
model, and with it the sub-model stays the full model with the dropped units zeroed. A scale that
the forward computes from a shape or a followed integer is that of the sub-model.
"""

from __future__ import annotations

from torch import nn

from submodel.model.axes.number import Attribute, Number, SizeOf, evaluate, leaves
from submodel.model.axes.stored import Stored
from submodel.model.build.sizes import Sizes, kept
from submodel.model.build.solve import Values, needed, original


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
    layer: nn.Module, path: str, sizes: Sizes, stored: Stored | None, settled: Values
) -> list[str]:
    """Set the integers of ``layer`` that the cut changes; what cannot be told, in words.

    ``settled`` is what the trace says that they may become (see `solve.settle`).
    """
    doubts = []
    for name, value in plain_integers(layer).items():
        doubt = ""
        if stored is None:
            becomes = sizes.inside(path, value)
        else:
            source = Attribute(f"{path}.{name}" if path else name)
            near = sizes.inside(path, value)
            becomes = settled.get(source, frozenset())
            made = any(source in leaves(m.number) for m in stored.made)
            only_sizes = source.name not in stored.elsewhere | stored.values
            if made:
                becomes = (becomes & near) or becomes or near
            if len(becomes) > 1 and only_sizes:  # all of these make and compare the same
                becomes = frozenset({value if value in becomes else max(becomes)})
            if source not in settled and source.name in stored.elsewhere:
                becomes = near
                if becomes - {value}:
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

    for made in stored.made:
        got, becomes = (
            evaluate(made.number, value),
            needed(made, original(made.number, sizes), sizes),
        )
        if got != becomes:
            where = (
                f"{made.where or 'the model'} ({type(small.get_submodule(made.where)).__name__})"
            )
            by = _from(made.number)
            what = "number of groups" if made.groups else "size"
            line = f", at {made.line}" if made.line else ""
            problems[f"{where}: a {what} {by}is {got} and should be {becomes}{line}"] = None
    for seen in stored.compared:
        if (evaluate(seen.one, value) == evaluate(seen.other, value)) is not seen.equal:
            which = _from(seen.one) or _from(seen.other)
            words = "equal" if seen.equal else "different"
            problems[
                f"{seen.line} compares two numbers {which}that are {words} in the full model, and "
                "not in the sub-model, which would take a branch that the trace has not seen"
            ] = None
    return list(problems)


def _from(number: Number) -> str:
    names = sorted({n.name for n in leaves(number) if isinstance(n, Attribute)})
    return f"computed from {', '.join(names)} " if names else ""
