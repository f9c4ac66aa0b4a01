"""Cells of clients, each of which trains one part of the model between joins (HIST)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from submodel.core.options import Count, Section
from submodel.core.randomness import generator
from submodel.model.axes.declare import units_held
from submodel.schemes.scheme import Draw, Mask, RunFacts, Scheme, SchemeContext


@lru_cache(maxsize=4)
def _owners(seed: int, period: int, axis: str, size: int, cells: int) -> NDArray[np.int32]:
    order = generator(seed, "cells", period, axis).permutation(size)
    owners = np.empty(size, dtype=np.int32)
    for cell, part in enumerate(np.array_split(order, cells)):
        owners[part] = cell
    return owners


@dataclass(frozen=True)
class Hierarchical(Scheme):
    """Disjoint sub-models, one per cell of clients (Fang, Han, Brinton 2024, "Submodel Partitioning
    in Hierarchical Federated Learning: Algorithm Design and Convergence Analysis", HIST).

    Client i belongs to cell i mod C. A period is ``every`` rounds, E. In period t = floor(r / E)
    every axis of n units is split by one permutation sigma_{t, axis} into C parts of floor(n / C)
    or ceil(n / C) units; all clients of cell c hold part c, even if their capacity allows more.

    Within a period the clients of a cell average among themselves and continue from their own
    average. The last round of a period joins the cells: each part comes from its own cell; weights
    that several cells hold (on no cut axis, such as a classifier's bias) are averaged by the total
    weight of the cells' updates; weights between units of different cells stay. Only then does the
    server take its step and project. Until then the global model, and so every evaluation, is that
    of the last join. One cell is plain training of the whole model.
    """

    count: int = 4
    every: int = 5

    class Options(Section):
        """The keys of ``hierarchical``."""

        cells: Count = Field(4, description="cells of clients, and parts of the model")
        every: Count = Field(5, description="rounds between joins")

    @classmethod
    def configured(cls, options: Options, context: SchemeContext) -> Self:  # noqa: ARG003
        """Make the scheme with the configured cells."""
        return cls(options.cells, options.every)

    @property
    def cells(self) -> int:  # type: ignore[override]
        """Number of cells, which is the number of parts."""
        return self.count

    def cell(self, client: int) -> int:
        """Return the cell: clients are assigned in turn.

        >>> [Hierarchical(3).cell(client) for client in range(5)]
        [0, 1, 2, 0, 1]
        """
        return client % self.count

    def joins(self, round_: int) -> bool:
        """Return whether the round is the last of its period.

        >>> [Hierarchical(every=2).joins(r) for r in range(4)]
        [False, True, False, True]
        """
        return (round_ + 1) % self.every == 0

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:  # noqa: ARG002
        """Select the part of the client's cell in this period.

        >>> a, b = (Hierarchical(2).select("hidden", 4, 1.0, Draw(0, 0, c)) for c in (0, 1))
        >>> a ^ b
        array([ True,  True,  True,  True])
        """
        period = draw.round // self.every
        owners = _owners(draw.seed, period, axis, size, self.count)
        return np.equal(owners, self.cell(draw.client))

    def problems(self, run: RunFacts) -> list[str]:
        """Return problems: cells without clients or units, too small clients, lost rounds."""
        if self.count == 1:
            return []
        smallest = min(run.capacities)
        if run.granularity == "unit" and smallest == 1:
            return [
                "clients.capacities: if all are 1, axes are not searched for; clients of "
                f"{self.count} cells need 1/{self.count}"
            ]
        problems = []
        if self.count > run.clients:
            problems.append(
                f"scheme.cells: {self.count} cells are more than the {run.clients} clients"
            )
        for axis, size in run.sizes.items():
            largest = -(-size // self.count)
            if size < self.count:
                problems.append(
                    f"scheme.cells: {self.count} cells are more than the {size} units of axis "
                    f"{axis}; see axes.whole"
                )
            elif units_held(smallest, size) < largest:
                problems.append(
                    f"clients.capacities: {smallest:g} holds {units_held(smallest, size)} of the "
                    f"{size} units of axis {axis}, but a part of {self.count} cells has {largest}; "
                    "give larger capacities or more scheme.cells"
                )
            least = run.least.get(axis, 0.0)
            if units_held(least, size) > size // self.count:
                problems.append(
                    f"axes.least: {least:g} of axis {axis} is more than a part of "
                    f"{self.count} cells; use axes.whole"
                )
        if run.rounds % self.every:
            problems.append(
                f"train.rounds: {run.rounds} is not a multiple of the period, {self.every} rounds "
                "(scheme.every): rounds after the last join would be lost"
            )
        if run.output_step:
            problems.append(
                "train.output_step: not defined for 'hierarchical', whose masks depend on the cell"
            )
        return problems
