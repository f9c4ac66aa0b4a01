"""What travels between a server and its devices: one file per message, a head and some tensors.

The file is a safetensors file whose metadata holds the head as JSON: nothing is unpickled, and a
reader in another language needs no more than those two formats. A task carries the units that the
device holds and their values, an update what became of them. In ``half`` transport values travel
as float16, and an update is the *change*, which the server adds to its own exact values: what a
device did not move keeps its bits.
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
from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError
from safetensors.torch import load, save
from torch import Tensor, nn

from submodel.algorithm.dispatch import cut_of
from submodel.algorithm.packing import (
    Packed,
    Transport,
    element_size,
    halved,
    pack,
    restored,
    unpack,
)
from submodel.algorithm.types import Assignment, Setup, Task, Update
from submodel.errors import PlanError, SubmodelError
from submodel.errors import plain as plain
from submodel.local.optimisers import Optimiser
from submodel.local.sgd import Sgd
from submodel.local.work import LocalWork, Precision
from submodel.model.axes.layout import Indices
from submodel.model.build import local_of, tensors_of
from submodel.model.cut import CoordinateCut, Cut, PlannedCut, Tensors, UnitCut, read_runs, runs
from submodel.schemes.roles import step_rule

VERSION = 2
_HEAD = "submodel"
_SCALES, _LOCAL = "scales/", "local/"

T = TypeVar("T")
Count = Annotated[int, Field(gt=0, lt=1 << 53)]
Number = Annotated[int, Field(gt=-1 << 53, lt=1 << 53)]
Amount = Annotated[FiniteFloat, Field(ge=0)]


class WireError(SubmodelError):
    """A message that cannot be read, or says what it must not; its text can always be shown."""

    def __init__(self, text: object) -> None:
        super().__init__(plain(text))


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def read_as(kind: type[T], values: object) -> T:
    """Values that a stranger sent as a dataclass; raises `WireError` if they cannot be one."""
    try:
        found: T = _adapter(kind).validate_python(values)  # type: ignore[arg-type]
        return found
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = plain(".".join(map(str, first["loc"])), 100) or "its head"
        given = f", not {plain(reprlib.repr(first['input']), 60)}"
        what = first["msg"] if first["type"] == "missing" else first["msg"] + given
        raise WireError(f"{where}: {what[:1].lower()}{what[1:]}") from None


@dataclass(frozen=True)
class Limits:
    """How many bytes a message may have: its head, and in all."""

    head: int = 1 << 26
    whole: int = 1 << 40

    @classmethod
    def of(cls, values: int, names: Iterable[str] = (), lines: int = 0) -> Limits:
        """For so many bytes of values in tensors of these names, and so many lines of the head.

        A head may be a few times longer than any that we write, which is room enough for another
        version, or another language, to write its numbers at more length.
        """
        head = _HEAD_ROOM + _LINE_ROOM * lines + sum(_LINE_ROOM + 16 * len(n) for n in names)
        return cls(head, head + values)


_HEAD_ROOM, _LINE_ROOM = 1 << 14, 512


@dataclass(frozen=True)
class Parcel:
    """A message: a head of plain values and named tensors."""

    head: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def to_bytes(self) -> bytes:
        """As it travels."""
        head = json.dumps({**self.head, "version": VERSION})
        return save({n: t.contiguous() for n, t in self.tensors.items()}, {_HEAD: head})

    @classmethod
    def from_bytes(cls, data: bytes, limits: Limits = Limits()) -> Parcel:  # noqa: B008 - frozen
        """What `to_bytes` wrote; raises `WireError` for anything else.

        >>> Parcel.from_bytes(Parcel({"kind": "report"}, {}).to_bytes()).head["kind"]
        'report'
        >>> Parcel.from_bytes(b"no message")
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
        except Exception as error:  # whatever reading a stranger's bytes raises
            raise WireError(f"it cannot be read ({type(error).__name__}: {plain(error)})") from None
        if not isinstance(head, dict) or head.get("version") != VERSION:
            given = head.get("version") if isinstance(head, dict) else head
            raise WireError(
                f"it speaks version {plain(reprlib.repr(given), 60)} of the format, not {VERSION}"
            )
        return cls(head, tensors)


def task_parcel(task: Task, module: nn.Module, masks: bool, transport: Transport) -> Parcel:
    """What a device gets: its cut's units and values, what to do, and nothing of the rest.

    ``masks``: send the masks of single weights; else the device draws them again.
    """
    packed = pack(task.cut, task.tensors, masks)
    values, scales = halved(packed.values) if transport == "half" else (dict(packed.values), {})
    local = {_LOCAL + n: task.cut.part(n, t).contiguous() for n, t in local_of(module).items()}
    tensors = dict(replace(packed, values=values).named()) | local
    tensors |= {_SCALES + n: t.clone() for n, t in task.scales.items()}
    head = {
        "assignment": asdict(task.assignment),
        "units": _units(task.cut),
        "drawn": isinstance(task.cut, CoordinateCut) and bool(task.cut.masks) and not masks,
        "work": _work(task.work),
        "step_rule": task.step_rule is not None,
        "classes": None if task.classes is None else task.classes.tolist(),
        "halved": scales if transport == "half" else None,
    }
    return Parcel(head, tensors)


