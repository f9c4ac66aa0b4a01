"""Forecast of a run's time, memory, traffic and disk space."""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import torch
from torch import Tensor

from submodel.algorithm.dispatch import cut_of, knowledge_of
from submodel.algorithm.execution import Bundle
from submodel.algorithm.round_statistics import RoundStatistics
from submodel.algorithm.rounds import initial_state
from submodel.algorithm.types import Assignment, Setup, State
from submodel.core.errors import SubmodelError
from submodel.core.extras import MissingExtraError
from submodel.core.heap import give_back, large_blocks_apart
from submodel.engines.estimate import Estimate
from submodel.model.budget import Budget
from submodel.model.build import can_release
from submodel.model.cost import CostModel
from submodel.model.cut import Cut
from submodel.model.travel import size_in_bytes
from submodel.runs import checkpoint
from submodel.runs.callbacks.curves import draw_curves
from submodel.runs.forecast_trials import (
    RoundTimes,
    evaluation_keys,
    plans_of,
    time_evaluation,
    time_rounds,
)
from submodel.runs.metrics import Metrics, round_line
from submodel.runs.training import Training
from submodel.schemes.scheme import sends_masks
from submodel.tasks.optimisers import kept_copies

_SCORES = {"test_loss": 1.0, "test_accuracy": 0.5}
_NAMES = {"gather": "gathering", "merge": "merging"}
_EVALUATION, _MUCH = "evaluation", 0.25  # fraction of the time from which keys are suggested
_OTHERS = "planning and the rest"
_MOST_SAVED = 1 << 26  # bytes written to time a checkpoint
_CHECKPOINTS = 2  # checkpoints that a run keeps; there is a third while it is written
_CUTS = 1000  # cuts drawn to count their traffic


@dataclass(frozen=True)
class ByCapacity:
    """Traffic of one client of a capacity in a round."""

    capacity: float
    clients_per_round: float  # mean over rounds
    parameters: int
    bytes_down: float  # mean over some clients: clients without some labels may get less
    bytes_up: float


@dataclass(frozen=True)
class Quantities:
    """Bytes of a run.

    Args:
        by_capacity: traffic of single clients.
        bytes_down: bytes down in all rounds together.
        bytes_up: bytes up in all rounds together.
        bytes_once: additional bytes that a client gets before its first task.
        disk: size of the finished run's folder.
        disk_peak: its size while the last checkpoint is written.
        memory: peak memory of one process.
        memory_how: source of the estimate of memory.
    """

    by_capacity: Sequence[ByCapacity]
    bytes_down: float
    bytes_up: float
    bytes_once: int
    disk: int
    disk_peak: int
    memory: int
    memory_how: str


@dataclass(frozen=True)
class Phase:
    """A phase of a run: its total time and the source of the estimate."""

    name: str
    seconds: float
    how: str


