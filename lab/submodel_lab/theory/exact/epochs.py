"""The rounds of an epoch, from its start on: linear maps of E[z z'], as matrices.

Moments are kept as the upper triangle of E[z z'], P numbers. After r rounds of an epoch they are
Psi_r times those at its start: Psi_1 alone where masks are fresh every round, products in order for
sequential windows, and for shuffled ones the mean over all orders, by recursion over the sets S of
windows that were visited: Psi_S = (1/|S|) sum_{j in S} Phi_j Psi_{S - j}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from submodel_lab.theory.exact.round_maps import RoundMap
from submodel_lab.theory.mask_laws import ListLaw, MaskLaw
from submodel_lab.theory.problems import FloatArray, TheoryError

MOST_WINDOWS = 12
"""Windows of which all sets are gone through, for the mean over their orders."""
_MOST_NUMBERS = 1 << 28  # in the matrices that are in memory at a time

MakeRound = Callable[[MaskLaw, float], RoundMap]
"""One round with these masks and this step size."""


@dataclass(frozen=True)
class Triangle:
    """Symmetric matrices of a size as the numbers of their upper triangles."""

    size: int

    @property
    def _places(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        return np.triu_indices(self.size)

    @property
    def numbers(self) -> int:
        """P."""
        return self.size * (self.size + 1) // 2

    def pack(self, matrices: FloatArray) -> FloatArray:
        """The upper triangles."""
        rows, columns = self._places
        return np.asarray(matrices[..., rows, columns])

    def unpack(self, numbers: FloatArray) -> FloatArray:
        """Whole matrices."""
        rows, columns = self._places
        matrices = np.zeros((*numbers.shape[:-1], self.size, self.size))
        matrices[..., rows, columns] = numbers
        matrices[..., columns, rows] = numbers
        return matrices

    def weigh(self, matrix: FloatArray) -> FloatArray:
        """The functional <matrix, Z> of a symmetric Z, in the numbers of its triangle."""
        rows, columns = self._places
        return self.pack((matrix + matrix.T) / 2) * np.where(rows == columns, 1.0, 2.0)

    def tabulate(self, map_: RoundMap) -> FloatArray:
        """The matrix of a round."""
        return np.ascontiguousarray(self.pack(map_(self.unpack(np.eye(self.numbers)))).T)


def epoch_length(law: MaskLaw) -> int:
    """Rounds after which masks begin anew, whatever came before."""
    if not isinstance(law, ListLaw):
        return 1
    return law.every if law.order == "fresh" else len(law.masks)


def epoch_stages(
    law: MaskLaw, make_round: MakeRound, triangle: Triangle, etas: Sequence[float]
) -> list[FloatArray]:
    """Psi_1 ... Psi_L of an epoch whose rounds have these step sizes."""
    if not isinstance(law, ListLaw) or (law.order == "fresh" and law.every == 1):
        return [triangle.tabulate(make_round(law, etas[0]))]
    entries = len(law.masks)
    tables: dict[tuple[int, float], FloatArray] = {}

    def table(entry: int, eta: float) -> FloatArray:
        if (entry, eta) not in tables:
            one_mask = ListLaw(law.masks[entry : entry + 1], np.ones(1))
            tables[entry, eta] = triangle.tabulate(make_round(one_mask, eta))
        return tables[entry, eta]

    if entries * triangle.numbers**2 > _MOST_NUMBERS:
        raise TheoryError(
            f"{entries} masks of {triangle.size - 1} coordinates that outlast a round: their maps "
            "do not fit in memory; take fewer"
        )
    if law.order == "fresh":
        stages = [np.zeros((triangle.numbers, triangle.numbers)) for _ in etas]
        for entry, chance in enumerate(law.chances):
            after = np.eye(triangle.numbers)
            for stage, eta in zip(stages, etas, strict=True):
                after = table(entry, eta) @ after
                stage += chance * after
        return stages
    if law.order == "sequential":
        stages = [np.eye(triangle.numbers)]
        for entry, eta in enumerate(etas):
            stages.append(table(entry, eta) @ stages[-1])
        return stages[1:]
    return list(_over_orders(entries, table, etas, triangle.numbers))


def _over_orders(
    windows: int, table: Callable[[int, float], FloatArray], etas: Sequence[float], numbers: int
) -> Iterator[FloatArray]:
    if windows > MOST_WINDOWS:
        raise TheoryError(
            f"{windows} shuffled windows: all sets of up to {MOST_WINDOWS} are gone through; "
            "take fewer windows, or the sequential order"
        )
    level: dict[frozenset[int], FloatArray] = {frozenset(): np.eye(numbers)}
    for size, eta in enumerate(etas, start=1):
        visits = [frozenset(members) for members in combinations(range(windows), size)]
        if len(visits) * numbers**2 > _MOST_NUMBERS:
            raise TheoryError(
                f"{windows} shuffled windows with {numbers} moments: the maps of all sets do not "
                "fit in memory; take fewer windows or coordinates"
            )
        level = {
            members: np.mean([table(j, eta) @ level[members - {j}] for j in members], 0)
            for members in visits
        }
        yield np.mean(list(level.values()), 0)
