"""What a device does: it says what it can hold, trains what it is sent, measures for the norms.

It never has the whole model: the module is made without values, its axes are found by shapes
alone, and memory is taken only for the sub-model that arrived.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from submodel.algorithm.clients import Model
from submodel.algorithm.evaluation import moments_of
from submodel.algorithm.types import Setup
from submodel.config import Config
from submodel.data import Dataset, Examples
from submodel.engines.device import own_device
from submodel.engines.serial import SerialEngine
from submodel.errors import ConfigError, PlanError, SubmodelError, plain
from submodel.federation.facts import Facts, briefed
from submodel.federation.memory import (
    COPIES,
    RUNNING,
    fitting,
    free_memory,
    offered,
    own_memory,
    peak_memory,
)
from submodel.federation.own_data import OwnData
from submodel.federation.wire import (
    Parcel,
    PositiveInteger,
    moments_parcel,
    read_as,
    read_task,
    update_parcel,
)
from submodel.model.axes import Axes
from submodel.model.axes.axes_json import axes_fingerprint, from_json, to_json
from submodel.model.build import build_module, fill_local, load, skeleton, tensors_of, to_device
from submodel.model.norm import pool_moments
from submodel.model.zoo import factorised
from submodel.prepare.setup import (
    assemble_setup,
    find_axes,
    make_module,
    make_scheme,
    only_cut_ranks,
)

_log = logging.getLogger(__name__)
Label = Annotated[int, Field(ge=0, lt=1 << 53)]


@dataclass(frozen=True)
class Means:
    """What its owner gives a device: data, and how much of the machine."""

    data: OwnData
    capacity: float | None = None
    memory: int | None = None
    name: str = ""


@dataclass(frozen=True)
class Report:
    """What a device says of itself."""

    name: str
    examples: PositiveInteger
    labels: tuple[Label, ...]  # that it has, if the run cuts the classifier by them
    capacity: float | None  # None: whatever the run's configuration gives this part
    part: int | None
    axes: str  # the fingerprint of the axes that it found

    def head(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def read(cls, head: Mapping[str, Any]) -> Report:
        """What `head` wrote; raises `WireError` for anything else."""
        found = read_as(cls, head)
        return replace(found, name=plain(found.name, 100), labels=tuple(sorted(set(found.labels))))


@dataclass(frozen=True)
class OwnFederation:
    """The federation as one device sees it: there is nobody but itself."""

    dataset: Dataset
    own: Examples

    def indices(self, client: int) -> NDArray[np.int64]:  # noqa: ARG002
        """All."""
        return np.arange(len(self.own))

    def size(self, client: int) -> int:  # noqa: ARG002
        """How many examples there are here."""
        return len(self.own)

    def examples(self, client: int) -> Examples:  # noqa: ARG002
        """The device's own."""
        return self.own

    def labels(self, client: int) -> NDArray[np.int64]:  # noqa: ARG002
        """Those of its examples."""
        return np.unique(self.own.y.numpy())

    def present(self, round_: int | None) -> None:
        """A device is not asked who else is there."""

    def moments(self, models: Sequence[Model]) -> list[Tensor | None]:
        """Taken from the own examples."""
        return [None for _ in models]


def empty_module(config: Config, facts: Facts) -> nn.Module:
    """The configured model without values; one that cannot be made so is made and emptied."""

    def made() -> nn.Module:
        module = make_module(config, facts.inputs, facts.classes)
        if facts.example.is_floating_point():
            module = module.to(facts.example.dtype)
        return factorised(module, config.model.rank_share) if config.model.factorised else module

    try:
        with torch.device("meta"):
            return made()
    except (ConfigError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, ConfigError) and error.__cause__ is None:
            raise  # a mistake in the configuration, not code that needs values
        _log.warning("the model cannot be made without values (%s): made whole for a moment", error)
        return skeleton(made())


