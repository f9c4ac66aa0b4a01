"""Whether a device's examples are such as the run wants: shapes, types, labels, tokens."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from submodel.data import Dataset, Examples
from submodel.data.parts import NO_TARGET
from submodel.errors import DataError, plain
from submodel.federation.facts import Facts
from submodel.model.inputs import columns, from_columns

ColumnShapes = Mapping[str, tuple[int, ...]]
"""Of all rows of every column of the inputs, by name."""


def check_shapes(x: ColumnShapes, y: tuple[int, ...], facts: Facts) -> None:
    """Raise unless there are as many inputs as targets, each of the shape of the run's.

    >>> check_shapes({"": (4, 3)}, (4,), Facts((2,), "float32", 3, (), (), ()))
    Traceback (most recent call last):
    submodel.errors.DataError: inputs of (3,), but the run's are (2,)
    """
    expected_columns = {column.name: column for column in facts.input_columns}
    if x.keys() != expected_columns.keys():
        raise DataError(
            f"inputs {plain(', '.join(x) or 'without names', 100)}, but the run's are "
            f"{', '.join(expected_columns) or 'a single tensor'}"
        )
    for name, shape in x.items():
        if not shape or not y or not shape[0] or shape[0] != y[0]:
            counts = [str(s[0]) if s else "a single number instead of" for s in (shape, y)]
            raise DataError(f"{counts[0]} inputs and {counts[1]} targets; want as many, not 0")
        if shape[1:] != expected_columns[name].shape:
            run_shape = expected_columns[name].shape
            which = f"inputs {name!r}" if name else "inputs"
            raise DataError(f"{which} of {plain(shape[1:], 60)}, but the run's are {run_shape}")
    if facts.classes is not None and len(y) > 1:
        raise DataError(f"targets of {plain(y[1:], 60)}, but the run's are labels, one number each")
    if y[1:] != facts.targets:
        raise DataError(f"targets of {plain(y[1:], 60)}, but the run's are {facts.targets}")


def conform(examples: Examples, facts: Facts, where: object) -> Examples:
    """The examples in the types of the run, if their shapes and values are such as it wants.

    Args:
        examples: what the device has.
        facts: what the run wants.
        where: what errors call it.
    """
    tensors, y = columns(examples.x), examples.y
    try:
        check_shapes({n: tuple(t.shape) for n, t in tensors.items()}, tuple(y.shape), facts)
        inputs = {
            column.name: _as_type(tensors[column.name], column.dtype, "inputs")
            for column in facts.input_columns
        }
        y = _as_type(y, "int64" if facts.classes is not None else facts.target_dtype, "targets")
        _check_numbers(inputs, y, facts)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    return Examples(from_columns(inputs), y)


def _as_type(tensor: Tensor, name: str, what: str) -> Tensor:
    kind: torch.dtype = getattr(torch, name)
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise DataError(f"not all {what} are finite")
    numbers = tensor.to(kind)
    is_rounded = not kind.is_floating_point and tensor.is_floating_point()
    if is_rounded and not bool((numbers == tensor).all()):
        raise DataError(f"not all {what} are whole numbers, as the run's are")
    return numbers


def _check_numbers(inputs: Mapping[str, Tensor], y: Tensor, facts: Facts) -> None:
    """Labels and tokens: those that the run has."""
    if facts.classes is not None and (int(y.min()) < 0 or int(y.max()) >= facts.classes):
        raise DataError(f"labels must be 0 to {facts.classes - 1}")
    if facts.vocabulary is None:
        return
    numbers = {"tokens": next(iter(inputs.values()))}
    if facts.task == "language":
        numbers["targets"] = y[y != NO_TARGET]
    for what, tensor in numbers.items():
        if tensor.numel() and not 0 <= int(tensor.min()) <= int(tensor.max()) < facts.vocabulary:
            raise DataError(f"{what} must be 0 to {facts.vocabulary - 1}, as the run's are")


def renumber_classes(data: Dataset, facts: Facts, where: object) -> Examples:
    """The training part of a device's dataset, its classes numbered as the run's, by their names.

    Args:
        data: what the device has.
        facts: of the run.
        where: what errors call it.
    """
    about = data.about
    if about is None or not about.names or not facts.names or about.names == facts.names:
        return data.train
    numbers = {name: number for number, name in enumerate(facts.names)}
    present_classes = sorted(set(data.train.y.tolist()))
    if strange := [about.names[c] for c in present_classes if about.names[c] not in numbers]:
        names = ", ".join(facts.names)
        raise DataError(f"{where}: {strange[0]} is no class of the run; those are {names}")
    table = torch.tensor([numbers.get(name, -1) for name in about.names])
    return Examples(data.train.x, table[data.train.y])
