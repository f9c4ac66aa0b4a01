"""What travels between a server and its devices: one file per message, a head and some tensors.

A message is a safetensors file whose metadata holds the head as JSON. Nothing is unpickled, and a
reader in another language needs no more than those two formats. Of each kind of message there is
what is written, what is read, and how large it may be.

A task carries the units that the device holds and their values, and names by its digest the base
that it is for: what is never trained nor cut, which a device gets once and keeps. The first task
that a device gets carries its values, too, each to the bit. An update is what became of the values
of a task, moments are what the static norms of a sub-model saw of a device's examples. In ``half``
transport values travel as float16, and an update is the *change*, which the server adds to its own
exact values: what a device did not move keeps its bits.
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
_HEAD_ROOM, _LINE_ROOM = 1 << 14, 512  # bytes of any head, and of each of its lines

_T = TypeVar("_T")
# Integers that every reader of JSON takes exactly.
PositiveInteger = Annotated[int, Field(gt=0, lt=1 << 53)]
ExactInteger = Annotated[int, Field(gt=-1 << 53, lt=1 << 53)]


class WireError(SubmodelError):
    """A message that cannot be read, or says what it must not; its text can always be shown."""

    def __init__(self, text: object) -> None:
        super().__init__(plain(text))


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def read_as(kind: type[_T], values: object) -> _T:
    """Values that a stranger sent as a dataclass; raises `WireError` if they cannot be one.

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
            version = head.get("version") if isinstance(head, dict) else head
            raise WireError(
                f"it speaks version {plain(reprlib.repr(version), 60)} of the format, not {VERSION}"
            )
        return cls(head, tensors)


_START = "base/"


@dataclass(frozen=True)
class ModelBase:
    """Tensors that stay the same over a run, and what they are known by."""

    digest: str
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> ModelBase:
        """The base of these tensors.

        >>> import torch
        >>> ModelBase.of({"w": torch.zeros(1)}).digest[:8]
        '94733083'
        """
        return cls(model_sha256(tensors), dict(tensors))

    def to_tensors(self) -> dict[str, Tensor]:
        """As they travel, among the other tensors of a task."""
        return {_START + name: tensor for name, tensor in self.tensors.items()}


_SCALES, _LOCAL = "scales/", "local/"


def task_parcel(
    task: Task,
    module: nn.Module,
    masks: bool,
    transport: Transport,
    base: ModelBase | None = None,
    sends_base: bool = False,
) -> Parcel:
    """What a device gets: its cut's units and values, what to do, and nothing of the rest.

    ``masks``: send the masks of single weights; else the device draws them again. Of a ``base``
    only the digest goes, or, with ``sends_base``, all values.
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
    return Parcel(head, tensors)


def _unit_runs(cut: Cut) -> dict[str, list[list[int]]] | None:
    """The units of every axis as runs of numbers; None: masks say what is held."""
    if isinstance(cut, PlannedCut):
        cut = cut.like or cut  # a device needs the shapes alone
    if isinstance(cut, UnitCut):
        return {axis: runs(units) for axis, units in cut.units.items()}
    return None if isinstance(cut, CoordinateCut) and cut.masks else {}


_AS_CONFIGURED = ("optimiser", "pieces", "rates")
"""Of the work: the device has the configuration."""


def _work_values(work: LocalWork) -> dict[str, Any]:
    """What a client is to do; optimisers of other people's code are made on the device."""
    head = {f.name: getattr(work, f.name) for f in fields(work) if f.name not in _AS_CONFIGURED}
    optimiser = asdict(work.optimiser) if isinstance(work.optimiser, Sgd) else None
    return {**head, "optimiser": optimiser}


@dataclass(frozen=True)
class _WorkHead:
    """What `_work_values` says: `LocalWork`, the optimiser by its numbers, None: as configured."""

    lr: float
    epochs: int | None
    steps: int | None
    batch_size: int | None
    drop_last: bool
    clip: float | None
    precision: Precision
    optimiser: Sgd | None

    def local_work(self, work: LocalWork) -> LocalWork:
        """The work of a client; what the task does not name is that of the run."""
        others = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "optimiser"}
        return replace(work, **others, optimiser=self.optimiser or work.optimiser)