class Device:
    """Answers the messages of one run."""

    def __init__(self, head: Mapping[str, Any], means: Means, known: str | None = None) -> None:
        """``known``: what `found` said in an earlier process of the same run."""
        self.config, self.facts = briefed(head)
        self.means, self._known = means, known
        torch.set_num_threads(self.config.engine.threads)

    @cached_property
    def own(self) -> Examples:
        """The device's data."""
        return self.means.data.read(self.config, self.facts)

    @cached_property
    def setup(self) -> Setup:
        """The run as seen from here: a module without values, and only the own examples."""
        module = empty_module(self.config, self.facts)
        axes = self._kept_axes(module) or only_cut_ranks(
            self.config, module, find_axes(self.config, module, self.facts.dataset, None)
        )
        scheme = make_scheme(self.config, module, axes, self.facts.classes is not None)
        federation = OwnFederation(self.facts.dataset, self.own)
        return assemble_setup(self.config, module, axes, scheme, federation)

    @property
    def found(self) -> str:
        """The axes, for later processes: tracing a model without values loads torch's compiler."""
        return to_json(self.setup.axes)

    def _kept_axes(self, module: nn.Module) -> Axes | None:
        """Those found before, if they are of this model."""
        if self._known is None:
            return None
        try:
            axes = from_json(self._known)
        except PlanError as error:
            _log.warning("%s: looking for them again", error)
            return None
        found = {name: tuple(part.size for part in own) for name, own in axes.layouts.items()}
        fits = all(found.get(name) == tuple(t.shape) for name, t in tensors_of(module).items())
        return axes if fits else None

    def report(self) -> Parcel:
        """What this device can hold and has."""
        setup, means = self.setup, self.means
        capacity = None
        if means.capacity is not None:
            capacity = offered(self.config, means.capacity)
        elif means.memory is not None or means.data.part is None:
            capacity = self._fitting(setup)
        restricted = self.config.local.absent_labels != "keep"
        labels = tuple(setup.clients.labels(0).tolist()) if restricted else ()
        name = means.name or platform.node()
        part, axes = means.data.part, axes_fingerprint(setup.axes)
        return Parcel(Report(name, len(self.own), labels, capacity, part, axes).head(), {})

    def _fitting(self, setup: Setup) -> float:
        config, device = self.config, own_device(self.config.engine.device)
        held = beside = copies = 0
        if device.type == "cpu":  # a GPU has neither torch nor messages in its memory
            held, beside = own_memory(), RUNNING
            decays = getattr(setup.work.optimiser, "weight_decay", 1.0) > 0
            copies = COPIES + decays  # a gradient with its decay
            copies += 2 * (config.devices.transport == "half")  # changes, and those made smaller
        memory = self.means.memory or held + free_memory(device)
        return fitting(config, setup.module, setup.axes, self.facts, memory, held + beside, copies)

    def train(self, parcel: Parcel) -> Parcel:
        """The update for a task."""
        task = read_task(parcel, self.setup)
        engine = SerialEngine(self.setup, own_device(self.config.engine.device))
        started = time.monotonic()
        (update,) = engine.run([task])
        took = {"training": round(time.monotonic() - started, 3), "peak_memory": peak_memory()}
        reply = update_parcel(update, task, self.config.devices.transport)
        return replace(reply, head={**reply.head, **took})

    def measure(self, parcel: Parcel) -> Parcel:
        """What the static norms of a sub-model see of the own examples."""
        task = read_task(parcel, self.setup)
        device = own_device(self.config.engine.device)
        module = to_device(build_module(self.setup.module, task.cut), device)
        load(module, {n: t.to(device) for n, t in task.tensors.items()})
        fill_local(module, task.local or {})
        rows = moments_of(module, self.own.x)
        return moments_parcel(pool_moments(module, rows).cpu())

    def answer(self, kind: str, parcel: Parcel) -> Parcel:
        """The answer to a message of some kind; a problem is answered as a sentence."""
        try:
            if kind == "report":
                return self.report()
            return self.train(parcel) if kind == "train" else self.measure(parcel)
        except SubmodelError as error:
            return Parcel({"problem": plain(error)}, {})
