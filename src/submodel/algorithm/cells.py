"""Where a round's updates are added up: in one place, or in each cell of a hierarchical scheme.

Clients of a cell average among themselves. In rounds that `Scheme.joins` names, the cells' models
w_c are merged, by the rule of the run, and until then the global model w waits:

    delta_j = sum_c h_c[j] (w_c[j] - w[j]) / D_j,

with D_j = sum_c h_c[j] (``selective``) or sum_c a_c (``fill_in``). a_c is the weight of all the
updates that cell c took since the last join, h_c[j] of those that held weight j. All clients of a
cell have one cut m_c, so h_c = a_c m_c, but for rows of the classifier, which clients without the
label do not hold: these, and these alone, are counted row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from submodel.algorithm.merge import average
from submodel.algorithm.types import Setup, State
from submodel.model.axes import CLASSES, Axes
from submodel.model.cut import Cut

CutOfCell = Callable[[int], Cut]
_OWNER = "cells"


def _row_counted_tensors(axes: Axes) -> list[str]:
    """The tensors that are also cut by the labels a client has."""
    return [
        name
        for name, layouts in axes.layouts.items()
        if any(CLASSES in layout.axes() for layout in layouts)
    ]


def begin(setup: Setup, state: State) -> State:
    """The state in which all cells begin from the global model, without updates so far."""
    cells, tensors = setup.scheme.cells, setup.travel.of_update(state.tensors)
    if cells == 1:
        return state
    memory = {"weights": torch.zeros(cells, dtype=torch.float64)}
    for cell in range(cells):  # copies: a file of tensors cannot hold one under two names
        memory |= {f"{cell}/model/{name}": t.clone() for name, t in tensors.items()}
        memory |= {f"{cell}/held/{name}": torch.zeros_like(tensors[name], dtype=torch.float64)
                   for name in _row_counted_tensors(setup.axes)}  # fmt: skip
    return state.remember(_OWNER, memory)


class Cells:
    """The cells of one round: where each begins, and its sums."""

    def __init__(self, setup: Setup, state: State) -> None:
        self._setup, self._state = setup, state
        self._of = setup.scheme
        self._count = self._of.cells
        self._memory = state.recall(_OWNER)
        self._tensors_back = setup.travel.of_update(state.tensors)
        self.bases: list[Mapping[str, Tensor]] = [state.tensors]
        if self._count > 1:
            self.bases = [
                {n: self._memory.get(f"{cell}/model/{n}", t) for n, t in state.tensors.items()}
                for cell in range(self._count)
            ]
        trained_bases = [setup.travel.of_update(base) for base in self.bases]
        self.accumulators = [setup.begin_sums(base) for base in trained_bases]

    def number(self, client: int) -> int:
        """The cell of a client."""
        return self._of.cell(client)

    @property
    def can_overwrite(self) -> bool:
        """Whether the merged tensors may take the place of those before."""
        return self._count == 1 and self.accumulators[0].can_overwrite

    def merge(
        self, cut_of_cell: CutOfCell, *, overwrite: bool = False, writes: bool = True
    ) -> tuple[State, Mapping[str, Tensor], bool]:
        """The state with the merged tensors, what was held of them, and whether it is global.

        Args:
            cut_of_cell: what a cell holds.
            overwrite: let them take the place of those before.
            writes: whether this process puts them there.
        """
        if self._count == 1:
            (sums,) = self.accumulators
            tensors = sums.merge(in_place=overwrite, writes=writes)
            return self._with(tensors), sums.coverage_masks(), True
        memory = self._after_round()
        if self._of.joins(self._state.round):
            tensors, coverage = self._join(memory, cut_of_cell)
            return self._with(tensors), coverage, True
        nothing = {n: torch.zeros_like(t, dtype=torch.bool) for n, t in self._tensors_back.items()}
        return self._state.remember(_OWNER, memory), nothing, False

    def _with(self, tensors: Mapping[str, Tensor]) -> State:
        """The state with these tensors; what is not trained stays."""
        return replace(self._state, tensors={**self._state.tensors, **tensors})

    def _after_round(self) -> dict[str, Tensor]:
        """Every cell's new average, and the weight of all its updates so far."""
        new = torch.tensor([sums.weight for sums in self.accumulators], dtype=torch.float64)
        memory = self._memory | {"weights": self._memory["weights"] + new}
        for cell, sums in enumerate(self.accumulators):
            if sums.count:  # a cell may have no client in a round
                memory |= {f"{cell}/model/{name}": t for name, t in sums.merge().items()}
                rows = sums.holder_weights(_row_counted_tensors(self._setup.axes))
                memory |= {f"{cell}/held/{n}": memory[f"{cell}/held/{n}"] + h
                           for n, h in rows.items()}  # fmt: skip
        return memory

    def _join(
        self, memory: Mapping[str, Tensor], cut_of_cell: CutOfCell
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The cells' models merged, and what any of them held."""
        weights = memory["weights"].tolist()
        cuts = {cell: cut_of_cell(cell) for cell, total in enumerate(weights) if total}
        tensors, coverage = {}, {}
        for name, whole in self._tensors_back.items():
            move, weight = (torch.zeros_like(whole, dtype=torch.float64) for _ in range(2))
            for cell, cut in cuts.items():
                holders = memory.get(f"{cell}/held/{name}")
                if holders is None:
                    holders = torch.zeros_like(weight)
                    cut.add(name, holders, weights[cell])
                move += holders * (memory[f"{cell}/model/{name}"].double() - whole.double())
                weight += holders
            tensors[name] = average(whole, move, weight, sum(weights), self._setup.rule)
            coverage[name] = weight > 0
        return tensors, coverage