@dataclass(frozen=True)
class Forecast:
    """Forecast of a run.

    Args:
        rounds: number of rounds.
        processes: number of processes that share the work.
        phases: phases with their times, in the order of a run.
        quantities: memory, traffic, disk.
        trial_seconds: duration of the trials.
        core_share: fraction of a core that the trials had: less than 1 beside other programs.
        evaluation_keys: keys that shorten evaluations, if these are a large part of the run.
    """

    rounds: int
    processes: int
    phases: Sequence[Phase]
    quantities: Quantities
    trial_seconds: float
    core_share: float
    evaluation_keys: Sequence[str] = ()

    @property
    def seconds(self) -> float:
        """Total time of the command."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def seconds_alone(self) -> float:
        """Total time without other programs on the same cores."""
        return self.seconds * self.core_share

    @property
    def evaluation_share(self) -> float:
        """Fraction of the time that evaluations take."""
        parts = [phase.seconds for phase in self.phases if phase.name == _EVALUATION]
        return sum(parts) / max(self.seconds, 1e-9)


def forecast(
    training: Training,
    processes: int = 1,
    where: Path | None = None,
    progress: Callable[[str], object] = str,
    patience: float = 1.0,
) -> Forecast:
    """Estimate the costs of a run from short trials, of which nothing is kept.

    Args:
        training: the training; the values of its module are consumed, as in a run.
        processes: number of processes that would share the run.
        where: folder of the run, which is not created; its disk is tried.
        progress: receives a line for every trial.
        patience: seconds of trials of rounds, and of evaluations; a step may take longer.
    """
    start_seconds = _seconds_since_start()
    begin = time.perf_counter()
    torch.set_num_threads(training.config.engine.threads)
    give_back()  # release the memory of preparation
    setup, rounds = training.setup, training.rounds
    with large_blocks_apart():
        take = training.takes_module and can_release(setup.module)
        state = initial_state(setup, take=take)
    share = CoreShare()
    progress("trying a round")
    plans = plans_of(training)
    times = time_rounds(training, state, plans[0], patience)
    del state  # keep only one copy of a large model
    progress("trying an evaluation")
    evaluation, evaluation_how, is_tried = time_evaluation(training, times.state, patience)
    core_share = share.since_start() if training.device.type == "cpu" else 1.0
    evaluations = _due(rounds, training.config.train.evaluate_every)
    saves = _due(rounds, training.checkpoint_every or training.config.train.checkpoint_every) + 1
    progress("trying a checkpoint")
    lines = _lines(times)
    saving, ending, other_files = _time_files(training, times.state, lines, where)
    again = f"; once more in each of {processes} processes" if processes > 1 else ""
    together = f", shared by {processes} processes as fast as this one" if processes > 1 else ""
    phases = [
        Phase("start", start_seconds * (2 if processes > 1 else 1), f"this command so far{again}"),
        Phase(
            "training",
            rounds * times.training_seconds(plans, processes),
            f"from {times.how}, and shapes{together}",
        ),
        *(
            Phase(name, rounds * seconds, f"as in {times.how}")
            for name, seconds in _by_name(times.seconds).items()
        ),
        Phase(
            _EVALUATION,
            evaluations * evaluation / processes,
            f"{evaluations} x {evaluation:.3g} s, {evaluation_how}{together}",
        ),
        Phase("checkpoints", saves * saving, f"{saves} x {saving:.3g} s"),
        Phase("end", ending, "curves of the trial"),
    ]
    line_bytes = len(json.dumps(lines[-1])) + 1
    disk, disk_peak = _disk_bytes(times.state, rounds, line_bytes, other_files)
    memory, memory_how = _memory(training, times, plans[0], is_tried)
    rows = _traffic(setup, times.state, plans)
    quantities = Quantities(
        rows,
        rounds * sum(row.clients_per_round * row.bytes_down for row in rows),
        rounds * sum(row.clients_per_round * row.bytes_up for row in rows),
        size_in_bytes(setup.travel.of_base(times.state.tensors)),
        disk,
        disk_peak,
        memory,
        memory_how,
    )
    seconds = time.perf_counter() - begin
    result = Forecast(rounds, processes, phases, quantities, seconds, core_share)
    if result.evaluation_share < _MUCH:
        return result
    return replace(result, evaluation_keys=evaluation_keys(training))


class CoreShare:
    """Fraction of a core that this thread gets from now on: processor time over wall time."""

    def __init__(self) -> None:
        self._clock, self._processor = time.perf_counter(), time.thread_time()

    def since_start(self) -> float:
        """Return the fraction, at most 1; it is also lower while waiting for other threads."""
        clock = time.perf_counter() - self._clock
        return min(1.0, (time.thread_time() - self._processor) / max(clock, 1e-9))


def _by_name(seconds: Mapping[str, float]) -> dict[str, float]:
    """Map seconds to readable names of phases; add up small phases.

    >>> _by_name({"plan": 1.0, "merge": 3.0, "reduce": 0.5})
    {'merging': 3.0, 'planning and the rest': 1.5}
    """
    names = {_NAMES[key]: value for key, value in seconds.items() if key in _NAMES}
    return names | {_OTHERS: sum(value for key, value in seconds.items() if key not in _NAMES)}


def _due(rounds: int, every: int) -> int:
    """Count the occurrences of an event every ``every`` rounds and after the last round.

    >>> _due(10, 5), _due(11, 5), _due(1, 5)
    (2, 3, 1)
    """
    return -(-rounds // every)


def _lines(times: RoundTimes) -> list[Metrics]:
    """Make the lines of the trial's rounds, with invented scores."""
    lines = [round_line(number, report) for number, report in enumerate(times.reports, start=1)]
    return [{**line, **_SCORES} for line in lines]


def _time_files(
    training: Training, state: State, lines: Sequence[Metrics], where: Path | None
) -> tuple[float, float, int]:
    """Time a checkpoint and the final curves, and measure all files without tensors.

    They are written to a temporary folder.
    """
    parent = where
    while parent is not None and not parent.is_dir():
        parent = None if parent == parent.parent else parent.parent
    try:
        with tempfile.TemporaryDirectory(prefix=".dry-run-", dir=parent) as name:
            folder = Path(name)
            part, share = _some_tensors(state)
            begin = time.perf_counter()
            checkpoint.save(folder, part, training.config)
            saving = (time.perf_counter() - begin) / share
            begin = time.perf_counter()
            with suppress(MissingExtraError):  # as in a run
                draw_curves([dict(line) for line in lines], folder / "curves.png", "trial")
            ending = time.perf_counter() - begin
            small_files = [*folder.glob("*.png"), *folder.glob("*/*.json")]
            return saving, ending, sum(file.stat().st_size for file in small_files)
    except OSError as error:
        raise SubmodelError(f"{parent}: not writable: {error.strerror}") from None


