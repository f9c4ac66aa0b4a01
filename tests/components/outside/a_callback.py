"""A callback in Python: distance of the model from its start."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from submodel import Callback
from submodel.algorithm.types import State
from submodel.runs.metrics import Metrics

if TYPE_CHECKING:
    from submodel.runs.training import Training


class Distance(Callback):
    def begin(self, training: "Training", state: State, history: list[Metrics]) -> None:
        self._start = state.tensors

    def measure(self, before: State, after: State) -> Mapping[str, float]:
        moves = [(after.tensors[n] - t).double() for n, t in self._start.items()]
        return {"distance": float(sum(m.square().sum() for m in moves)) ** 0.5}