def _units(cut: Cut) -> dict[str, list[list[int]]] | None:
    if isinstance(cut, PlannedCut):
        cut = cut.like or cut  # a device needs the shapes alone
    if isinstance(cut, UnitCut):
        return {axis: runs(kept) for axis, kept in cut.units.items()}
    return None if isinstance(cut, CoordinateCut) and cut.masks else {}


def _work(work: LocalWork) -> dict[str, Any]:
    """What a client is to do; optimisers of other people's code are made on the device."""
    head = {f.name: getattr(work, f.name) for f in fields(work) if f.name != "optimiser"}
    optimiser = asdict(work.optimiser) if isinstance(work.optimiser, Sgd) else None
    return {**head, "optimiser": optimiser}


@dataclass(frozen=True)
class _Work:
    """How `_work` says it: as `LocalWork`, the optimiser by its numbers or as configured."""

    lr: float
    epochs: int | None
    steps: int | None
    batch_size: int | None
    drop_last: bool
    clip: float | None
    precision: Precision
    optimiser: Sgd | None

    def local(self, configured: Optimiser) -> LocalWork:
        """The work of a client whose run has configured this optimiser."""
        others = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "optimiser"}
        return LocalWork(**others, optimiser=self.optimiser or configured)


@dataclass(frozen=True)
class _TaskHead:
    """What `task_parcel` says beside the tensors."""

    assignment: Assignment
    units: dict[str, list[tuple[int, int]]] | None
    drawn: bool
    work: _Work
    step_rule: bool  # whether steps follow that of the scheme, which the device has too
    classes: list[Annotated[int, Field(ge=0, lt=1 << 53)]] | None
    halved: dict[str, FiniteFloat] | None


def read_task(parcel: Parcel, setup: Setup) -> Task:
    """The task of a parcel, for a setup whose module may be a skeleton; raises `WireError`."""
    head = read_as(_TaskHead, parcel.head)
    known = setup.federation.dataset.classes
    if head.classes is not None and max(head.classes, default=0) >= (known or 0):
        raise WireError(f"class {max(head.classes, default=0)} is none of the {known} of the run")
    classes = None if head.classes is None else np.asarray(head.classes, dtype=np.int64)
    packed = Packed.from_named(parcel.tensors)
    shapes = {n: tuple(t.shape) for n, t in setup.module.state_dict().items()}
    wanted = tensors_of(setup.module).keys()
    if wrong := sorted(wanted ^ packed.values.keys()) or sorted(packed.masks.keys() - wanted):
        raise WireError(f"tensors do not match: {plain(wrong[0], 100)!r} is missing or unknown")
    if head.halved is not None:
        packed = replace(packed, values=restored(packed.values, head.halved))
    cut: Cut | None = None
    try:
        if head.units is not None:
            cut = UnitCut(setup.axes, {a: _units_of(setup, a, r) for a, r in head.units.items()})
        elif head.drawn:
            cut = cut_of(setup, head.assignment, classes)
        cut, tensors = unpack(packed, shapes, cut)
    except PlanError as error:
        raise WireError(error) from None
    scales, local = _part(parcel, _SCALES), _part(parcel, _LOCAL)
    whole = {n: tuple(t.shape) for n, t in local_of(setup.module).items()} | shapes
    for name, tensor in (*tensors.items(), *local.items(), *scales.items()):
        held = cut.shape(name, whole[name]) if name in whole else None
        fits = tensor.shape == held or (name in scales and held and _spreads(tensor.shape, held))
        if not fits:
            raise WireError(
                f"{plain(name, 100)} has shape {plain(tuple(tensor.shape), 60)}, "
                "which does not fit the cut"
            )
    rule = step_rule(setup.scheme, head.assignment.capacity) if head.step_rule else None
    if head.step_rule and rule is None:
        raise WireError("its steps follow a rule that the scheme of the run does not have")
    return Task(
        head.assignment,
        cut,
        tensors,
        head.work.local(setup.work.optimiser),
        classes,
        scales,
        rule,
        local,
    )


def _spreads(shape: Sequence[int], over: Sequence[int]) -> bool:
    """Whether a tensor of a shape can multiply one of another."""
    pairs = zip(reversed(shape), reversed(over), strict=False)
    return len(shape) <= len(over) and all(a in (1, b) for a, b in pairs)


def _units_of(setup: Setup, axis: str, pairs: list[tuple[int, int]]) -> Indices:
    if axis not in setup.axes.sizes:
        raise PlanError(f"no axis {plain(axis, 60)!r} in the model")
    return read_runs(pairs, setup.axes.sizes[axis], axis)


def _part(parcel: Parcel, start: str) -> dict[str, Tensor]:
    return {n.removeprefix(start): t for n, t in parcel.tensors.items() if n.startswith(start)}


