"""Messages between a server and its devices: one file each, with a head and tensors.

A message is a safetensors file whose metadata holds the head as JSON. Nothing is unpickled, and a
reader in another language needs only these two formats. For each kind of message there are a
writer, a reader and a size limit.

A task carries the units that the device holds and their values, and the digest of its base: the
tensors that are neither trained nor cut, which a device gets once and keeps. The first task of a
device also carries the exact values of the base. An update holds the trained values of a task;
moments are the statistics of a sub-model's static norms on a device's examples. In ``half``
transport values travel as float16, and an update holds the *change*, which the server adds to its
own exact values: values that the device did not change keep their bits.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError
from safetensors.torch import load, save
from torch import Tensor, nn

from submodel.algorithm.dispatch import cut_of
from submodel.algorithm.packing import (
    PackedTensors,
    Transport,
    halve,
    pack_cut,
    restore_values,
    unpack_cut,
)
from submodel.algorithm.round_statistics import element_size
from submodel.algorithm.types import Assignment, Setup, Task, Update
from submodel.core.errors import PlanError, SubmodelError, plain
from submodel.model.axes.layout import Indices
from submodel.model.build import local_of, tensors_of
from submodel.model.cut import CoordinateCut, Cut, PlannedCut, Tensors, UnitCut, read_runs, runs
from submodel.model.travel import EVERYTHING, Travel
from submodel.runs.checkpoint import model_sha256
from submodel.tasks.optimisers import Sgd
from submodel.tasks.schedule import Precision
from submodel.tasks.training import LocalWork

VERSION = 2
_HEAD = "submodel"
_HEAD_BYTES, _LINE_BYTES = 1 << 14, 512  # bytes of any head, and of each of its lines

_T = TypeVar("_T")
# Integers that every JSON reader represents exactly.
PositiveInteger = Annotated[int, Field(gt=0, lt=1 << 53)]
ExactInteger = Annotated[int, Field(gt=-1 << 53, lt=1 << 53)]


class WireError(SubmodelError):
    """Message that is unreadable or invalid; the error text is safe to display."""

    def __init__(self, text: object) -> None:
        super().__init__(plain(text))


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def read_as(kind: type[_T], values: object) -> _T:
    """Validate untrusted values as a dataclass; raise `WireError` if they do not fit.

    >>> read_as(Limits, {"head": 16}).head
    16
    """
    try:
        values_of_kind: _T = _adapter(kind).validate_python(values)  # type: ignore[arg-type]
        return values_of_kind
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = plain(".".join(map(str, first["loc"])), 100) or "its head"
        what = first["msg"]
        if first["type"] != "missing":
            what += f", not {plain(reprlib.repr(first['input']), 60)}"
        raise WireError(f"{where}: {what[:1].lower()}{what[1:]}") from None


@dataclass(frozen=True)
class Limits:
    """Limits in bytes: of the head, and of the whole message."""

    head: int = 1 << 26
    whole: int = 1 << 40

    @classmethod
    def of(cls, values: int, names: Iterable[str] = (), lines: int = 0) -> Limits:
        """Return limits for bytes of values, names of tensors and lines of the head.

        The head may be a few times longer than those written here: another version or language may
        write numbers at greater length.
        """
        head = _HEAD_BYTES + _LINE_BYTES * lines + sum(_LINE_BYTES + 16 * len(n) for n in names)
        return cls(head, head + values)


@dataclass(frozen=True)
class Message:
    """Message: a head of plain values, and named tensors."""

    head: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        head = json.dumps({**self.head, "version": VERSION})
        return save({n: t.contiguous() for n, t in self.tensors.items()}, {_HEAD: head})

    @classmethod
    def from_bytes(cls, data: bytes, limits: Limits = Limits()) -> Message:  # noqa: B008 - frozen
        """Read the bytes of `to_bytes`; raise `WireError` for anything else.

        >>> Message.from_bytes(Message({"kind": "report"}, {}).to_bytes()).head["kind"]
        'report'
        >>> Message.from_bytes(b"no message")
        Traceback (most recent call last):
        submodel.federation.wire.WireError: it cannot be read (its head is cut short)
        """
        length = int.from_bytes(data[:8], "little")
        if len(data) > limits.whole:
            raise WireError(f"it has {len(data):,} bytes; at most {limits.whole:,} are expected")
        if len(data) < 8 or length > len(data) - 8:
            raise WireError("it cannot be read (its head is cut short)")
        if length > limits.head:
            raise WireError(f"its head has {length:,} bytes; at most {limits.head:,} are expected")
        try:
            head = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_HEAD])
            tensors = load(data)
        except Exception as error:  # reading untrusted bytes may raise anything
            raise WireError(f"it cannot be read ({type(error).__name__}: {plain(error)})") from None
        if not isinstance(head, dict) or head.get("version") != VERSION:
            version = head.get("version") if isinstance(head, dict) else head
            raise WireError(
                f"it has version {plain(reprlib.repr(version), 60)} of the format, not {VERSION}"
            )
        return cls(head, tensors)


_START = "base/"


@dataclass(frozen=True)
class ModelBase:
    """Tensors that are constant over a run, with their digest."""

    digest: str
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> ModelBase:
        """Return the base of tensors.

        >>> import torch
        >>> ModelBase.of({"w": torch.zeros(1)}).digest[:8]
        '94733083'
        """
        return cls(model_sha256(tensors), dict(tensors))

    def to_tensors(self) -> dict[str, Tensor]:
        """Return the tensors under their names in a task."""
        return {_START + name: tensor for name, tensor in self.tensors.items()}


_SCALES, _LOCAL = "scales/", "local/"


def task_message(
    task: Task,
    module: nn.Module,
    masks: bool,
    transport: Transport,
    base: ModelBase | None = None,
    sends_base: bool = False,
) -> Message:
    """Return the message of a task: units and values of the cut, and the local work.

    Args:
        task: task of a client.
        module: whole model.
        masks: send the masks of single weights; otherwise the device draws them again.
        transport: precision of the values.
        base: base of the model; its digest is sent.
        sends_base: send the values of the base as well.
    """
    base_names = base.tensors.keys() if base else ()
    sent_tensors = {n: t for n, t in task.tensors.items() if n not in base_names}
    package = pack_cut(task.cut, sent_tensors, masks)
    values, scales = halve(package.values) if transport == "half" else (dict(package.values), {})
    local = {_LOCAL + n: task.cut.part(n, t).contiguous() for n, t in local_of(module).items()}
    tensors = dict(replace(package, values=values).to_tensors()) | local
    tensors |= {_SCALES + n: t.clone() for n, t in task.scales.items()}
    tensors |= base.to_tensors() if base and sends_base else {}
    head = {
        "assignment": asdict(task.assignment),
        "units": _unit_runs(task.cut),
        "drawn": isinstance(task.cut, CoordinateCut) and bool(task.cut.masks) and not masks,
        "work": _work_values(task.work),
        "step_rule": task.step_rule is not None,
        "classes": None if task.classes is None else task.classes.tolist(),
        "halved": scales if transport == "half" else None,
        "base": base.digest if base else None,
    }
    return Message(head, tensors)


def _unit_runs(cut: Cut) -> dict[str, list[list[int]]] | None:
    """Return the units of every axis as runs of numbers; None if masks define the cut."""
    if isinstance(cut, PlannedCut):
        cut = cut.like or cut  # a device needs only the shapes
    if isinstance(cut, UnitCut):
        return {axis: runs(units) for axis, units in cut.units.items()}
    return None if isinstance(cut, CoordinateCut) and cut.masks else {}


_AS_CONFIGURED = ("optimiser", "pieces", "rates")
"""Fields of the local work that the device takes from the configuration."""


def _work_values(work: LocalWork) -> dict[str, Any]:
    """Return the local work as plain values; a device builds foreign optimisers itself."""
    head = {f.name: getattr(work, f.name) for f in fields(work) if f.name not in _AS_CONFIGURED}
    optimiser = asdict(work.optimiser) if isinstance(work.optimiser, Sgd) else None
    return {**head, "optimiser": optimiser}


@dataclass(frozen=True)
class _WorkHead:
    """Values of `_work_values`: `LocalWork` with plain optimiser; None: as configured."""

    lr: float
    epochs: int | None
    steps: int | None
    batch_size: int | None
    drop_last: bool
    clip: float | None
    precision: Precision
    optimiser: Sgd | None

    def local_work(self, work: LocalWork) -> LocalWork:
        """Return the work of a client; fields that the task lacks are those of the run."""
        others = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "optimiser"}
        return replace(work, **others, optimiser=self.optimiser or work.optimiser)


@dataclass(frozen=True)
class _TaskHead:
    """Head of `task_message`; the names are those of the format."""

    assignment: Assignment
    units: dict[str, list[tuple[int, int]]] | None
    drawn: bool  # whether the device draws the masks
    work: _WorkHead
    step_rule: bool  # whether steps follow the scheme's rule
    classes: list[Annotated[int, Field(ge=0, lt=1 << 53)]] | None
    halved: dict[str, FiniteFloat] | None  # scales of float16 values; None: values are exact
    base: str | None = None  # digest of the base


def read_base(message: Message, earlier: ModelBase | None) -> ModelBase | None:
    """Return the base of a task: the one in the message, or ``earlier``; None if there is none.

    Raises `WireError` if the device lacks it.
    """
    digest = read_as(_BaseHead, message.head).base
    if digest is None:
        return None
    tensors = _part(message, _START)
    base = ModelBase.of(tensors) if tensors else earlier
    if base is None or base.digest != digest:
        what = "differs" if base is not None else "is missing"
        raise WireError(f"the base {plain(digest, 16)} of the model {what}: it must be sent again")
    return base


@dataclass(frozen=True)
class _BaseHead:
    base: str | None = None


def read_task(message: Message, setup: Setup, base: ModelBase | None = None) -> Task:
    """Read the task of a message; raise `WireError` if it is invalid.

    Args:
        message: message of `task_message`.
        setup: setup of the run; its module may be a skeleton.
        base: result of `read_base`.
    """
    head = read_as(_TaskHead, message.head)
    base_tensors = base.tensors if base else {}
    if odd := sorted(setup.travel.base_names ^ base_tensors.keys()):
        raise WireError(f"the base of the model lacks, or should not have, {plain(odd[0], 100)!r}")
    class_count = setup.clients.dataset.classes
    if head.classes is not None and max(head.classes, default=0) >= (class_count or 0):
        largest = max(head.classes, default=0)
        raise WireError(f"class {largest} is not one of the run's {class_count}")
    classes = None if head.classes is None else np.asarray(head.classes, dtype=np.int64)
    cut, values = _cut_and_values(message, head, setup, classes)
    tensors = {n: (base_tensors if n in base_tensors else values)[n]
               for n in tensors_of(setup.module)}  # fmt: skip
    scales, local = _part(message, _SCALES), _part(message, _LOCAL)
    _check_shapes(setup, cut, tensors, local, scales)
    rule = setup.scheme.step_rule(head.assignment.capacity) if head.step_rule else None
    if head.step_rule and rule is None:
        raise WireError("it needs a rule for steps that the run's scheme does not have")
    work = head.work.local_work(setup.work)
    return Task(head.assignment, cut, tensors, work, classes, scales, rule, local)


def _cut_and_values(
    message: Message, head: _TaskHead, setup: Setup, classes: NDArray[np.int64] | None
) -> tuple[Cut, dict[str, Tensor]]:
    """Read or draw the cut of a task; return it with the sub-model's values in its shapes."""
    package = PackedTensors.from_tensors(message.tensors)
    names = setup.travel.of_task(tensors_of(setup.module)).keys()
    if odd := sorted(names ^ package.values.keys()) or sorted(package.masks.keys() - names):
        raise WireError(f"tensors do not match: {plain(odd[0], 100)!r} is missing or unknown")
    if head.halved is not None:
        package = replace(package, values=restore_values(package.values, head.halved))
    shapes = {n: tuple(t.shape) for n, t in setup.module.state_dict().items()}
    cut: Cut | None = None
    try:
        if head.units is not None:
            cut = UnitCut(setup.axes, {a: _units_of(setup, a, r) for a, r in head.units.items()})
        elif head.drawn:
            cut = cut_of(setup, head.assignment, classes)
        return unpack_cut(package, shapes, cut)
    except PlanError as error:
        raise WireError(error) from None


