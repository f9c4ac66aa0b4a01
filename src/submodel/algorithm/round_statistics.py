"""Statistics of one round: traffic, cost, time, merged and refused updates, and who held what.

The participants are always recorded. The units that each held follow from the seed and the
participants, except for schemes whose draws clients cannot repeat: their units are recorded as
bits, once for all clients that held the same. Masks of single weights would be as large as the
model, so held weights are counted by tensor.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from torch import Tensor

from submodel.algorithm.packing import Transport, mask_bytes
from submodel.algorithm.types import Assignment, Setup, State
from submodel.model.axes import Axes
from submodel.model.axes.declare import pack_units
from submodel.model.cost import BACKWARD, CostModel
from submodel.model.cut import WHOLE, Cut, LastCut, Tensors, UnitCut
from submodel.model.travel import EVERYTHING, Travel, size_in_bytes
from submodel.schemes.scheme import sends_masks

_CUTS = 16  # whose bytes are cached: those of a stack in progress


@dataclass(frozen=True)
class RoundReport:
    """Results and statistics of a round."""

    train_loss: float  # the mean over all targets that count in the clients' training
    clients: int
    refusals: dict[str, str]  # client -> why its update was not merged
    missing: dict[str, str]  # client -> why it sent no update
    units_covered: float
    weights_covered: float
    bytes_down: int
    bytes_up: int
    bytes_once: int  # of the base, sent before a client's first task; not part of the other two
    flops: int
    seconds: dict[str, float]  # by phase
    observations: dict[str, float]  # measurements of the scheme: means over the clients
    holdings: Holdings


class RoundStatistics:
    """Counts while a round runs; `report` returns the result."""

    def __init__(
        self,
        axes: Axes,
        tensors: Tensors,
        costs: CostModel,
        sends_masks: bool = False,
        transport: Transport = "exact",
        travel: Travel = EVERYTHING,
        holdings: HoldingsRecorder | None = None,
    ) -> None:
        # only shapes count: no model is kept alive
        tensors = {n: t.to("meta") for n, t in tensors.items()}
        self._tensors = tensors
        self._tensors_out, self._tensors_back = travel.of_task(tensors), travel.of_update(tensors)
        self._bytes_once = size_in_bytes(travel.of_base(tensors))
        self._sizes = {name: element_size(t, transport) for name, t in tensors.items()}
        self._masks = LastCut(
            lambda cut: (
                mask_bytes(cut, {n: t.shape for n, t in tensors.items()}) if sends_masks else 0
            )
        )
        self.costs = costs
        self._bytes_of_task = LastCut(lambda cut: self._count_bytes(cut, self._tensors_out), _CUTS)
        self._bytes_of_update = self._bytes_of_task
        if self._tensors_back.keys() != self._tensors_out.keys():
            self._bytes_of_update = LastCut(
                lambda cut: self._count_bytes(cut, self._tensors_back), _CUTS
            )
        self._unit_coverage = {a: np.zeros(n, np.bool_) for a, n in axes.cut_by_capacity.items()}
        self._bytes_down = self._bytes_up = self._flops = self._examples_used = 0
        self._losses: list[tuple[float, float]] = []  # (counted examples, loss) of every update
        self._seconds: dict[str, float] = {}
        self._last = time.perf_counter()
        self.update_count = 0
        self.refusals: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self._notes: dict[str, list[float]] = {}
        self._holdings = holdings or HoldingsRecorder()

    def lap(self, phase: str) -> None:
        """Add the time since the last call to ``phase``."""
        now = time.perf_counter()
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._last
        self._last = now

    def _count_bytes(self, cut: Cut, tensors: Tensors) -> int:
        return sum(cut.value_count(n, t.shape) * self._sizes[n] for n, t in tensors.items())

    def update_bytes(self, cut: Cut) -> int:
        """Return the bytes of an update of a cut."""
        return self._bytes_of_update(cut)

    def record_task(self, cut: Cut) -> None:
        """Count a sent task, with the masks that the client cannot draw itself."""
        self._bytes_down += self._bytes_of_task(cut) + self._masks(cut)
        self.lap("gather")

    def record_update(
        self,
        cut: Cut,
        examples_used: int,
        loss: float,
        passes: Sequence[tuple[Cut, int]] = (),
        examples_counted: float | None = None,
    ) -> None:
        """Count a merged update; ``passes`` (cut, examples) if not all were of the whole cut.

        The loss is the mean over ``examples_counted`` examples, or over all that were processed.
        """
        self.update_count += 1
        self._bytes_up += self._bytes_of_update(cut)
        for pass_cut, examples in passes or [(cut, examples_used)]:
            self._flops += BACKWARD * self.costs.forward_flops(pass_cut) * examples
        self._examples_used += examples_used
        self._losses.append((examples_used if examples_counted is None else examples_counted, loss))
        if isinstance(cut, UnitCut):
            for axis, mask in self._unit_coverage.items():
                mask[cut.units.get(axis, slice(None))] = True
        self.lap("merge")

    def record_cut(self, assignment: Assignment, cut: Cut) -> None:
        """Record the cut of a merged update."""
        self._holdings.record(assignment, cut)

    def record_gradients(self, cut: Cut, names: Iterable[str], examples_used: int) -> None:
        """Count a client that got ``cut`` and sent the gradients of these whole parameters."""
        self._bytes_down += self._bytes_of_task(cut) + self._masks(cut)
        self._bytes_up += sum(self._tensors[n].numel() * self._sizes[n] for n in names)
        self._flops += BACKWARD * self.costs.forward_flops(WHOLE) * examples_used

    def record_measurements(self, values: Mapping[str, float]) -> None:
        """Add the measurements that a scheme made on one client."""
        for name, value in values.items():
            self._notes.setdefault(name, []).append(value)

    def record_refusal(self, client: int, reason: str) -> None:
        """Count an update that was refused."""
        self.refusals[str(client)] = reason
        self.lap("merge")

    def record_missing(self, client: int, reason: str) -> None:
        """Count a device that sent no readable update."""
        self.missing[str(client)] = reason

    def reasons(self) -> str:
        """Describe all clients without a merged update, with the reasons."""
        reasons = {**self.missing, **self.refusals}
        return "; ".join(f"client {client}: {reason}" for client, reason in reasons.items())

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as plain data, for `merge` in other processes."""
        return {
            "counts": [self._bytes_down, self._bytes_up, self._flops, self._examples_used],
            "losses": self._losses,
            "accepted": self.update_count,
            "refused": self.refusals,
            "missing": self.missing,
            "notes": self._notes,
            "holdings": self._holdings.as_dict(),
            "covered": {
                a: np.flatnonzero(mask).tolist() for a, mask in self._unit_coverage.items()
            },
        }

    def merge(self, parts: Sequence[Mapping[str, Any]]) -> None:
        """Replace the counts by those of all processes; times stay those of this process."""
        counts = np.sum([p["counts"] for p in parts], axis=0).tolist()
        self._bytes_down, self._bytes_up, self._flops, self._examples_used = counts
        self._losses = [(count, loss) for p in parts for count, loss in p["losses"]]
        self.update_count = sum(p["accepted"] for p in parts)
        self.refusals = {client: why for p in parts for client, why in p["refused"].items()}
        self.missing = {client: why for p in parts for client, why in p["missing"].items()}
        self._holdings.merge([p["holdings"] for p in parts])
        self._notes = {}
        for part in parts:
            for name, values in part["notes"].items():
                self._notes[name] = self._notes.get(name, []) + values
            for axis, units in part["covered"].items():
                self._unit_coverage[axis][units] = True

    def report(self, weights_covered: float) -> RoundReport:
        """Return the result; at coordinate granularity the weights are the units."""
        self.lap("merge")
        units = sum(len(mask) for mask in self._unit_coverage.values())
        covered_units = sum(int(mask.sum()) for mask in self._unit_coverage.values())
        total_loss = math.fsum(count * loss for count, loss in self._losses)  # in any order
        return RoundReport(
            train_loss=total_loss / math.fsum(count for count, _ in self._losses),
            clients=self.update_count,
            refusals=self.refusals,
            missing=self.missing,
            units_covered=covered_units / units if covered_units else weights_covered,
            weights_covered=weights_covered,
            bytes_down=self._bytes_down,
            bytes_up=self._bytes_up,
            bytes_once=self._bytes_once,
            flops=self._flops,
            seconds=self._seconds,
            observations={n: math.fsum(v) / len(v) for n, v in sorted(self._notes.items())},
            holdings=self._holdings.result(),
        )


