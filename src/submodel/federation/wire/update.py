"""What a device sends back: an update, what became of the values of a task, or moments.

In ``half`` transport an update is the *change*, which the server adds to its own exact values: what
a device did not move keeps its bits. Moments are what the static norms of a sub-model saw of a
device's examples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated

import torch
from pydantic import Field, FiniteFloat
from torch import Tensor

from submodel.algorithm.packing import (
    PackedTensors,
    Transport,
    halve,
    pack_cut,
    restore_values,
    unpack_cut,
)
from submodel.algorithm.tally import element_size
from submodel.algorithm.types import Assignment, Task, Update
from submodel.errors import plain
from submodel.federation.wire.parcel import (
    ExactInteger,
    Limits,
    Parcel,
    PositiveInteger,
    WireError,
    read_as,
)
from submodel.model.cut import Cut, Tensors
from submodel.model.travel import EVERYTHING, Travel

_Amount = Annotated[FiniteFloat, Field(ge=0)]


def update_parcel(update: Update, task: Task, transport: Transport) -> Parcel:
    """What a device sends back for ``task``, as it received it."""
    values: Tensors = update.tensors
    scales: dict[str, float] = {}
    if transport == "half":
        values = {n: t - task.tensors[n].to(t) for n, t in values.items()}
    package = pack_cut(task.cut, values)
    if transport == "half":
        small, scales = halve(package.values)
        package = replace(package, values=small)
    head = {
        "assignment": asdict(update.assignment),
        "examples": update.examples,
        "processed": update.examples_used,
        "loss": update.loss if math.isfinite(update.loss) else None,
        "counted": update.examples_counted,
        "passes": list(update.passes),
        "halved": scales if transport == "half" else None,
    }
    return Parcel(head, dict(package.to_tensors()))


@dataclass(frozen=True)
class _AssignmentHead:
    """The assignment that an update says it is for."""

    round: ExactInteger
    client: ExactInteger
    capacity: float
    place: ExactInteger = 0


@dataclass(frozen=True)
class _UpdateHead:
    """What `update_parcel` says beside the tensors; the names are those of the format."""

    assignment: _AssignmentHead
    examples: PositiveInteger
    processed: PositiveInteger
    loss: FiniteFloat | None
    counted: Annotated[FiniteFloat, Field(ge=0, lt=1 << 53)] | None
    passes: tuple[tuple[Annotated[float, Field(gt=0, le=1)], PositiveInteger], ...]
    halved: dict[str, FiniteFloat] | None


@dataclass(frozen=True)
class TrainingCost:
    """What a device says that its answer took: seconds of training, and bytes of memory."""

    training: _Amount | None = None
    peak_memory: _Amount | None = None


def update_limits(task: Task, transport: Transport, travel: Travel = EVERYTHING) -> Limits:
    """What an answer to a task may have: the values of its cut, and a head that names them.

    ``travel``: what of them comes back.

    >>> import torch
    >>> from submodel.local.training import LocalWork
    >>> from submodel.model.cut import CoordinateCut
    >>> cut = CoordinateCut({"w": torch.arange(9) < 5})
    >>> task = Task(Assignment(0, 0, 1), cut, {"w": torch.ones(9)}, LocalWork(0.1), None)
    >>> limits = update_limits(task, "half")
    >>> limits.whole - limits.head
    10
    """
    size = 0
    tensors = travel.of_update(task.tensors)
    for name, tensor in tensors.items():
        mask = task.cut.mask(name)
        values = tensor.numel() if mask is None else int(mask.sum())
        size += values * element_size(tensor, transport)
    return Limits.of(size, tensors, _widths(task))


def _widths(task: Task) -> int:
    """How many widths the passes of an update may have."""
    return 0 if task.step_rule is None else len(task.step_rule.widths)


def read_update(parcel: Parcel, task: Task, travel: Travel = EVERYTHING) -> Update:
    """The update of a parcel, if it answers just this task; raises `WireError` if not.

    ``travel``: what of the task's tensors comes back.
    """
    head = read_as(_UpdateHead, parcel.head)
    answer_to = head.assignment
    if Assignment(**asdict(answer_to)) != task.assignment:
        raise WireError(f"it answers for round {answer_to.round + 1}, client {answer_to.client}")
    if head.loss is None:
        raise WireError("its loss is not finite")
    if len(head.passes) > _widths(task):
        raise WireError(f"it tells of {len(head.passes):,} widths; {_widths(task)} were asked")
    tensors = _values(parcel, task.cut, travel.of_update(task.tensors), head.halved)
    counts = head.examples, head.processed
    return Update(task.assignment, task.cut, tensors, *counts, head.loss, head.passes, head.counted)


def _values(
    parcel: Parcel, cut: Cut, tensors: Tensors, scales: Mapping[str, float] | None
) -> dict[str, Tensor]:
    """The tensors of an update in the shapes and types of ``tensors``, which were sent."""
    package = PackedTensors.from_tensors(parcel.tensors)
    task_values = pack_cut(cut, tensors).values
    if odd_names := sorted(task_values.keys() ^ package.values.keys()):
        raise WireError(f"tensors do not match: {plain(odd_names[0], 100)!r} is missing or unknown")
    values = dict(package.values)
    if scales is not None:
        values = restore_values(values, scales)
    for name, before in task_values.items():
        value = values[name]
        if value.shape != before.shape:
            raise WireError(
                f"{name} has shape {plain(tuple(value.shape), 60)}, which does not fit the cut: "
                f"{tuple(before.shape)}"
            )
        if scales is None and value.dtype != before.dtype:
            raise WireError(f"{name} is of {value.dtype}, not {before.dtype}")
        if scales is not None:
            values[name] = (before.double() + value.double()).to(before.dtype)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return unpack_cut(PackedTensors(values), shapes, cut)[1]


def moments_limits(task: Task) -> Limits:
    """What norm statistics may have: count, mean and variance as float64, for any 1-d tensor."""
    return Limits.of(sum(24 * t.numel() for t in task.tensors.values() if t.dim() == 1))


def moments_parcel(rows: Tensor) -> Parcel:
    """What a device sends back: counts, means and variances, as `read_moments` returns them."""
    return Parcel({}, {"rows": rows})


def read_moments(parcel: Parcel, columns: int) -> Tensor:
    """The rows of a parcel; raises `WireError` if they cannot be statistics.

    >>> read_moments(moments_parcel(torch.ones(1, 3, dtype=torch.float64)), 3).shape
    torch.Size([1, 3])
    """
    rows = parcel.tensors.get("rows")
    if rows is None or rows.dtype != torch.float64 or rows.dim() != 2 or rows.shape[1] != columns:
        raise WireError("it holds no statistics of this model")
    if not bool(torch.isfinite(rows).all()) or bool((rows[:, 0] <= 0).any()):
        raise WireError("its statistics are not finite")
    return rows