def _units_of(setup: Setup, axis: str, pairs: list[tuple[int, int]]) -> Indices:
    if axis not in setup.axes.sizes:
        raise PlanError(f"no axis {plain(axis, 60)!r} in the model")
    return read_runs(pairs, setup.axes.sizes[axis], axis)


def _part(message: Message, start: str) -> dict[str, Tensor]:
    """Return the tensors with a prefix in their names, by the rest of the names."""
    return {n.removeprefix(start): t for n, t in message.tensors.items() if n.startswith(start)}


def _check_shapes(
    setup: Setup,
    cut: Cut,
    tensors: Mapping[str, Tensor],
    local: Mapping[str, Tensor],
    scales: Mapping[str, Tensor],
) -> None:
    """Raise `WireError` for a tensor whose shape does not follow from the model and the cut."""
    whole = {n: tuple(t.shape) for n, t in local_of(setup.module).items()}
    whole |= {n: tuple(t.shape) for n, t in setup.module.state_dict().items()}
    for name, tensor in (*tensors.items(), *local.items(), *scales.items()):
        shape = cut.shape(name, whole[name]) if name in whole else None
        fits = tensor.shape == shape or (name in scales and shape and _spreads(tensor.shape, shape))
        if not fits:
            raise WireError(
                f"{plain(name, 100)} has shape {plain(tuple(tensor.shape), 60)}, "
                "which does not fit the cut"
            )