@dataclass(frozen=True)
class _TaskHead:
    """What `task_parcel` says beside the tensors; the names are those of the format."""

    assignment: Assignment
    units: dict[str, list[tuple[int, int]]] | None
    drawn: bool  # whether the device draws the masks itself
    work: _WorkHead
    step_rule: bool  # whether steps follow that of the scheme, which the device has too
    classes: list[Annotated[int, Field(ge=0, lt=1 << 53)]] | None
    halved: dict[str, FiniteFloat] | None  # scales of the values; None: they are exact
    base: str | None = None  # the digest of what the device has, or gets here for good


def read_base(parcel: Parcel, earlier: ModelBase | None) -> ModelBase | None:
    """The base that a task is for: the one that it carries, or ``earlier``, which the device has.

    None: the run has none. Raises `WireError` where it is not here.
    """
    digest = read_as(_BaseHead, parcel.head).base
    if digest is None:
        return None
    tensors = _part(parcel, _START)
    base = ModelBase.of(tensors) if tensors else earlier
    if base is None or base.digest != digest:
        what = "is another one" if base is not None else "is not here"
        raise WireError(f"the base {plain(digest, 16)} of the model {what}: it must be sent again")
    return base


@dataclass(frozen=True)
class _BaseHead:
    base: str | None = None


def read_task(parcel: Parcel, setup: Setup, base: ModelBase | None = None) -> Task:
    """The task of a parcel, for a setup whose module may be a skeleton; raises `WireError`.

    ``base``: as `read_base` gives it.
    """
    head = read_as(_TaskHead, parcel.head)
    base_tensors = base.tensors if base else {}
    if odd := sorted(setup.travel.base_names ^ base_tensors.keys()):
        raise WireError(f"the base of the model lacks, or should not have, {plain(odd[0], 100)!r}")
    class_count = setup.clients.dataset.classes
    if head.classes is not None and max(head.classes, default=0) >= (class_count or 0):
        largest = max(head.classes, default=0)
        raise WireError(f"class {largest} is none of the {class_count} of the run")
    classes = None if head.classes is None else np.asarray(head.classes, dtype=np.int64)
    cut, values = _cut_and_values(parcel, head, setup, classes)
    tensors = {n: (base_tensors if n in base_tensors else values)[n]
               for n in tensors_of(setup.module)}  # fmt: skip
    scales, local = _part(parcel, _SCALES), _part(parcel, _LOCAL)
    _check_shapes(setup, cut, tensors, local, scales)
    rule = setup.scheme.step_rule(head.assignment.capacity) if head.step_rule else None
    if head.step_rule and rule is None:
        raise WireError("its steps follow a rule that the scheme of the run does not have")
    work = head.work.local_work(setup.work)
    return Task(head.assignment, cut, tensors, work, classes, scales, rule, local)


def _cut_and_values(
    parcel: Parcel, head: _TaskHead, setup: Setup, classes: NDArray[np.int64] | None
) -> tuple[Cut, dict[str, Tensor]]:
    """The cut of a task, read or drawn again, and the values of the sub-model in its shapes."""
    package = PackedTensors.from_tensors(parcel.tensors)
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


def _part(parcel: Parcel, start: str) -> dict[str, Tensor]:
    """The tensors whose names start so, by the rest of their names."""
    return {n.removeprefix(start): t for n, t in parcel.tensors.items() if n.startswith(start)}


def _check_shapes(
    setup: Setup,
    cut: Cut,
    tensors: Mapping[str, Tensor],
    local: Mapping[str, Tensor],
    scales: Mapping[str, Tensor],
) -> None:
    """Refuse a tensor whose shape is not what the cut leaves of the model's."""
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
    """Whether a tensor of a shape can multiply one of another."""
    pairs = zip(reversed(shape), reversed(over), strict=False)
    return len(shape) <= len(over) and all(a in (1, b) for a, b in pairs)


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
