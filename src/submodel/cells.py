"""Where a round's updates are added up: in one place, or in each cell of a hierarchical scheme.

Clients of a cell average among themselves. In rounds that `Scheme.joins` names, the cells' models
are merged, each with the cut that its cell holds; until then the global model waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from submodel.cut import Cut, gather
from submodel.exchange import Setup, State
from submodel.merge import Accumulator

CutOfCell = Callable[[int], Cut]
_OWNER, _WEIGHTS = "cells", "weights"


def begin(cells: int, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The memory of a run with several cells: every cell's model, and how many updates it took."""
    if cells == 1:
        return {}
    memory = {f"{_OWNER}/{_WEIGHTS}": torch.zeros(cells, dtype=torch.float64)}
    for cell in range(cells):
        memory |= {f"{_OWNER}/{cell}/{name}": t.clone() for name, t in tensors.items()}
    return memory


class Cells:
    """The cells of one round: where each begins, and its sums."""

    def __init__(self, setup: Setup, state: State) -> None:
        self._setup, self._state = setup, state
        count = setup.scheme.cells
        self.bases: list[Mapping[str, Tensor]] = [state.tensors]
        if count > 1:
            memory = state.recall(_OWNER)
            self.bases = [
                {name: memory[f"{cell}/{name}"] for name in state.tensors} for cell in range(count)
            ]
            self._weights = memory[_WEIGHTS]
        self.accumulators = [Accumulator(base, setup.rule) for base in self.bases]

    def merge(self, cut_of_cell: CutOfCell) -> tuple[State, dict[str, Tensor], bool]:
        """The state with the merged tensors, what was held of them, and whether it is global."""
        if len(self.bases) == 1:
            (own,) = self.accumulators
            merged = State(self._state.round, own.merge(), self._state.memory)
            return merged, own.covered(), True
        models = [own.merge() if own.added else dict(base)
                  for own, base in zip(self.accumulators, self.bases, strict=True)]  # fmt: skip
        weights = self._weights + torch.tensor([float(own.added) for own in self.accumulators])
        if not self._setup.scheme.joins(self._state.round):
            covered = {n: torch.zeros_like(t, dtype=torch.bool)
                       for n, t in self._state.tensors.items()}  # fmt: skip
            return self._remember(self._state, models, weights), covered, False
        joint = Accumulator(self._state.tensors, self._setup.rule)
        for cell, (model, weight) in enumerate(zip(models, weights.tolist(), strict=True)):
            if weight:
                cut = cut_of_cell(cell)
                joint.add(cut, gather(cut, model), weight)
        return State(self._state.round, joint.merge(), self._state.memory), joint.covered(), True

    def start_again(self, state: State) -> State:
        """After the cells were joined, all go on from the global model."""
        count = len(self.bases)
        if count == 1:
            return state
        return self._remember(state, [state.tensors] * count, torch.zeros_like(self._weights))

    @staticmethod
    def _remember(state: State, models: Sequence[Mapping[str, Tensor]], weights: Tensor) -> State:
        memory = {_WEIGHTS: weights}
        for cell, model in enumerate(models):
            memory |= {f"{cell}/{name}": tensor for name, tensor in model.items()}
        return state.remember(_OWNER, memory)