def _spreads(shape: Sequence[int], over: Sequence[int]) -> bool:
    """Whether a shape broadcasts over another."""
    pairs = zip(reversed(shape), reversed(over), strict=False)
    return len(shape) <= len(over) and all(a in (1, b) for a, b in pairs)


_Amount = Annotated[FiniteFloat, Field(ge=0)]


def update_message(update: Update, task: Task, transport: Transport) -> Message:
    """Return the message of an update of ``task``, as the device received it."""
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
    return Message(head, dict(package.to_tensors()))


@dataclass(frozen=True)
class _AssignmentHead:
    """Assignment named in an update."""

    round: ExactInteger
    client: ExactInteger
    capacity: float
    place: ExactInteger = 0


@dataclass(frozen=True)
class _UpdateHead:
    """Head of `update_message`; the names are those of the format."""

    assignment: _AssignmentHead
    examples: PositiveInteger
    processed: PositiveInteger
    loss: FiniteFloat | None
    counted: Annotated[FiniteFloat, Field(ge=0, lt=1 << 53)] | None
    passes: tuple[tuple[Annotated[float, Field(gt=0, le=1)], PositiveInteger], ...]
    halved: dict[str, FiniteFloat] | None


@dataclass(frozen=True)
class TrainingCost:
    """Cost of an answer as reported by a device: seconds of training, bytes of memory."""

    training: _Amount | None = None
    peak_memory: _Amount | None = None


