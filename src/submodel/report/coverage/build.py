"""From what is known of a run's rounds to what a page draws of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from submodel.algorithm.tally import pack_units
from submodel.algorithm.types import Assignment
from submodel.errors import SubmodelError
from submodel.report.coverage.selection import Extent, capacity_levels, choose_rounds, level_of
from submodel.report.coverage.source import HoldingsSource, source_of
from submodel.report.coverage.types import (
    AxisCoverage,
    ClientCut,
    Grid,
    RoundClients,
    RunCoverage,
)
from submodel.report.coverage.wording import notes_of

_MOST_CUTS = 60  # rounds with examples of cuts
_Counts = dict[str, NDArray[np.float64]]
"""By axis: capacities x rounds x columns."""


def coverage_of(path: str | Path) -> RunCoverage:
    """What of the model of a run was held by whom, in every round or in a sample of them.

    Args:
        path: the run's folder; the run may be under way.

    Raises:
        SubmodelError: it is not a run, or one whose model is not known.
    """
    return build_coverage(source_of(path))


def client_cut(path: str | Path, round_: int, client: int) -> ClientCut:
    """What a client held in a round.

    Args:
        path: the run's folder.
        round_: from 1.
        client: its number.

    Raises:
        SubmodelError: it did not take part, or what it held is not known.
    """
    source = source_of(path)
    if not 1 <= round_ <= source.rounds_done or not source.is_known(round_):
        raise SubmodelError(f"{path}: what clients held in round {round_} is not known")
    for taker in source.takers(round_):
        if taker.client == client:
            levels = capacity_levels([taker.capacity], source.config.clients.capacities)
            return _cut(source, taker, levels)
    raise SubmodelError(f"{path}: client {client} took no part in round {round_}")


def build_coverage(source: HoldingsSource) -> RunCoverage:
    """What is drawn of a run.

    Args:
        source: what is known of its rounds.
    """
    config = source.config
    known_rounds = [r for r in range(1, source.rounds_done + 1) if source.is_known(r)]
    sizes = _sizes(source)
    extent = Extent(sizes, config.clients.sample_size, len(set(config.clients.capacities)))
    numbers = choose_rounds(known_rounds, extent.most_rounds(), config.seed)
    takers = [source.takers(number) for number in numbers]
    levels = capacity_levels(
        (taker.capacity for group in takers for taker in group), config.clients.capacities
    )
    counts = _count(source, extent, numbers, takers, levels)
    rounds = [
        RoundClients(
            number,
            tuple(taker.client for taker in group),
            tuple(level_of(taker.capacity, levels) for taker in group),
        )
        for number, group in zip(numbers, takers, strict=True)
    ]
    return RunCoverage(
        scheme=config.scheme.name,
        rounds=tuple(rounds),
        rounds_done=source.rounds_done,
        clients=config.clients.client_count,
        capacities=levels,
        axes=_axes(source, extent, counts),
        layers=source.outline.layers,
        cuts=_examples(source, takers, levels),
        sources=source.ways(numbers),
        notes=notes_of(source, extent, len(known_rounds), len(numbers), levels),
    )


def _sizes(source: HoldingsSource) -> dict[str, int]:
    """What is drawn: axes and their units, or tensors, in the order of the model."""
    layers = source.outline.layers
    if source.cuts_weights:
        return {tensor.name: 1 for layer in layers for tensor in layer.tensors}
    order = dict.fromkeys(axis for layer in layers for axis in layer.axes)
    return {axis: source.outline.axes[axis] for axis in order}


def _count(
    source: HoldingsSource,
    extent: Extent,
    numbers: Sequence[int],
    takers: Sequence[Sequence[Assignment]],
    levels: Sequence[float],
) -> _Counts:
    """How many clients of each capacity held each column in each round."""
    widths = {axis: extent.units_per_column(axis) for axis in extent.sizes}
    counts = {
        axis: np.zeros((len(levels), len(numbers), -(-size // widths[axis])))
        for axis, size in extent.sizes.items()
    }
    for row, (number, group) in enumerate(zip(numbers, takers, strict=True)):
        if source.cuts_weights:
            _add_weights(source, number, levels, row, counts)
            continue
        totals = {axis: np.zeros((len(levels), size)) for axis, size in extent.sizes.items()}
        for taker in group:
            masks, level = source.unit_masks(taker), level_of(taker.capacity, levels)
            for axis, total in totals.items():
                total[level] += masks.get(axis, 1)
        for axis, total in totals.items():
            starts = np.arange(0, extent.sizes[axis], widths[axis])
            lengths = np.diff([*starts, extent.sizes[axis]])
            counts[axis][:, row] = np.add.reduceat(total, starts, axis=1) / lengths
    return counts


def _add_weights(
    source: HoldingsSource, number: int, levels: Sequence[float], row: int, counts: _Counts
) -> None:
    """The mean number of holders of the weights of each tensor."""
    sizes = _value_counts(source)
    for capacity, totals in source.records[number].weights.items():
        level = level_of(capacity, levels)
        for name, total in zip(sorted(sizes), totals, strict=True):
            counts[name][level, row, 0] += total / sizes[name]


def _value_counts(source: HoldingsSource) -> dict[str, int]:
    tensors = (tensor for layer in source.outline.layers for tensor in layer.tensors)
    return {tensor.name: tensor.value_count for tensor in tensors}


def _axes(source: HoldingsSource, extent: Extent, counts: _Counts) -> tuple[AxisCoverage, ...]:
    layers, weights = source.outline.layers, _value_counts(source)
    return tuple(
        AxisCoverage(
            name=name,
            size=weights[name] if source.cuts_weights else size,
            cuts="weights" if source.cuts_weights else "units",
            units_per_column=weights[name]
            if source.cuts_weights
            else extent.units_per_column(name),
            layers=tuple(
                layer.name
                for layer in layers
                if name in layer.axes or name in {tensor.name for tensor in layer.tensors}
            ),
            holders=tuple(map(Grid.of, counts[name])),
        )
        for name, size in extent.sizes.items()
    )


def _examples(
    source: HoldingsSource, takers: Sequence[Sequence[Assignment]], levels: Sequence[float]
) -> tuple[ClientCut, ...]:
    """What the first client of every capacity held, in some rounds."""
    places = np.unique(np.linspace(0, len(takers) - 1, min(_MOST_CUTS, len(takers))).astype(int))
    return tuple(
        _cut(source, next(same), levels)
        for place in places
        for _, same in groupby(
            sorted(
                takers[place], key=lambda taker: (level_of(taker.capacity, levels), taker.client)
            ),
            key=lambda taker: level_of(taker.capacity, levels),
        )
    )


def _cut(source: HoldingsSource, taker: Assignment, levels: Sequence[float]) -> ClientCut:
    units: Mapping[str, str] = {}
    shares: Mapping[str, float] = {}
    if source.cuts_weights:
        shares = _shares(source, taker)
    else:
        masks = source.unit_masks(taker)
        units = {axis: pack_units(np.flatnonzero(mask), len(mask)) for axis, mask in masks.items()}
    level = level_of(taker.capacity, levels)
    return ClientCut(taker.round + 1, taker.client, level, units, shares)


def _shares(source: HoldingsSource, taker: Assignment) -> dict[str, float]:
    """The mean share of every tensor that clients of the capacity held."""
    holdings, sizes = source.records[taker.round + 1], _value_counts(source)
    clients = sum(other.capacity == taker.capacity for other in holdings.takers)
    totals = holdings.weights[taker.capacity]
    return {
        name: total / (clients * sizes[name])
        for name, total in zip(sorted(sizes), totals, strict=True)
    }