@dataclass(frozen=True)
class SharedCut:
    """The units of some clients that held the same."""

    clients: tuple[int, ...]  # ascending
    units: Mapping[str, str]  # by `pack_units`; every other axis was held whole


@dataclass(frozen=True)
class Holdings:
    """The clients whose updates were merged in a round, and the parts of the model they held."""

    participants: tuple[Assignment, ...] = ()  # of merged updates, by place
    cuts: tuple[SharedCut, ...] = ()  # those that cannot be drawn again, by their first client
    weights: Mapping[float, tuple[int, ...]] = field(default_factory=dict)
    """By capacity, the number of weights of each parameter (names in alphabetical order) that the
    clients held in total, at coordinate granularity."""


class HoldingsRecorder:
    """Records who holds what while a round runs; each process has one, for the clients it trains.

    ``sizes`` are of the axes whose units are recorded, ``shapes`` of the parameters whose weights
    are counted.
    """

    def __init__(
        self,
        sizes: Mapping[str, int] = MappingProxyType({}),
        shapes: Mapping[str, Sequence[int]] = MappingProxyType({}),
    ) -> None:
        self._sizes, self._shapes = sizes, sorted(shapes.items())
        self._participants: list[Assignment] = []
        self._cuts: dict[Any, tuple[list[int], dict[str, str]]] = {}
        self._weights: dict[float, list[int]] = {}

    def record(self, assignment: Assignment, cut: Cut) -> None:
        """Record a client's merged update."""
        self._participants.append(assignment)
        if self._sizes and isinstance(cut, UnitCut):
            if cut.same_key not in self._cuts:
                self._cuts[cut.same_key] = [], self._pack(cut)
            self._cuts[cut.same_key][0].append(assignment.client)
        if self._shapes:
            counts = [cut.value_count(name, shape) for name, shape in self._shapes]
            before = self._weights.get(assignment.capacity, [0] * len(counts))
            total = [a + b for a, b in zip(before, counts, strict=True)]
            self._weights[assignment.capacity] = total

    def _pack(self, cut: UnitCut) -> dict[str, str]:
        return {
            axis: pack_units(units, self._sizes[axis])
            for axis, units in cut.units.items()
            if axis in self._sizes
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the record as plain data, for the other processes of a run."""
        return {
            "participants": [[a.round, a.client, a.capacity, a.place] for a in self._participants],
            "cuts": list(self._cuts.values()),
            "weights": list(self._weights.items()),
        }

    def merge(self, parts: Sequence[Mapping[str, Any]]) -> None:
        """Replace the record by that of all processes."""
        self._participants = [
            Assignment(*participant) for part in parts for participant in part["participants"]
        ]
        self._cuts, self._weights = {}, {}
        for part in parts:
            for clients, units in part["cuts"]:
                key = tuple(sorted(units.items()))
                self._cuts.setdefault(key, ([], units))[0].extend(clients)
            for capacity, counts in part["weights"]:
                before = self._weights.get(capacity, [0] * len(counts))
                self._weights[capacity] = [a + b for a, b in zip(before, counts, strict=True)]

    def result(self) -> Holdings:
        """Return the record of the round, independent of the order of updates."""
        cuts = [SharedCut(tuple(sorted(clients)), units) for clients, units in self._cuts.values()]
        return Holdings(
            tuple(sorted(self._participants, key=lambda participant: participant.place)),
            tuple(sorted(cuts, key=lambda cut: cut.clients)),
            {c: tuple(counts) for c, counts in sorted(self._weights.items(), reverse=True)},
        )


def holdings_recorder(setup: Setup, state: State) -> HoldingsRecorder:
    """Make the recorder of a round, for the facts that cannot be drawn again."""
    if not setup.cuts_units:
        return HoldingsRecorder(shapes={n: state.tensors[n].shape for n in setup.parameter_names})
    return HoldingsRecorder(setup.axes.cut_by_capacity if sends_masks(setup.scheme) else {})


def element_size(tensor: Tensor, transport: Transport) -> int:
    """Return the bytes of each value of a tensor in a message.

    >>> import torch
    >>> element_size(torch.zeros(3), "exact"), element_size(torch.zeros(3), "half")
    (4, 2)
    """
    halves = transport == "half" and tensor.is_floating_point()
    return min(tensor.element_size(), 2) if halves else tensor.element_size()
