"""What a run moves and keeps: traffic and disk from shapes, memory measured or from shapes."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from submodel.algorithm.dispatch import cut_of, knowledge_of
from submodel.algorithm.execution import Bundle
from submodel.algorithm.tally import Tally
from submodel.algorithm.types import Setup, State
from submodel.engines.estimate import Estimate
from submodel.local.optimisers import kept_copies
from submodel.model.budget import Budget
from submodel.model.cost import CostModel
from submodel.model.cut import Cut
from submodel.model.travel import size_in_bytes
from submodel.schemes.base import sends_masks

_CHECKPOINTS = 2  # that a run keeps; a third is there while it is written
_CUTS = 1000  # drawn to see what they cost


@dataclass(frozen=True)
class ByCapacity:
    """What one client of a capacity gets and sends in a round."""

    capacity: float
    clients_per_round: float  # the mean over rounds
    parameters: int
    bytes_down: float  # the mean over some clients: who lacks labels may get less
    bytes_up: float


@dataclass(frozen=True)
class Quantities:
    """Bytes of a run.

    Args:
        by_capacity: of single clients.
        bytes_down: in all rounds together.
        bytes_up: likewise.
        bytes_once: that a client gets before its first task, in addition.
        disk: of the run's folder when it is finished.
        disk_peak: while its last checkpoint is written.
        memory: the peak of one process.
        memory_how: how that is known.
    """

    by_capacity: Sequence[ByCapacity]
    bytes_down: float
    bytes_up: float
    bytes_once: int
    disk: int
    disk_peak: int
    memory: int
    memory_how: str


def traffic_of(setup: Setup, state: State, plans: Sequence[Sequence[Bundle]]) -> list[ByCapacity]:
    """What clients get and send, by capacity, and how many of each a round has.

    Args:
        setup: what stays the same over the run.
        state: its tensors travel.
        plans: the bundles of some rounds, which stand for all.
    """
    costs = CostModel(setup.module, setup.clients.dataset.example, setup.travel)
    shape_estimate, knowledge = Estimate(setup), knowledge_of(setup, state)
    assignments = [a for bundles in plans for b in bundles for a in b.assignments]
    counts = Counter(a.capacity for a in assignments)
    tallies = {
        capacity: _Traffic(setup, state, costs)
        for capacity in sorted({*setup.population.capacities, *counts}, reverse=True)
    }
    for assignment in assignments[:_CUTS]:
        labels = setup.clients.labels(assignment.client) if setup.absent_labels != "keep" else None
        tallies[assignment.capacity].add(cut_of(setup, assignment, labels, knowledge))
    rows = []
    for capacity, tally in tallies.items():
        nominal_cut = shape_estimate.cut(capacity)
        if not tally.cuts:
            tally.add(nominal_cut)
        down, up = tally.means()
        parameters = costs.of(nominal_cut).parameters
        rows.append(ByCapacity(capacity, counts[capacity] / len(plans), parameters, down, up))
    return rows


class _Traffic:
    """The bytes of some cuts, as a round's books count them."""

    def __init__(self, setup: Setup, state: State, costs: CostModel) -> None:
        masks = sends_masks(setup.scheme)
        tensors, transport = state.tensors, setup.transport
        self._tally = Tally(setup.axes, tensors, costs, masks, transport, setup.travel)
        self._bytes_up = self.cuts = 0

    def add(self, cut: Cut) -> None:
        """One more."""
        self._tally.send(cut)
        self._bytes_up += self._tally.upload(cut)
        self.cuts += 1

    def means(self) -> tuple[float, float]:
        """Down and up, per cut."""
        return self._tally.books()["counts"][0] / self.cuts, self._bytes_up / self.cuts


def bytes_once(setup: Setup, state: State) -> int:
    """What a client gets once, before its first task."""
    return size_in_bytes(setup.travel.of_base(state.tensors))


def disk_bytes(state: State, rounds: int, line_bytes: int, other_files: int) -> tuple[int, int]:
    """The folder of a finished run, and its peak: the model, checkpoints, and a line per round.

    Args:
        state: a checkpoint keeps all of it, the result what is not the clients'.
        rounds: of the run.
        line_bytes: of one round in the metrics.
        other_files: the bytes of its curves and of what a checkpoint says of itself.
    """
    result = size_in_bytes(state.tensors) + size_in_bytes(state.memory)
    saved_bytes = result + size_in_bytes(state.client_slots)
    rest = rounds * line_bytes + other_files
    finished_bytes = result + _CHECKPOINTS * saved_bytes + rest
    return finished_bytes, finished_bytes - result + saved_bytes


def peak_bytes() -> int:
    """The most memory that this process has had so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def current_bytes() -> int:
    """The memory that this process has now; where that is not told, the most so far."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return peak_bytes()
    return pages * resource.getpagesize()


def seconds_since_start() -> float:
    """How long this process has been there; where that is not told, its processor time.

    >>> 0 < seconds_since_start() < 1e6
    True
    """
    try:
        # the name of a process, in brackets, may have spaces; the 22nd entry is when it began
        entries = Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()
        ticks = int(entries[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return time.process_time()


def stack_bytes(setup: Setup, bundles: Sequence[Bundle]) -> int:
    """What training the largest bundle takes beside the model, from shapes.

    Args:
        setup: what stays the same over the run.
        bundles: of a round.
    """
    shape_estimate = Estimate(setup)
    optimiser = setup.work.optimiser
    copies = kept_copies(optimiser) if setup.keeps_slots else optimiser.copies
    largest = 0
    for capacity in {bundle.assignments[0].capacity for bundle in bundles}:
        equal = [b for b in bundles if b.assignments[0].capacity == capacity]
        batch = max(shape_estimate.batch(a.client) for b in equal for a in b.assignments)
        example = setup.clients.dataset.example
        budget = Budget(setup.module, setup.axes, example, batch, copies, setup.least)
        clients = max(len(bundle.assignments) for bundle in equal)
        largest = max(largest, clients * budget.needs(capacity).memory)
    return largest