def update_parcel(update: Update, task: Task, transport: Transport) -> Parcel:
    """What a device sends back for ``task``, as it received it."""
    values: Tensors = update.tensors
    scales: dict[str, float] = {}
    if transport == "half":
        values = {n: t - task.tensors[n].to(t) for n, t in values.items()}
    packed = pack(task.cut, values)
    if transport == "half":
        small, scales = halved(packed.values)
        packed = replace(packed, values=small)
    head = {
        "assignment": asdict(update.assignment),
        "examples": update.examples,
        "processed": update.processed,
        "loss": update.loss if math.isfinite(update.loss) else None,
        "counted": update.counted,
        "passes": list(update.passes),
        "halved": scales if transport == "half" else None,
    }
    return Parcel(head, dict(packed.named()))


@dataclass(frozen=True)
class _Answered:
    """The assignment that an update says it is for."""

    round: Number
    client: Number
    capacity: float
    place: Number = 0


@dataclass(frozen=True)
class _UpdateHead:
    """What `update_parcel` says beside the tensors."""

    assignment: _Answered
    examples: Count
    processed: Count
    loss: FiniteFloat | None
    counted: Annotated[FiniteFloat, Field(ge=0, lt=1 << 53)] | None
    passes: tuple[tuple[Annotated[float, Field(gt=0, le=1)], Count], ...]
    halved: dict[str, FiniteFloat] | None


@dataclass(frozen=True)
class Spent:
    """What a device says that an answer took."""

    training: Amount | None = None
    peak_memory: Amount | None = None


def update_limits(task: Task, transport: Transport) -> Limits:
    """What an answer to a task may have: the values of its cut, and a head that names them.

    >>> cut = CoordinateCut({"w": torch.arange(9) < 5})
    >>> task = Task(Assignment(0, 0, 1), cut, {"w": torch.ones(9)}, LocalWork(0.1), None)
    >>> limits = update_limits(task, "half")
    >>> limits.whole - limits.head
    10
    """
    size = 0
    for name, tensor in task.tensors.items():
        mask = task.cut.mask(name)
        held = tensor.numel() if mask is None else int(mask.sum())
        size += held * element_size(tensor, transport)
    return Limits.of(size, task.tensors, _widths(task))


def _widths(task: Task) -> int:
    """How many widths the passes of an update may have."""
    return 0 if task.step_rule is None else len(task.step_rule.widths)


def moments_limits(task: Task) -> Limits:
    """What norm statistics may have: count, mean and variance as float64, for any 1-d tensor."""
    return Limits.of(sum(24 * t.numel() for t in task.tensors.values() if t.dim() == 1))


def read_update(parcel: Parcel, task: Task) -> Update:
    """The update of a parcel, if it answers just this task; raises `WireError` if not."""
    head = read_as(_UpdateHead, parcel.head)
    given = head.assignment
    if Assignment(**asdict(given)) != task.assignment:
        raise WireError(f"it answers for round {given.round + 1}, client {given.client}")
    if head.loss is None:
        raise WireError("its loss is not finite")
    if len(head.passes) > _widths(task):
        raise WireError(f"it tells of {len(head.passes):,} widths; {_widths(task)} were asked")
    tensors = _values(parcel, task, head.halved)
    counts = head.examples, head.processed
    return Update(task.assignment, task.cut, tensors, *counts, head.loss, head.passes, head.counted)


def _values(parcel: Parcel, task: Task, scales: Mapping[str, float] | None) -> dict[str, Tensor]:
    """The tensors of an update in the task's shapes and types."""
    packed = Packed.from_named(parcel.tensors)
    expected = pack(task.cut, task.tensors).values
    if missing := sorted(expected.keys() ^ packed.values.keys()):
        raise WireError(f"tensors do not match: {plain(missing[0], 100)!r} is missing or unknown")
    values = dict(packed.values)
    if scales is not None:
        values = restored(values, scales)
    for name, wanted in expected.items():
        value = values[name]
        if value.shape != wanted.shape:
            raise WireError(
                f"{name} has shape {plain(tuple(value.shape), 60)}, which does not fit the cut: "
                f"{tuple(wanted.shape)}"
            )
        if scales is None and value.dtype != wanted.dtype:
            raise WireError(f"{name} is of {value.dtype}, not {wanted.dtype}")
        if scales is not None:
            values[name] = (wanted.double() + value.double()).to(wanted.dtype)
    shapes = {name: tuple(tensor.shape) for name, tensor in task.tensors.items()}
    return unpack(Packed(values), shapes, task.cut)[1]


def moments_parcel(rows: Tensor) -> Parcel:
    """What static norms saw of a device's examples."""
    return Parcel({}, {"rows": rows})


def read_moments(parcel: Parcel, columns: int) -> Tensor:
    """The rows of a parcel; raises `WireError` if they cannot be statistics."""
    rows = parcel.tensors.get("rows")
    if rows is None or rows.dtype != torch.float64 or rows.dim() != 2 or rows.shape[1] != columns:
        raise WireError("it holds no statistics of this model")
    if not bool(torch.isfinite(rows).all()) or bool((rows[:, 0] <= 0).any()):
        raise WireError("its statistics are not finite")
    return rows
