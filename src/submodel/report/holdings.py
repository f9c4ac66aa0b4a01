"""Clients and cuts of a run's rounds: recorded in its folder, or drawn from the seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from submodel.algorithm.round_statistics import Holdings
from submodel.algorithm.rounds import assign
from submodel.algorithm.types import Assignment
from submodel.config import Config
from submodel.config.parts import make_population
from submodel.core.errors import SubmodelError
from submodel.data import Population
from submodel.data.cache import without_fetching
from submodel.model.axes import Axes
from submodel.model.axes.declare import unpack_units
from submodel.model.inspect import describe_layers
from submodel.runs.folder import RunFolder
from submodel.runs.holdings_file import ModelOutline, read_holdings, read_model_outline
from submodel.runs.training import Material
from submodel.schemes import Draw, Scheme
from submodel.schemes.builtin_schemes import SCHEMES
from submodel.schemes.draw import draw_units, draws_by_layer
from submodel.schemes.scheme import SchemeContext, sends_masks

UnitMasks = Mapping[str, NDArray[np.bool_]]
"""Units held by a client, by axis; an axis that is not listed was held whole."""


@dataclass(frozen=True)
class HoldingsSource:
    """Clients of a run's rounds, counted from 1, and the units that they held."""

    config: Config
    outline: ModelOutline  # shape of the model
    records: Mapping[int, Holdings]  # by round
    rounds_done: int
    absent: Mapping[int, frozenset[str]]  # by round, clients whose updates were not merged

    @property
    def cuts_weights(self) -> bool:
        """Whether single weights are cut, or units that belong together are not cut together."""
        choice = self.config.scheme
        return choice.granularity == "coordinate" or draws_by_layer(choice)

    def is_known(self, round_: int) -> bool:
        """Whether the clients of a round and their cuts are known."""
        holdings = self.records.get(round_)
        if self.cuts_weights:
            return holdings is not None and bool(holdings.weights)
        if holdings is not None and holdings.cuts:
            return True
        is_planned = holdings is not None or self.config.engine.name != "flower"
        return is_planned and self._can_draw(round_)

    def sources(self, rounds: Sequence[int]) -> tuple[Literal["recorded", "drawn"], ...]:
        """Return the sources of the cuts of rounds."""
        records = [self.records.get(number, Holdings()) for number in rounds]
        is_recorded = {bool(holdings.cuts or holdings.weights) for holdings in records}
        names: dict[bool, Literal["recorded", "drawn"]] = {True: "recorded", False: "drawn"}
        return tuple(name for known, name in names.items() if known in is_recorded)

    def participants(self, round_: int) -> Sequence[Assignment]:
        """Return the clients of a round, counted from 1, whose updates were merged."""
        if round_ in self.records:
            return self.records[round_].participants
        absent, population = self.absent.get(round_, frozenset()), self._population
        return [a for a in assign(population, round_ - 1) if str(a.client) not in absent]

    def unit_masks(self, participant: Assignment) -> UnitMasks:
        """Return the units that a client of `participants` held in its round."""
        holdings = self.records.get(participant.round + 1, Holdings())
        for cut in holdings.cuts:
            if participant.client in cut.clients:
                sizes = self.outline.axes
                return {axis: unpack_units(text, sizes[axis]) for axis, text in cut.units.items()}
        draw = Draw(self.config.seed, participant.round, participant.client, participant.place)
        units = draw_units(
            self._scheme, self._axes, participant.capacity, draw, least=self.config.axes.least
        ).units
        return {
            axis: _mask(kept_units, self.outline.axes[axis]) for axis, kept_units in units.items()
        }

    def _can_draw(self, round_: int) -> bool:
        """Whether the cuts of a round follow from the seed and the clients."""
        finishing = self.config.train.finishing_round
        is_finishing = finishing is not None and round_ > finishing
        return not (is_finishing or sends_masks(self._scheme))

    @cached_property
    def _axes(self) -> Axes:
        return Axes(self.outline.axes, {})

    @cached_property
    def _population(self) -> Population:
        return make_population(self.config)

    @cached_property
    def _scheme(self) -> Scheme:
        choice = self.config.scheme
        context = SchemeContext(self.outline.axes, self.config.clients.capacities)
        return SCHEMES.find(choice.name).make(choice, context)


def source_of(path: str | Path) -> HoldingsSource:
    """Read the rounds of a run from its folder.

    A folder without the shape of the model, as of older versions, takes as long as preparing the
    run, and needs its data. Raises `SubmodelError` if the folder holds no run, or if its model
    cannot be built.
    """
    folder = RunFolder(Path(path))
    config = folder.config()
    rounds_planned = config.train.rounds  # lines of later rounds are damage
    records = {n: r for n, r in read_holdings(folder.holdings_file).items() if n <= rounds_planned}
    absent = {
        line["round"]: frozenset({**line["refused"], **line.get("missing", {})})
        for line in folder.metrics()
        if line["round"] <= rounds_planned
    }
    rounds_done = max([0, *records, *absent])
    outline = read_model_outline(folder.outline_file)
    if outline is None:
        if "own" in (config.model.name, config.data.name):
            raise SubmodelError(
                f"{folder.path}: it has no layers.json, and its model or data were given in "
                "Python; continuing it by resume() writes the file"
            )
        with without_fetching():
            setup = Material().training(config, folder.locate(config)).setup
        layers = describe_layers(setup.module, setup.axes, setup.clients.dataset.example)
        outline = ModelOutline(setup.axes.cut_by_capacity, layers)
    fitting_records = {n: entry for n, entry in records.items() if _fits(entry, outline)}
    return HoldingsSource(config, outline, fitting_records, rounds_done, absent)


def _fits(holdings: Holdings, outline: ModelOutline) -> bool:
    """Whether a record fits this model; records of other models and damage are ignored."""
    tensors = sum(len(layer.tensors) for layer in outline.layers)
    try:
        for cut in holdings.cuts:
            for axis, text in cut.units.items():
                unpack_units(text, outline.axes[axis])
    except (KeyError, ValueError):
        return False
    holders = {client for cut in holdings.cuts for client in cut.clients}
    if (
        holdings.cuts
        and not {participant.client for participant in holdings.participants} <= holders
    ):
        return False
    capacities = {participant.capacity for participant in holdings.participants}
    if holdings.weights and holdings.weights.keys() != capacities:
        return False
    return all(len(counts) == tensors for counts in holdings.weights.values())


def _mask(units: NDArray[np.int64], size: int) -> NDArray[np.bool_]:
    mask = np.zeros(size, np.bool_)
    mask[units] = True
    return mask
