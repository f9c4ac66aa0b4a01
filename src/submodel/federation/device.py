"""Work of a device: report its capacity, train a sub-model, measure statistics of norms.

The device never holds the whole model: it builds the module without values, finds the axes by
shapes alone, and allocates memory only for the received sub-model.
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
from submodel.config.checks import cross_entropy_options
from submodel.config.model_facts import identify, logits_of, select_outputs
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
from submodel.federation.facts import Facts, keep_encoding, read_run_head, receive_encoding
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
    Message,
    ModelBase,
    PositiveInteger,
    moments_message,
    read_as,
    read_base,
    read_task,
    update_message,
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
class DeviceOptions:
    """Options of a device, set by its owner: data, and limits of the machine."""

    data: OwnData
    capacity: float | None = None
    memory: int | None = None
    name: str = ""


@dataclass(frozen=True)
class Report:
    """Report of a device on itself."""

    name: str
    examples: PositiveInteger
    labels: tuple[Label, ...]  # present labels, if the run cuts the classifier by them
    capacity: float | None  # None: as the run's configuration gives this part
    part: int | None
    axes: str  # fingerprint of its axes
    base: str | None = None  # digest of the base kept from earlier tasks

    def head(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return asdict(self)

    @classmethod
    def read(cls, head: Mapping[str, Any]) -> Report:
        """Read the values of `head`; raise `WireError` for anything else."""
        report = read_as(cls, head)
        labels = tuple(sorted(set(report.labels)))
        return replace(report, name=plain(report.name, 100), labels=labels)


@dataclass(frozen=True)
class SingleClient:
    """Clients as seen from one device: its own data only."""

    dataset: Dataset
    device_examples: Examples

    def indices(self, client: int) -> NDArray[np.int64]:  # noqa: ARG002
        """Return all indices."""
        return np.arange(len(self.device_examples))

    def size(self, client: int) -> int:  # noqa: ARG002
        """Return the number of examples."""
        return len(self.device_examples)

    def examples(self, client: int) -> Examples:  # noqa: ARG002
        """Return the device's examples."""
        return self.device_examples

    def labels(self, client: int) -> NDArray[np.int64]:  # noqa: ARG002
        """Return the labels of the device's examples."""
        return np.unique(self.device_examples.y.numpy())

    def present(self, round_: int | None) -> None:
        """Return None: a device does not know other clients."""

    def moments(self, models: Sequence[Model]) -> list[Tensor | None]:
        """Return None for every model: statistics come from the own examples."""
        return [None for _ in models]


def whole_module(config: Config, facts: Facts) -> nn.Module:
    """Build the configured model, as the server does."""
    module = make_module(config, facts.model_context)
    if (example := first_column(facts.example)).is_floating_point():
        module = module.to(example.dtype)
    if facts.selects_logits:
        module = select_outputs(module, logits_of)
    return as_low_rank(config, module)


def empty_module(config: Config, facts: Facts) -> nn.Module:
    """Build the configured model without values; via one with values if that fails."""
    try:
        with torch.device("meta"), Shapes():
            return whole_module(config, facts)
    except (ConfigError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, ConfigError) and error.__cause__ is None:
            raise  # a mistake in the configuration, not code that needs values
        _log.warning(
            "the model cannot be built without values (%s): built whole for a moment", error
        )
        return skeleton(whole_module(config, facts))


