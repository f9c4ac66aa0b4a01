"""A task on the wire: the units that a device holds, their values, and what to do with them.

In ``half`` transport values travel as float16. Every task names the base that it is for by its
digest: what is never trained nor cut, which a device gets once and keeps. The first task that a
device gets carries its values, too, each to the bit, in ``half`` transport as well: they are paid
for once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat
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
from submodel.algorithm.types import Assignment, Setup, Task
from submodel.errors import PlanError, plain
from submodel.federation.wire.parcel import Parcel, WireError, read_as
from submodel.local.optimisers import Sgd
from submodel.local.schedule import Precision
from submodel.local.training import LocalWork
from submodel.model.axes.layout import Indices
from submodel.model.build import local_of, tensors_of
from submodel.model.cut import CoordinateCut, Cut, PlannedCut, UnitCut, read_runs, runs
from submodel.runs.checkpoint import model_sha256

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
