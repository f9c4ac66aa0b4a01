"""Run over real devices: the same setup, with clients on other machines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from submodel.algorithm.types import Assignment, Failure, Model, Present, Setup, Task
from submodel.config import Config
from submodel.config.objective import settle
from submodel.core.errors import SubmodelError, plain, refuse
from submodel.data import Dataset, Examples
from submodel.engines.single_examples import SingleExampleCheck
from submodel.federation.channel import Channel
from submodel.federation.device import Report
from submodel.federation.engine import DeviceEngine
from submodel.federation.facts import Facts, encoding_head, run_head
from submodel.federation.roster import Roster
from submodel.federation.wire import WireError, read_moments
from submodel.model.axes.declare import axes_fingerprint
from submodel.model.build import tensors_of
from submodel.model.cut import Cut, count_values, gather, prefix_cut
from submodel.model.norm import StaticBatchNorm
from submodel.runs.training import Training
from submodel.schemes.scheme import sends_masks

_log = logging.getLogger(__name__)


class DeviceClients:
    """Clients whose data stays on their devices; its sizes and labels are as reported."""

    def __init__(
        self, setup: Setup, roster: Roster, engine: DeviceEngine, least: int, most: int
    ) -> None:
        self._setup, self.roster, self._engine = setup, roster, engine
        self._least, self._most = least, most

    @property
    def dataset(self) -> Dataset:
        """Dataset of the server, for evaluation."""
        return self._setup.clients.dataset

    def size(self, client: int) -> int:
        """Return the number of examples that its device reported."""
        return self.roster.entry(client).report.examples

    def labels(self, client: int) -> NDArray[np.int64]:
        """Return the labels that its device reported."""
        return np.asarray(self.roster.entry(client).report.labels, dtype=np.int64)

    def present(self, round_: int | None) -> Present:
        """Wait for enough free clients, at least one of the round's group; return capacities."""
        self._engine.measurements()  # discard those of an abandoned round or of an evaluation
        free = self.roster.wait(self._least)
        while round_ is not None and not self._setup.population.sample(round_, set(free)):
            free = self.roster.wait(len(free) + 1)
        return {client: self.roster.entry(client).report.capacity for client in free}

    def indices(self, client: int) -> NDArray[np.int64]:
        """Raise `SubmodelError`: indices are on the device."""
        self._not_here(client)

    def examples(self, client: int) -> Examples:
        """Raise `SubmodelError`: examples are on the device."""
        self._not_here(client)

    def _not_here(self, client: int) -> NoReturn:
        raise SubmodelError(f"the examples of client {client} are on its own device")

    def moments(self, models: Sequence[Model]) -> list[Tensor | None]:
        """Return statistics of the static norms of models, measured on free devices.

        All requests are sent at once. Each model goes to the smallest devices that can hold it, up
        to the size of a round.
        """
        free = sorted(self.roster.free(), key=self._values)
        tasks, number = [], {}
        for i, (tensors, cut) in enumerate(models):
            able = [c for c in free if count_values(cut, tensors) <= self._values(c)][: self._most]
            values = gather(cut, tensors)
            for client in able:
                # the round identifies the model: a device may measure several
                task = Task(Assignment(i, client, 1.0), cut, values, self._setup.work, None)
                tasks.append(task)
            number[i] = len(able)
        rows: dict[int, list[Tensor]] = {i: [] for i in number}
        for task, reply in self._engine.ask(tasks, "moments") if tasks else ():
            i, client = task.assignment.round, task.assignment.client
            try:
                if isinstance(reply, Failure):
                    raise WireError(reply.reason)
                if "problem" in reply.head:
                    raise WireError(plain(reply.head["problem"]))
                rows[i].append(read_moments(reply, self._columns(task.cut)))
            except WireError as error:
                _log.warning("client %d sent no statistics: %s", client, error)
        for i, model_rows in rows.items():
            if not model_rows:
                _log.warning(
                    "no device measured the static norms of a model of %d values (%d can hold it): "
                    "using the server's own %d training examples",
                    count_values(models[i][1], models[i][0]), number[i], len(self.dataset.train),
                )  # fmt: skip
        return [torch.cat(parts) if parts else None for parts in rows.values()]

    def _columns(self, cut: Cut) -> int:
        layers = self._setup.module.named_modules()
        names = [f"{n}.weight" for n, layer in layers if isinstance(layer, StaticBatchNorm)]
        parameters = dict(self._setup.module.named_parameters())
        return sum(1 + 2 * cut.value_count(name, parameters[name].shape) for name in names)

    def _values(self, client: int) -> int:
        """Return the number of values that a client's device can hold."""
        setup = self._setup
        capacity = self.roster.entry(client).report.capacity
        if capacity is None:
            capacity = setup.population.capacity(client, 0)
        cut = prefix_cut(setup.axes, capacity, least=setup.least)
        return count_values(cut, tensors_of(setup.module))


def over_devices(
    training: Training,
    channel: Channel,
    file: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Training:
    """Return the training with devices as clients, and a checkpoint after every round.

    Args:
        training: training on this machine.
        channel: transport to the devices.
        file: file of the devices, so that a resumed run numbers them as before.
        clock: clock of timeouts and deadlines.
    """
    setup = training.setup
    data = setup.clients.dataset
    config = settle(training.config, data, is_plain=setup.absent_labels == "leave_out")
    problems = problems_over_devices(config)
    refuse(problems)
    head = run_head(config, Facts.of(data, setup.module))
    question = {**head, **encoding_head(data)}
    fingerprint, classes = axes_fingerprint(setup.axes), setup.clients.dataset.classes
    singles = SingleExampleCheck(setup)

    def accepts(report: Report) -> str:
        if report.axes != fingerprint:
            return "its axes of the model differ: check its versions of submodel and torch"
        if report.capacity is not None and report.capacity not in config.clients.capacities:
            return f"capacity {report.capacity:g} is not one of the run's"
        if report.part is not None and not 0 <= report.part < config.clients.client_count:
            return f"part {report.part}: the run has clients 0 to {config.clients.client_count - 1}"
        if config.local.absent_labels != "keep" and (
            not report.labels or max(report.labels) >= (classes or 0)
        ):
            return f"labels {plain(report.labels, 100)} are not those of {classes} classes"
        if config.local.absent_labels == "keep" and report.labels:
            return "it sent labels that were not requested"
        return singles.problem(report.examples, report.capacity) or ""

    roster = Roster(channel, question, accepts, config.clients.client_count, file, clock)
    masks, travel = sends_masks(setup.scheme), setup.travel
    engine = DeviceEngine(config, setup.module, masks, head, channel, roster, clock, travel)
    least = min(config.devices.least, config.clients.client_count)
    clients = DeviceClients(setup, roster, engine, least, config.clients.sample_size)
    setup = replace(setup, clients=clients)
    return replace(training, setup=setup, engine=engine, checkpoint_every=1)


def problems_over_devices(config: Config) -> list[str]:
    """Return the settings that do not work over devices, with reasons."""
    problems = []
    if config.model.name == "own":
        problems.append(
            "model.name: devices build the model themselves; give a built-in name or "
            "package.module:factory"
        )
    if config.scheme.name == "masked-sgd":
        problems.append("scheme.name: 'masked-sgd' trains on a single machine only")
    return problems
