"""What the user says about axes: which to freeze, tie, keep whole or cut."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from submodel.errors import ConfigError
from submodel.model.axes.axis_names import Names, name_axes
from submodel.model.axes.expression import Atom, Expression
from submodel.model.axes.record import Record


@dataclass(frozen=True)
class Overrides:
    """What the user says about axes; see `trace`."""

    freeze: Sequence[str] = ()
    tie: Sequence[tuple[str, str]] = ()
    whole: Sequence[str] = ()
    cut: Sequence[str] = ()

    def __post_init__(self) -> None:
        problems = []
        for option in ("freeze", "whole", "cut"):
            names = getattr(self, option)
            if isinstance(names, str) or not all(isinstance(name, str) for name in names):
                problems.append(f"{option}: {names!r} is not a list of names, as ['fc']")
        for pair in self.tie:
            if isinstance(pair, str) or len(pair) != 2:
                problems.append(f"tie: {pair!r} is not a pair of axes, as ('fc1', 'fc2')")
        if problems:
            raise ConfigError(problems)


def apply_overrides(
    record: Record,
    weights: Mapping[str, Tensor],
    classes: Atom | None,
    names: Names,
    overrides: Overrides,
) -> Names:
    """Freeze and tie as told; the axes that remain keep their names."""
    by_name: dict[str, Atom] = {name: atom for atom, name in names.items()}
    problems: list[str] = []

    def find(text: str, where: str) -> Expression | None:
        if text in by_name:
            return by_name[text]
        match = re.fullmatch(r"(.+)\[(\d+)\]", text)
        if match and match[1] in weights and int(match[2]) < weights[match[1]].dim():
            return record.tensors[id(weights[match[1]])].dimensions[int(match[2])]
        problems.append(
            f"{where}: {text!r} is neither an axis ({', '.join(by_name) or 'there is none'}) "
            "nor a dimension such as 'fc.weight[0]'"
        )
        return None

    for text in overrides.freeze:
        frozen = find(text, "freeze")
        if frozen is not None:
            record.algebra.freeze(frozen, "frozen as told")
    for one, other in overrides.tie:
        a, b = find(one, "tie"), find(other, "tie")
        if a is not None and b is not None:
            if a.size == b.size:
                record.algebra.unify(a, b, f"tied with {other}")
            else:
                problems.append(f"tie: {one!r} has {a.size} units and {other!r} has {b.size}")
    for option, texts in (("whole", overrides.whole), ("cut", overrides.cut)):
        for text in texts:
            if text not in by_name:
                problems.append(f"{option}: {text!r} is not an axis; there are {list(by_name)}")
            elif option == "cut" and text in overrides.whole:
                problems.append(f"cut: {text!r} is also to be kept whole")
            elif not isinstance(record.algebra.resolve(by_name[text]), Atom):
                problems.append(f"{option}: {text!r} is frozen by another option")
    if problems:
        raise ConfigError(problems)
    remaining_names = {a: n for a, n in names.items() if record.algebra.resolve(a) == a}
    if classes is not None and classes not in remaining_names:
        raise ConfigError(["classes: the axis of the classes is frozen or tied by another option"])
    return name_axes(record, weights, classes, remaining_names)