class Device:
    """Device of one run; answers its messages."""

    def __init__(
        self,
        head: Mapping[str, Any],
        options: DeviceOptions,
        earlier_axes: str | None = None,
        base: ModelBase | None = None,
    ) -> None:
        """Create a device; ``earlier_axes`` and ``base`` come from the last process."""
        self.config, self.facts = read_run_head(head)
        self.base = base  # for the next process of the run
        self._head = {key: head[key] for key in ("encoding",) if key in head}
        keep_encoding(self._head, self.facts.encoding)
        self.options, self._earlier_axes = options, earlier_axes
        torch.set_num_threads(self.config.engine.threads)

    @cached_property
    def examples(self) -> Examples:
        """Data of the device, read on first use."""
        receive = partial(receive_encoding, self._head, self.facts.encoding)
        return self.options.data.read(self.config, self.facts, receive)

    @cached_property
    def setup(self) -> Setup:
        """Setup of the run with a module without values and only this device's examples."""
        module = empty_module(self.config, self.facts)
        axes = self._read_earlier_axes(module) or self._find_axes(module)
        data = self.facts.dataset
        task = make_task(self.config, data)
        is_plain = data.classes is not None and not cross_entropy_options(task.loss, data)
        scheme = make_scheme(self.config, module, axes, is_plain)
        clients = SingleClient(data, self.examples)
        return assemble_setup(self.config, module, axes, scheme, clients, task)

    def _find_axes(self, module: nn.Module) -> Axes:
        """Find the axes by shapes alone, or with values if the forward pass needs them.

        Models of Hugging Face read the values of their masks.
        """
        data = self.facts.dataset
        built_in = identify(self.config, module, data, self.facts.model_context)
        try:
            axes = find_axes(self.config, module, data, None, built_in)
        except ForwardError as error:
            why = plain(error, 200)
            _log.warning("the model does not run without values (%s): built whole for a while", why)
            data = replace(data, train=self.examples)
            axes = find_axes(self.config, self._module_with_values, data, None, None)
        return only_cut_ranks(self.config, module, axes)

    @cached_property
    def _module_with_values(self) -> nn.Module:
        return whole_module(self.config, self.facts)

    @property
    def axes_json(self) -> str:
        """Axes for later processes; tracing a model without values loads torch's compiler."""
        return to_json(self.setup.axes)

    def _read_earlier_axes(self, module: nn.Module) -> Axes | None:
        """Return the axes of an earlier process if they fit this model, else None."""
        if self._earlier_axes is None:
            return None
        try:
            axes = from_json(self._earlier_axes)
        except PlanError as error:
            _log.warning("%s: finding the axes again", error)
            return None
        shapes = {name: tuple(part.size for part in dims) for name, dims in axes.layouts.items()}
        fits = all(shapes.get(name) == tuple(t.shape) for name, t in tensors_of(module).items())
        return axes if fits else None

    def report(self) -> Message:
        """Return the report on this device's capacity and data."""
        setup, options = self.setup, self.options
        capacity = None
        if options.capacity is not None:
            capacity = offered_capacity(self.config, options.capacity)
        elif options.memory is not None or options.data.part is None:
            capacity = self._fitting_capacity(setup)
        sends_labels = self.config.local.absent_labels != "keep"
        labels = tuple(setup.clients.labels(0).tolist()) if sends_labels else ()
        name = options.name or platform.node()
        part, axes = options.data.part, axes_fingerprint(setup.axes)
        base = None if self.base is None else self.base.digest
        report = Report(name, len(self.examples), labels, capacity, part, axes, base)
        return Message(report.head(), {})

    def _fitting_capacity(self, setup: Setup) -> float:
        """Return the largest capacity that trains in the given memory, or in the free memory."""
        config, device = self.config, own_device(self.config.engine.device)
        process_bytes = running_bytes = copies = 0
        if device.type == "cpu":  # GPU memory holds neither torch nor messages
            process_bytes, running_bytes = own_memory(), RUNTIME_BYTES
            decays = getattr(setup.work.optimiser, "weight_decay", 1.0) > 0
            copies = COPIES + decays  # a gradient with its decay
            copies += 2 * (
                config.devices.transport == "half"
            )  # the changes, and their float16 copies
        memory = self.options.memory or process_bytes + free_memory(device)
        taken_bytes = process_bytes + running_bytes
        example = self.facts.example
        if "_module_with_values" in vars(self):  # the model does not run without values
            setup, example = replace(setup, module=self._module_with_values), self.examples.x
        return fitting_capacity(config, setup, example, memory, taken_bytes, copies)

    def _task(self, message: Message) -> Task:
        """Read the task of a message; keep a base that it carries."""
        self.base = read_base(message, self.base)
        return read_task(message, self.setup, self.base)

    def train(self, message: Message) -> Message:
        """Train on a task and return the update."""
        task = self._task(message)
        engine = SerialEngine(self.setup, own_device(self.config.engine.device))
        start = time.monotonic()
        (update,) = engine.run([task])
        cost = {"training": round(time.monotonic() - start, 3), "peak_memory": peak_memory()}
        reply = update_message(update, task, self.config.devices.transport)
        return replace(reply, head={**reply.head, **cost})

    def measure(self, message: Message) -> Message:
        """Return statistics of the static norms of a sub-model on this device's examples."""
        task = self._task(message)
        device = own_device(self.config.engine.device)
        module = to_device(build_module(self.setup.module, task.cut), device)
        load(module, {n: t.to(device) for n, t in task.tensors.items()})
        fill_local(module, task.local or {})
        rows = moments_of(module, self.examples.x)
        return moments_message(pool_moments(module, rows).cpu())

    def answer(self, kind: str, message: Message) -> Message:
        """Return the answer to a message; an error becomes a ``problem`` with its text."""
        try:
            if kind == "report":
                return self.report()
            return self.train(message) if kind == "train" else self.measure(message)
        except SubmodelError as error:
            return Message({"problem": plain(error)}, {})
