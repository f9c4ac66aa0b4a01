"""Coverage: number of holders of each unit in every round of a run, as plain data for a page.

`coverage_of` reads it from the folder of a run; `RunCoverage.json` returns it as JSON. Large tables
are `Grid`s: bytes in base64, so that a run of two hundred rounds fits in some hundred kilobytes; a
page reads them with `atob`. Long runs and wide models are sampled.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from submodel.algorithm.types import Assignment
from submodel.core.randomness import generator
from submodel.model.axes.declare import pack_units
from submodel.model.inspect import ModelLayer
from submodel.report.holdings import HoldingsSource, source_of

_LEAST_ROUNDS, _MOST_ROUNDS = 8, 240
_MOST_COLUMNS = 64  # of an axis
_MOST_CELLS = 400_000  # of all grids: a byte each
_MOST_DRAWS = 60_000  # of one client and axis: some microseconds each
_MOST_CAPACITIES = 8
_MOST_CUTS = 60  # rounds with examples of cuts
_Counts = dict[str, NDArray[np.float64]]
"""By axis: capacities x rounds x columns."""


@dataclass(frozen=True)
class Grid:
    """Table of non-negative numbers, one byte each: the number is ``byte * step``."""

    rows: int  # one for every shown round
    columns: int  # one for every unit, or group of units
    step: float  # 1: the numbers are whole and exact
    cells: str  # bytes, row by row, in base64

    @classmethod
    def of(cls, numbers: NDArray[np.float64]) -> Grid:
        """Pack numbers into a table, rounded to a 255th of the largest if necessary.

        >>> Grid.of(np.array([[0.0, 1.0], [2.0, 255.0]])).array().tolist()
        [[0.0, 1.0], [2.0, 255.0]]
        """
        most = float(numbers.max(initial=0.0))
        is_whole = most <= 255 and bool((numbers == np.rint(numbers)).all())
        step = 1.0 if is_whole else most / 255
        cells = np.rint(numbers / step).astype(np.uint8)
        text = base64.b64encode(cells.tobytes()).decode("ascii")
        rows, columns = numbers.shape
        return cls(rows, columns, step, text)

    def array(self) -> NDArray[np.float64]:
        """Return the numbers of the table."""
        cells = np.frombuffer(base64.b64decode(self.cells), np.uint8).astype(np.float64)
        return cells.reshape(self.rows, self.columns) * self.step


@dataclass(frozen=True)
class AxisCoverage:
    """Number of holders of every unit of an axis, in every shown round.

    If single weights are cut, it is that of a tensor: its only column is the mean number of holders
    of its weights.
    """

    name: str
    size: int  # units, or weights
    cuts: Literal["units", "weights"]
    units_per_column: int  # above 1: a column is the mean of several
    layers: tuple[str, ...]  # cut layers, in the order of the model
    holders: tuple[Grid, ...]  # by `RunCoverage.capacities`; rows are rounds

    def total(self) -> NDArray[np.float64]:
        """Return the number of holders of any capacity: rounds x columns."""
        return np.asarray(np.sum([grid.array() for grid in self.holders], axis=0))


@dataclass(frozen=True)
class RoundClients:
    """Clients of a round whose updates were merged."""

    number: int  # of the round, from 1
    clients: tuple[int, ...]  # ascending
    capacities: tuple[int, ...]  # of each client, index into `RunCoverage.capacities`


@dataclass(frozen=True)
class ClientCut:
    """Cut of one client in one round.

    Units are one bit each, from the highest bit of the first byte, in base64; an axis that is not
    listed is held whole.
    """

    round: int  # from 1
    client: int
    capacity: int  # index into `RunCoverage.capacities`
    units: Mapping[str, str]  # by axis
    shares: Mapping[str, float]  # of weights by tensor, if single weights are cut


@dataclass(frozen=True)
class RunCoverage:
    """Coverage of a run."""

    scheme: str
    rounds: tuple[RoundClients, ...]  # ascending; a sample of a long run, with a note
    rounds_done: int
    clients: int  # registered
    capacities: tuple[float, ...]  # descending; of very many a selection, each for those below
    axes: tuple[AxisCoverage, ...]  # cut axes, in the order of the model
    layers: tuple[ModelLayer, ...]  # with parameters, in the order of the forward pass
    cuts: tuple[ClientCut, ...]  # by round: the first client of every capacity
    sources: tuple[Literal["recorded", "drawn"], ...]  # while training, or from the seed
    notes: tuple[str, ...]  # one sentence each

    def json(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return asdict(self)


def coverage_of(path: str | Path) -> RunCoverage:
    """Read the coverage of a run from its folder.

    Raises `SubmodelError` if the folder holds no run, or its model is unknown.
    """
    return build_coverage(source_of(path))


def build_coverage(source: HoldingsSource) -> RunCoverage:
    """Count the holders of each unit in the shown rounds."""
    config = source.config
    known_rounds = [r for r in range(1, source.rounds_done + 1) if source.is_known(r)]
    sizes = _sizes(source)
    most = _most_rounds(sizes, config.clients.sample_size, len(set(config.clients.capacities)))
    numbers = choose_rounds(known_rounds, most, config.seed)
    participants = [source.participants(number) for number in numbers]
    levels = capacity_levels(
        (participant.capacity for group in participants for participant in group),
        config.clients.capacities,
    )
    counts = _count(source, sizes, numbers, participants, levels)
    rounds = [
        RoundClients(
            number,
            tuple(participant.client for participant in group),
            tuple(level_of(participant.capacity, levels) for participant in group),
        )
        for number, group in zip(numbers, participants, strict=True)
    ]
    return RunCoverage(
        scheme=config.scheme.name,
        rounds=tuple(rounds),
        rounds_done=source.rounds_done,
        clients=config.clients.client_count,
        capacities=levels,
        axes=_axes(source, sizes, counts),
        layers=source.outline.layers,
        cuts=_examples(source, participants, levels),
        sources=source.sources(numbers),
        notes=_notes(source, sizes, len(known_rounds), len(numbers), levels),
    )


def _sizes(source: HoldingsSource) -> dict[str, int]:
    """Return the sizes of the shown axes, or tensors, in the order of the model."""
    layers = source.outline.layers
    if source.cuts_weights:
        return {tensor.name: 1 for layer in layers for tensor in layer.tensors}
    order = dict.fromkeys(axis for layer in layers for axis in layer.axes)
    return {axis: source.outline.axes[axis] for axis in order}


def _width(size: int) -> int:
    """Return the number of units per column of an axis.

    >>> _width(32), _width(512)
    (1, 8)
    """
    return -(-size // _MOST_COLUMNS)


def _most_rounds(sizes: Mapping[str, int], clients: int, capacities: int) -> int:
    """Return the number of rounds to show for axes of these sizes.

    >>> _most_rounds({"hidden": 32}, clients=10, capacities=5)
    240
    >>> _most_rounds(dict.fromkeys("abcd", 512), clients=100, capacities=5)
    150
    """
    columns = sum(-(-size // _width(size)) for size in sizes.values())
    by_cells = _MOST_CELLS // max(1, columns * capacities)
    by_draws = _MOST_DRAWS // max(1, clients * len(sizes))
    return max(_LEAST_ROUNDS, min(_MOST_ROUNDS, by_cells, by_draws))


def choose_rounds(rounds: Sequence[int], most: int, seed: int) -> list[int]:
    """Choose rounds: the first, the last, and a random one from each interval between them.

    Every k-th round could coincide with the period of a scheme.

    Args:
        rounds: numbers of rounds, ascending.
        most: maximum number of chosen rounds, at least 2.
        seed: seed of the run; the same rounds are chosen each time.

    >>> choose_rounds(range(1, 5), 4, seed=0)
    [1, 2, 3, 4]
    >>> chosen = choose_rounds(range(1, 1001), 150, seed=0)
    >>> len(chosen), chosen[0], chosen[-1]
    (150, 1, 1000)
    """
    if len(rounds) <= most:
        return list(rounds)
    first, *between, last = rounds
    stretches = most - 2
    bounds = [*(k * len(between) // stretches for k in range(stretches)), len(between)]
    places = [
        int(generator(seed, "rounds shown", k).integers(start, end))
        for k, (start, end) in enumerate(pairwise(bounds))
    ]
    return [first, *(between[place] for place in places), last]


def capacity_levels(
    capacities: Iterable[float], configured_capacities: Collection[float]
) -> tuple[float, ...]:
    """Return representative capacities, descending; each stands for those up to it.

    >>> capacity_levels([0.5, 1.0, 0.5], [1.0, 0.5, 0.25])
    (1.0, 0.5, 0.25)
    >>> len(capacity_levels([k / 100 for k in range(1, 101)], [1.0]))
    8
    """
    levels = sorted({*capacities, *configured_capacities}, reverse=True)
    if len(levels) > _MOST_CAPACITIES:
        places = np.linspace(0, len(levels) - 1, _MOST_CAPACITIES).astype(int)
        levels = [levels[place] for place in places]
    return tuple(levels)


def level_of(capacity: float, levels: Sequence[float]) -> int:
    """Return the index of the smallest level, in descending order, not below a capacity.

    >>> level_of(0.3, [1.0, 0.5, 0.25])
    1
    """
    return max((k for k, level in enumerate(levels) if level >= capacity), default=0)


def _count(
    source: HoldingsSource,
    sizes: Mapping[str, int],
    numbers: Sequence[int],
    participants: Sequence[Sequence[Assignment]],
    levels: Sequence[float],
) -> _Counts:
    """Count the clients of each capacity that held each column in each round."""
    counts = {
        axis: np.zeros((len(levels), len(numbers), -(-size // _width(size))))
        for axis, size in sizes.items()
    }
    for row, (number, group) in enumerate(zip(numbers, participants, strict=True)):
        if source.cuts_weights:
            _add_weights(source, number, levels, row, counts)
            continue
        totals = {axis: np.zeros((len(levels), size)) for axis, size in sizes.items()}
        for participant in group:
            masks, level = source.unit_masks(participant), level_of(participant.capacity, levels)
            for axis, total in totals.items():
                total[level] += masks.get(axis, 1)
        for axis, total in totals.items():
            starts = np.arange(0, sizes[axis], _width(sizes[axis]))
            lengths = np.diff([*starts, sizes[axis]])
            counts[axis][:, row] = np.add.reduceat(total, starts, axis=1) / lengths
    return counts


def _add_weights(
    source: HoldingsSource, number: int, levels: Sequence[float], row: int, counts: _Counts
) -> None:
    """Add the mean number of holders of the weights of each tensor."""
    sizes = _value_counts(source)
    for capacity, totals in source.records[number].weights.items():
        level = level_of(capacity, levels)
        for name, total in zip(sorted(sizes), totals, strict=True):
            counts[name][level, row, 0] += total / sizes[name]


def _value_counts(source: HoldingsSource) -> dict[str, int]:
    tensors = (tensor for layer in source.outline.layers for tensor in layer.tensors)
    return {tensor.name: tensor.value_count for tensor in tensors}


def _axes(
    source: HoldingsSource, sizes: Mapping[str, int], counts: _Counts
) -> tuple[AxisCoverage, ...]:
    weights = _value_counts(source) if source.cuts_weights else {}
    names: dict[str, list[str]] = {name: [] for name in sizes}
    for layer in source.outline.layers:
        for name in {*layer.axes, *(tensor.name for tensor in layer.tensors)} & names.keys():
            names[name].append(layer.name)
    return tuple(
        AxisCoverage(
            name=name,
            size=weights.get(name, size),
            cuts="weights" if source.cuts_weights else "units",
            units_per_column=weights.get(name, _width(size)),
            layers=tuple(names[name]),
            holders=tuple(map(Grid.of, counts[name])),
        )
        for name, size in sizes.items()
    )


def _examples(
    source: HoldingsSource, participants: Sequence[Sequence[Assignment]], levels: Sequence[float]
) -> tuple[ClientCut, ...]:
    """Return the cuts of the first client of every capacity, in a selection of rounds."""

    def level(participant: Assignment) -> int:
        return level_of(participant.capacity, levels)

    places = np.unique(
        np.linspace(0, len(participants) - 1, min(_MOST_CUTS, len(participants))).astype(int)
    )
    return tuple(
        _cut(source, next(same), number)
        for place in places
        for number, same in groupby(
            sorted(
                participants[place],
                key=lambda participant: (level(participant), participant.client),
            ),
            key=level,
        )
    )


def _cut(source: HoldingsSource, participant: Assignment, level: int) -> ClientCut:
    units: Mapping[str, str] = {}
    shares: Mapping[str, float] = {}
    if source.cuts_weights:
        shares = _shares(source, participant)
    else:
        masks = source.unit_masks(participant)
        units = {axis: pack_units(np.flatnonzero(mask), len(mask)) for axis, mask in masks.items()}
    return ClientCut(participant.round + 1, participant.client, level, units, shares)


def _shares(source: HoldingsSource, participant: Assignment) -> dict[str, float]:
    """Return the mean share of every tensor over holders of the capacity."""
    holdings, sizes = source.records[participant.round + 1], _value_counts(source)
    clients = sum(other.capacity == participant.capacity for other in holdings.participants)
    totals = holdings.weights[participant.capacity]
    return {
        name: total / (clients * sizes[name])
        for name, total in zip(sorted(sizes), totals, strict=True)
    }


def _notes(
    source: HoldingsSource,
    sizes: Mapping[str, int],
    known: int,
    shown: int,
    levels: Sequence[float],
) -> tuple[str, ...]:
    """Return notes on unknown rounds, on sampled rounds and units, and on the counts."""
    notes = []
    if known < source.rounds_done:
        notes.append(
            f"The cuts of {source.rounds_done - known} of {source.rounds_done} rounds are unknown: "
            "an earlier version did not record them, or the record is damaged."
        )
    if shown < known:
        notes.append(
            f"{shown} of {known} rounds are shown: the first, the last, and a random "
            "one from each interval between them."
        )
    if source.cuts_weights:
        notes.append(
            "Single weights are cut: the number of a tensor is the mean number of holders of its "
            "weights."
        )
    elif wide := [axis for axis, size in sizes.items() if _width(size) > 1]:
        notes.append(f"Units are grouped, with the mean of each group, on {', '.join(wide)}.")
    participants = (
        participant for holdings in source.records.values() for participant in holdings.participants
    )
    if not {participant.capacity for participant in participants} <= set(levels):
        shares = ", ".join(f"{level:g}" for level in levels)
        notes.append(f"Clients count under the next larger of these capacities: {shares}.")
    if source.config.local.absent_labels not in ("keep", "auto"):
        notes.append("Rows of the classifier that clients omit by their labels are not shown.")
    return tuple(notes)
