"""Plain integers in modules of unknown types, such as `self.heads = 4`: set to what the cut leaves.

A trace knows which dimension an integer makes (see `submodel.model.axes.code_numbers`), so there is
nothing to guess, and afterwards every size that the forward computes is checked. Declared axes do
not tell; then an integer is followed if the nearest tensors with a part of that size (the module's
own, else its children's, ...) all say the same, and doubt is an error.

Floats are never touched: a stored scale such as 1/sqrt(size of a head) stays that of the full
model, and with it the sub-model stays the full model with the dropped units zeroed. A scale that
the forward computes from a shape or a followed integer is that of the sub-model.
"""

from __future__ import annotations

from torch import nn

from submodel.model.axes.code_numbers import CodeNumbers
from submodel.model.axes.number import Attribute, Number, SizeOf, evaluate, leaves
from submodel.model.build.sizes import Sizes, kept_size
from submodel.model.build.solve import Values, original, required_value


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
    layer: nn.Module, path: str, sizes: Sizes, numbers: CodeNumbers | None, allowed_values: Values
) -> list[str]:
    """Set the integers of ``layer`` that the cut changes; what cannot be told, in words.

    ``allowed_values`` is what the trace says that they may become (see `solve.narrow_values`).
    """
    doubts = []
    for name, value in plain_integers(layer).items():
        doubt = ""
        if numbers is None:
            becomes = sizes.inside(path, value)
        else:
            source = Attribute(f"{path}.{name}" if path else name)
            near = sizes.inside(path, value)
            becomes = allowed_values.get(source, frozenset())
            makes_dimension = any(source in leaves(m.number) for m in numbers.sizings)
            only_sizes = source.name not in numbers.elsewhere | numbers.values
            if makes_dimension:
                becomes = (becomes & near) or becomes or near
            if len(becomes) > 1 and only_sizes:  # all of these make and compare the same
                becomes = frozenset({value if value in becomes else max(becomes)})
            if source not in allowed_values and source.name in numbers.elsewhere:
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


def misfits(small: nn.Module, sizes: Sizes, numbers: CodeNumbers) -> list[str]:
    """The sizes that the forward of ``small`` would compute wrongly, in words."""
    problems: dict[str, None] = {}

    def value(leaf: Attribute | SizeOf) -> int:
        if isinstance(leaf, SizeOf):
            return kept_size(leaf.dimension, sizes.kept_counts)
        path, _, name = leaf.name.rpartition(".")
        return int(getattr(small.get_submodule(path), name))

    for sizing in numbers.sizings:
        actual, becomes = (
            evaluate(sizing.number, value),
            required_value(sizing, original(sizing.number, sizes), sizes),
        )
        if actual != becomes:
            kind = type(small.get_submodule(sizing.where)).__name__
            where = f"{sizing.where or 'the model'} ({kind})"
            by = _from(sizing.number)
            what = "number of groups" if sizing.groups else "size"
            line = f", at {sizing.line}" if sizing.line else ""
            problems[f"{where}: a {what} {by}is {actual} and should be {becomes}{line}"] = None
    for comparison in numbers.comparisons:
        if (
            evaluate(comparison.one, value) == evaluate(comparison.other, value)
        ) is not comparison.equal:
            which = _from(comparison.one) or _from(comparison.other)
            words = "equal" if comparison.equal else "different"
            problems[
                f"{comparison.line} compares two numbers {which}that are {words} in the full "
                "model, and not in the sub-model, which would take a branch that the trace has not "
                "seen"
            ] = None
    return list(problems)


def _from(number: Number) -> str:
    names = sorted({n.name for n in leaves(number) if isinstance(n, Attribute)})
    return f"computed from {', '.join(names)} " if names else ""
