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
from functools import cached_property, partial
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from submodel.algorithm.evaluation import moments_of
from submodel.algorithm.types import Model, Setup, Task
from submodel.config import Config
from submodel.config.findings import identify, logits_of, select_outputs
from submodel.config.fit import cross_entropy_options
from submodel.config.objective import make_task
from submodel.config.parts import (
    as_low_rank,
    assemble_setup,
    find_axes,
    make_module,
    make_scheme,
    only_cut_ranks,
)
from submodel.core.errors import ConfigError, PlanError, SubmodelError, plain
from submodel.data import Dataset, Examples
from submodel.engines.device import own_device
from submodel.engines.serial import SerialEngine
from submodel.federation.facts import Facts, keep_encoding, read_briefing, receive_encoding
from submodel.federation.memory import (
    COPIES,
    RUNTIME_BYTES,
    fitting_capacity,
    free_memory,
    offered_capacity,
    own_memory,
    peak_memory,
)
from submodel.federation.own_data import OwnData
from submodel.federation.wire import (
    ModelBase,
    Parcel,
    PositiveInteger,
    moments_parcel,
    read_as,
    read_base,
    read_task,
    update_parcel,
)
from submodel.model.axes import Axes
from submodel.model.axes.declare import axes_fingerprint, from_json, to_json
from submodel.model.axes.forward import ForwardError
from submodel.model.build import build_module, fill_local, load, skeleton, tensors_of, to_device
from submodel.model.inputs import first_column
from submodel.model.meta import Shapes
from submodel.model.norm import pool_moments

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
    base: str | None = None  # the digest of the base that it has from earlier tasks

    def head(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def read(cls, head: Mapping[str, Any]) -> Report:
        """What `head` wrote; raises `WireError` for anything else."""
        report = read_as(cls, head)
        labels = tuple(sorted(set(report.labels)))
        return replace(report, name=plain(report.name, 100), labels=labels)


@dataclass(frozen=True)
class LoneClient:
    """The clients as one device sees them: there is nobody but itself."""

    dataset: Dataset
    device_examples: Examples

    def indices(self, client: int) -> NDArray[np.int64]:  # noqa: ARG002
        """All."""
        return np.arange(len(self.device_examples))

    def size(self, client: int) -> int:  # noqa: ARG002
        """How many examples there are here."""
        return len(self.device_examples)

    def examples(self, client: int) -> Examples:  # noqa: ARG002
        """The device's own."""
        return self.device_examples

    def labels(self, client: int) -> NDArray[np.int64]:  # noqa: ARG002
        """Those of its examples."""
        return np.unique(self.device_examples.y.numpy())

    def present(self, round_: int | None) -> None:
        """A device is not asked who else is there."""

    def moments(self, models: Sequence[Model]) -> list[Tensor | None]:
        """Taken from the own examples."""
        return [None for _ in models]


def whole_module(config: Config, facts: Facts) -> nn.Module:
    """The configured model, as the server makes it."""
    module = make_module(config, facts.model_context)
    if (example := first_column(facts.example)).is_floating_point():
        module = module.to(example.dtype)
    if facts.selects_logits:
        module = select_outputs(module, logits_of)
    return as_low_rank(config, module)


def empty_module(config: Config, facts: Facts) -> nn.Module:
    """The configured model without values; one that cannot be made so is made and emptied."""
    try:
        with torch.device("meta"), Shapes():
            return whole_module(config, facts)
    except (ConfigError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, ConfigError) and error.__cause__ is None:
            raise  # a mistake in the configuration, not code that needs values
        _log.warning("the model cannot be made without values (%s): made whole for a moment", error)
        return skeleton(whole_module(config, facts))


class Device:
    """Answers the messages of one run."""

    def __init__(
        self,
        head: Mapping[str, Any],
        means: Means,
        earlier_axes: str | None = None,
        base: ModelBase | None = None,
    ) -> None:
        """``earlier_axes``, ``base``: what `axes_json` and `base` were in an earlier process."""
        self.config, self.facts = read_briefing(head)
        self.base = base  # for the next process of the run
        self._head = {key: head[key] for key in ("encoding",) if key in head}
        keep_encoding(self._head, self.facts.encoding)
        self.means, self._earlier_axes = means, earlier_axes
        torch.set_num_threads(self.config.engine.threads)

    @cached_property
    def examples(self) -> Examples:
        """The device's data."""
        receive = partial(receive_encoding, self._head, self.facts.encoding)
        return self.means.data.read(self.config, self.facts, receive)

    @cached_property
    def setup(self) -> Setup:
        """The run as seen from here: a module without values, and only this device's examples."""
        module = empty_module(self.config, self.facts)
        axes = self._read_earlier_axes(module) or self._find_axes(module)
        data = self.facts.dataset
        task = make_task(self.config, data)
        is_plain = data.classes is not None and not cross_entropy_options(task.loss, data)
        scheme = make_scheme(self.config, module, axes, is_plain)
        clients = LoneClient(data, self.examples)
        return assemble_setup(self.config, module, axes, scheme, clients, task)

    def _find_axes(self, module: nn.Module) -> Axes:
        """The axes by shapes alone; of a forward that asks for values, by those of a whole model.

        Models of Hugging Face look at their masks.
        """
        data = self.facts.dataset
        built_in = identify(self.config, module, data, self.facts.model_context)
        try:
            axes = find_axes(self.config, module, data, None, built_in)
        except ForwardError as error:
            why = plain(error, 200)
            _log.warning("the model does not run without values (%s): made whole for a while", why)
            data = replace(data, train=self.examples)
            axes = find_axes(self.config, self._module_with_values, data, None, None)
        return only_cut_ranks(self.config, module, axes)

    @cached_property
    def _module_with_values(self) -> nn.Module:
        return whole_module(self.config, self.facts)

    @property
    def axes_json(self) -> str:
        """The axes, for later processes: tracing a model without values loads torch's compiler."""
        return to_json(self.setup.axes)

    def _read_earlier_axes(self, module: nn.Module) -> Axes | None:
        """Those that an earlier process found, if they are of this model."""
        if self._earlier_axes is None:
            return None
        try:
            axes = from_json(self._earlier_axes)
        except PlanError as error:
            _log.warning("%s: looking for them again", error)
            return None
        shapes = {name: tuple(part.size for part in dims) for name, dims in axes.layouts.items()}
        fits = all(shapes.get(name) == tuple(t.shape) for name, t in tensors_of(module).items())
        return axes if fits else None

    def report(self) -> Parcel:
        """What this device can hold and has."""
        setup, means = self.setup, self.means
        capacity = None
        if means.capacity is not None:
            capacity = offered_capacity(self.config, means.capacity)
        elif means.memory is not None or means.data.part is None:
            capacity = self._fitting_capacity(setup)
        tells_labels = self.config.local.absent_labels != "keep"
        labels = tuple(setup.clients.labels(0).tolist()) if tells_labels else ()
        name = means.name or platform.node()
        part, axes = means.data.part, axes_fingerprint(setup.axes)
        base = None if self.base is None else self.base.digest
        report = Report(name, len(self.examples), labels, capacity, part, axes, base)
        return Parcel(report.head(), {})

    def _fitting_capacity(self, setup: Setup) -> float:
        """The largest that trains in the memory that the owner gives, or that is free."""
        config, device = self.config, own_device(self.config.engine.device)
        process_bytes = running_bytes = copies = 0
        if device.type == "cpu":  # a GPU has neither torch nor messages in its memory
            process_bytes, running_bytes = own_memory(), RUNTIME_BYTES
            decays = getattr(setup.work.optimiser, "weight_decay", 1.0) > 0
            copies = COPIES + decays  # a gradient with its decay
            copies += 2 * (config.devices.transport == "half")  # changes, and those made smaller
        memory = self.means.memory or process_bytes + free_memory(device)
        taken_bytes = process_bytes + running_bytes
        example = self.facts.example
        if "_module_with_values" in vars(self):  # it does not run without them
            setup, example = replace(setup, module=self._module_with_values), self.examples.x
        return fitting_capacity(config, setup, example, memory, taken_bytes, copies)

    def _task(self, parcel: Parcel) -> Task:
        """The task of a message; a base that it carries stays here."""
        self.base = read_base(parcel, self.base)
        return read_task(parcel, self.setup, self.base)

    def train(self, parcel: Parcel) -> Parcel:
        """The update for a task."""
        task = self._task(parcel)
        engine = SerialEngine(self.setup, own_device(self.config.engine.device))
        start = time.monotonic()
        (update,) = engine.run([task])
        cost = {"training": round(time.monotonic() - start, 3), "peak_memory": peak_memory()}
        reply = update_parcel(update, task, self.config.devices.transport)
        return replace(reply, head={**reply.head, **cost})

    def measure(self, parcel: Parcel) -> Parcel:
        """What the static norms of a sub-model see of this device's examples."""
        task = self._task(parcel)
        device = own_device(self.config.engine.device)
        module = to_device(build_module(self.setup.module, task.cut), device)
        load(module, {n: t.to(device) for n, t in task.tensors.items()})
        fill_local(module, task.local or {})
        rows = moments_of(module, self.examples.x)
        return moments_parcel(pool_moments(module, rows).cpu())

    def answer(self, kind: str, parcel: Parcel) -> Parcel:
        """The answer to a message of some kind; a problem is answered as a sentence."""
        try:
            if kind == "report":
                return self.report()
            return self.train(parcel) if kind == "train" else self.measure(parcel)
        except SubmodelError as error:
            return Parcel({"problem": plain(error)}, {})
