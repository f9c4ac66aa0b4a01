"""The names of axes: after the tensors in which they lie."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from submodel.model.axes.declare import CLASSES
from submodel.model.axes.expression import Atom, Expression, atoms
from submodel.model.axes.record import Record

Names = dict[Atom, str]


def name_axes(
    record: Record, weights: Mapping[str, Tensor], classes: Atom | None, names_so_far: Names
) -> Names:
    """Each axis is named after the tensor that was read first among those it lies in.

    That is where it comes from: the layer that makes it runs before those that use it. Several
    axes of one tensor are numbered in the order in which they lie there.
    """
    order = {name: record.read.get(id(tensor), 1 << 60) for name, tensor in weights.items()}
    layouts = resolve_weights(record, weights)
    names = dict(names_so_far)
    if classes is not None:
        names[classes] = CLASSES
    new: dict[str, list[Atom]] = {}
    named_atoms = set(names)
    for tensor in sorted(weights, key=order.__getitem__):
        for dimension in layouts[tensor]:
            for atom in atoms(dimension):
                if atom not in named_atoms:
                    named_atoms.add(atom)
                    base = tensor.removesuffix(".weight").removesuffix(".bias")
                    new.setdefault(base, []).append(atom)
    names_in_use = set(names.values())
    for base, members in new.items():
        if len(members) == 1 and base not in names_in_use | {CLASSES}:
            names[members[0]] = base
            continue
        number = 0
        for atom in members:
            number += 1
            while f"{base}#{number}" in names_in_use:
                number += 1
            names[atom] = f"{base}#{number}"
    if classes is not None:  # last, as classes come last in the net
        names[classes] = names.pop(classes)
    return names


def resolve_weights(
    record: Record, weights: Mapping[str, Tensor]
) -> dict[str, tuple[Expression, ...]]:
    """The dimensions of every parameter and buffer, as they are known by now."""
    resolve = record.algebra.resolve
    return {
        name: tuple(map(resolve, record.tensors[id(tensor)].dimensions))
        for name, tensor in weights.items()
    }