def _some_tensors(state: State) -> tuple[State, float]:
    """Select tensors of a state up to a size, at least one; return them and their fraction."""
    total = size_in_bytes(state.tensors)
    tensors: dict[str, Tensor] = {}
    size = 0
    for name, tensor in state.tensors.items():
        if tensors and size >= _MOST_SAVED:
            break
        tensors[name] = tensor
        size += tensor.numel() * tensor.element_size()
    return State(state.round, tensors), size / max(1, total)


def _memory(
    training: Training, times: RoundTimes, bundles: Sequence[Bundle], is_tried: bool
) -> tuple[int, str]:
    """Return the peak memory of a process, and the source of the estimate."""
    if times.is_whole and is_tried:
        return _peak_bytes(), "the peak of this process"
    by_shapes = psutil.Process().memory_info().rss + _stack_bytes(training.setup, bundles)
    return max(_peak_bytes(), by_shapes), "the peak of this process, or more by shapes"


def _traffic(setup: Setup, state: State, plans: Sequence[Sequence[Bundle]]) -> list[ByCapacity]:
    """Count the traffic per client by capacity, and the clients of each capacity per round.

    ``plans`` are the bundles of some representative rounds.
    """
    costs = CostModel(setup.module, setup.clients.dataset.example, setup.travel)
    shape_estimate, knowledge = Estimate(setup), knowledge_of(setup, state)
    assignments = [a for bundles in plans for b in bundles for a in b.assignments]
    counts = Counter(a.capacity for a in assignments)

    def draw(assignment: Assignment) -> Cut:
        labels = setup.clients.labels(assignment.client) if setup.absent_labels != "keep" else None
        return cut_of(setup, assignment, labels, knowledge)

    rows = []
    for capacity in sorted({*setup.population.capacities, *counts}, reverse=True):
        nominal_cut = shape_estimate.cut(capacity)
        drawn = [a for a in assignments[:_CUTS] if a.capacity == capacity]
        masks = sends_masks(setup.scheme)
        statistics = RoundStatistics(
            setup.axes, state.tensors, costs, masks, setup.transport, setup.travel
        )
        bytes_up, number = 0, max(1, len(drawn))
        for cut in map(draw, drawn) if drawn else [nominal_cut]:
            statistics.record_task(cut)
            bytes_up += statistics.update_bytes(cut)
        bytes_down = statistics.as_dict()["counts"][0]
        rows.append(
            ByCapacity(
                capacity,
                counts[capacity] / len(plans),
                costs.of(nominal_cut).parameters,
                bytes_down / number,
                bytes_up / number,
            )
        )
    return rows


def _disk_bytes(state: State, rounds: int, line_bytes: int, other_files: int) -> tuple[int, int]:
    """Return the final and the peak size of a run's folder: model, checkpoints, a line per round.

    A checkpoint contains the whole state, the result everything but the state of clients.
    """
    result = size_in_bytes(state.tensors) + size_in_bytes(state.memory)
    saved_bytes = result + size_in_bytes(state.client_slots)
    rest = rounds * line_bytes + other_files
    finished_bytes = result + _CHECKPOINTS * saved_bytes + rest
    return finished_bytes, finished_bytes - result + saved_bytes


def _peak_bytes() -> int:

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _seconds_since_start() -> float:
    """Return the age of this process, or its processor time if the age is unknown.

    >>> 0 < _seconds_since_start() < 1e6
    True
    """
    try:
        # the name of a process, in brackets, may have spaces; the 22nd entry is its start
        entries = Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()
        ticks = int(entries[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return time.process_time()


def _stack_bytes(setup: Setup, bundles: Sequence[Bundle]) -> int:
    """Estimate from shapes the memory for training the largest bundle, without the model."""
    shape_estimate = Estimate(setup)
    largest = 0
    for capacity in {bundle.assignments[0].capacity for bundle in bundles}:
        equal = [b for b in bundles if b.assignments[0].capacity == capacity]
        batch = max(shape_estimate.batch(a.client) for b in equal for a in b.assignments)
        clients = max(len(bundle.assignments) for bundle in equal)
        largest = max(largest, clients * budget_of(setup, batch).needs(capacity).memory)
    return largest


def budget_of(setup: Setup, batch: int) -> Budget:
    """Make the budget of one client with batches of a given size and its optimiser's copies."""
    optimiser = setup.work.optimiser
    copies = kept_copies(optimiser) if setup.keeps_slots else optimiser.copies
    example = setup.clients.dataset.example
    return Budget(setup.module, setup.axes, example, batch, copies, setup.least)