def update_limits(task: Task, transport: Transport, travel: Travel = EVERYTHING) -> Limits:
    """Return the limits of an answer to a task: the values of its cut, and a head.

    Args:
        task: task that is answered.
        transport: precision of the values.
        travel: selection of the returned tensors.

    >>> import torch
    >>> from submodel.tasks.training import LocalWork
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
    """Return the maximum number of widths of an update's passes."""
    return 0 if task.step_rule is None else len(task.step_rule.widths)


def read_update(message: Message, task: Task, travel: Travel = EVERYTHING) -> Update:
    """Read the update of a message; raise `WireError` unless it answers this task.

    Args:
        message: answer of a device.
        task: task that was sent.
        travel: selection of the returned tensors.
    """
    head = read_as(_UpdateHead, message.head)
    answer_to = head.assignment
    if Assignment(**asdict(answer_to)) != task.assignment:
        raise WireError(f"it answers for round {answer_to.round + 1}, client {answer_to.client}")
    if head.loss is None:
        raise WireError("its loss is not finite")
    if len(head.passes) > _widths(task):
        raise WireError(f"it has {len(head.passes):,} widths; at most {_widths(task)} are expected")
    tensors = _values(message, task.cut, travel.of_update(task.tensors), head.halved)
    counts = head.examples, head.processed
    return Update(task.assignment, task.cut, tensors, *counts, head.loss, head.passes, head.counted)


def _values(
    message: Message, cut: Cut, tensors: Tensors, scales: Mapping[str, float] | None
) -> dict[str, Tensor]:
    """Read the tensors of an update in the shapes and types of the sent ``tensors``."""
    package = PackedTensors.from_tensors(message.tensors)
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
    """Return the limits of norm statistics: three float64 values per 1-d value."""
    return Limits.of(sum(24 * t.numel() for t in task.tensors.values() if t.dim() == 1))


def moments_message(rows: Tensor) -> Message:
    """Return the message of counts, means and variances, as `read_moments` returns them."""
    return Message({}, {"rows": rows})


def read_moments(message: Message, columns: int) -> Tensor:
    """Read the rows of a message; raise `WireError` if they are not statistics.

    >>> read_moments(moments_message(torch.ones(1, 3, dtype=torch.float64)), 3).shape
    torch.Size([1, 3])
    """
    rows = message.tensors.get("rows")
    if rows is None or rows.dtype != torch.float64 or rows.dim() != 2 or rows.shape[1] != columns:
        raise WireError("it has no statistics of this model")
    if not bool(torch.isfinite(rows).all()) or bool((rows[:, 0] <= 0).any()):
        raise WireError("its statistics are not finite")
    return rows
