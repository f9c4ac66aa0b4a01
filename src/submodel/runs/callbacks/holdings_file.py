"""Who held what in every round: a line each, and the shape of the model, once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from submodel.algorithm.tally import RoundReport
from submodel.algorithm.types import State
from submodel.model.inspect import describe_layers
from submodel.runs.callbacks.base import Callback
from submodel.runs.folder import RunFolder
from submodel.runs.holdings_file import ModelOutline, holdings_line, write_model_outline
from submodel.runs.metrics import Metrics

if TYPE_CHECKING:
    from submodel.runs.training import Training


class HoldingsFile(Callback):
    """Appends a line to ``coverage.jsonl`` once a round counts, before its checkpoint."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._waiting: tuple[int, str] | None = None  # the round and its line

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        """Write the shape of the model."""
        setup = training.setup
        layers = describe_layers(setup.module, setup.axes, setup.clients.dataset.example)
        outline = ModelOutline(setup.axes.cut_by_capacity, layers)
        write_model_outline(self._folder.outline_file, outline)

    def after_merge(self, round_: int, report: RoundReport) -> None:
        """Keep the line until the round counts."""
        self._waiting = round_, holdings_line(round_, report.holdings)

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        """Write it."""
        self._write(after.round)

    def stop(self, state: State, history: Sequence[Metrics]) -> None:
        """Write it, if the run was stopped in between."""
        self._write(state.round)

    def _write(self, round_: int) -> None:
        if self._waiting is not None and self._waiting[0] == round_:
            with self._folder.holdings_file.open("a", encoding="utf-8") as file:
                file.write(self._waiting[1])
            self._waiting = None
