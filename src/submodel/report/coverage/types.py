"""What of a model was held by whom, round by round: plain data that a page can draw.

`RunCoverage.json` is all of it as JSON. Large tables are `Grid`s: bytes in base64, so that a run of
two hundred rounds fits in some hundred kilobytes; a page reads them with `atob`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from submodel.algorithm.tally import unpack_units
from submodel.model.inspect import LayerTensor, ModelLayer, TensorDimension

__all__ = [
    "AxisCoverage",
    "ClientCut",
    "Grid",
    "LayerTensor",
    "ModelLayer",
    "RoundClients",
    "RunCoverage",
    "TensorDimension",
]


@dataclass(frozen=True)
class Grid:
    """A table of numbers from 0 on, a byte each: the number is ``byte * step``.

    Args:
        rows: how many there are, one for every round that is shown.
        columns: how many there are, one for every unit, or stretch of units.
        step: what a byte counts. 1: the numbers are whole, and exact.
        cells: the bytes, row by row, in base64.
    """

    rows: int
    columns: int
    step: float
    cells: str

    @classmethod
    def of(cls, numbers: NDArray[np.float64]) -> Grid:
        """The table of these numbers; rounded to a 255th of the largest where that is needed.

        Args:
            numbers: rows and columns.

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
        """The numbers."""
        cells = np.frombuffer(base64.b64decode(self.cells), np.uint8).astype(np.float64)
        return cells.reshape(self.rows, self.columns) * self.step


@dataclass(frozen=True)
class AxisCoverage:
    """How many clients held every unit of an axis, in every round that is shown.

    Args:
        name: of the axis; of a tensor, where single weights are cut.
        size: how many units it has, or weights.
        cuts: what lies along it: whole ``units``, or single ``weights``, which are not told apart:
            their one column is the mean number of clients that held a weight of the tensor.
        units_per_column: how many units a column stands for; more than 1: their mean.
        layers: the names of the layers that it cuts, in the order of the model.
        holders: how many clients held each column, a grid for every capacity of the run: in the
            order of `RunCoverage.capacities`, a row for every round of `RunCoverage.rounds`.
    """

    name: str
    size: int
    cuts: Literal["units", "weights"]
    units_per_column: int
    layers: tuple[str, ...]
    holders: tuple[Grid, ...]

    def total(self) -> NDArray[np.float64]:
        """How many clients of any capacity held each column: rounds x columns."""
        return np.asarray(np.sum([grid.array() for grid in self.holders], axis=0))


@dataclass(frozen=True)
class RoundClients:
    """Who took part in a round, with an update that was merged.

    Args:
        number: of the round, from 1.
        clients: their numbers, ascending.
        capacities: of each, its place in `RunCoverage.capacities`.
    """

    number: int
    clients: tuple[int, ...]
    capacities: tuple[int, ...]


@dataclass(frozen=True)
class ClientCut:
    """What one client held in one round.

    Args:
        round: from 1.
        client: its number.
        capacity: its place in `RunCoverage.capacities`.
        units: by axis, a bit for every unit, the first unit first (the highest bit of the first
            byte), in base64; an axis that is not named is held whole.
        shares: by tensor, the share of its weights, where single weights are cut.
    """

    round: int
    client: int
    capacity: int
    units: Mapping[str, str]
    shares: Mapping[str, float]

    def unit_mask(self, axis: str, size: int) -> NDArray[np.bool_]:
        """Which units of an axis the client held.

        Args:
            axis: its name.
            size: how many units it has.

        >>> ClientCut(1, 3, 0, {"hidden": "sA=="}, {}).unit_mask("hidden", 4)
        array([ True, False,  True,  True])
        """
        if axis not in self.units:
            return np.ones(size, np.bool_)
        return unpack_units(self.units[axis], size)


@dataclass(frozen=True)
class RunCoverage:
    """What of the model of a run was held by whom.

    Args:
        scheme: the name of the scheme.
        rounds: those that are shown, ascending; of long runs a sample (``notes`` says so).
        rounds_done: how many rounds the run has behind it.
        clients: how many are registered.
        capacities: that clients had, descending; where there are very many, a few that stand for
            those below them.
        axes: what is cut, in the order of the model.
        layers: the model's layers that have parameters, in the order of its forward.
        cuts: examples of what a client holds: for rounds that are shown, of every capacity the
            first client that took part; ordered by round, then by capacity.
        sources: how the cuts are known: ``recorded`` while training, ``drawn`` again from the seed,
            or both.
        notes: what a reader must know to read it right, a sentence each.
    """

    scheme: str
    rounds: tuple[RoundClients, ...]
    rounds_done: int
    clients: int
    capacities: tuple[float, ...]
    axes: tuple[AxisCoverage, ...]
    layers: tuple[ModelLayer, ...]
    cuts: tuple[ClientCut, ...]
    sources: tuple[Literal["recorded", "drawn"], ...]
    notes: tuple[str, ...]

    def json(self) -> dict[str, Any]:
        """All of it as objects, lists, texts and numbers, by the names of the fields."""
        return asdict(self)

    def times_held(self, axis: str) -> Sequence[float]:
        """The mean number of holders of every column of an axis, over the rounds shown.

        Args:
            axis: its name.
        """
        for coverage in self.axes:
            if coverage.name == axis:
                return [float(mean) for mean in coverage.total().mean(0)]
        raise KeyError(axis)
