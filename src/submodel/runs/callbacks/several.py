"""Several callbacks as one, called in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from submodel.algorithm.tally import RoundReport
from submodel.algorithm.types import State
from submodel.runs.callbacks.base import Callback
from submodel.runs.metrics import Metrics, with_entries

if TYPE_CHECKING:
    from submodel.runs.training import Training


class Several(Callback):
    """Callbacks that are called one after another."""

    def __init__(self, members: Sequence[Callback]) -> None:
        self._members = members

    @property
    def looks_back(self) -> bool:
        """Whether any of them does."""
        return any(member.looks_back for member in self._members)

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        """All of them."""
        for member in self._members:
            member.begin(training, state, history)

    def after_merge(self, round_: int, report: RoundReport) -> None:
        """All of them."""
        for member in self._members:
            member.after_merge(round_, report)

    def complete(self, before: State, after: State, line: Metrics) -> Metrics:
        """The line of a round with the entries of all."""
        for member in self._members:
            line = with_entries(line, member.measure(before, after))
        return line

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        """All of them."""
        for member in self._members:
            member.after_round(before, after, line)

    def stop(self, state: State, history: Sequence[Metrics]) -> None:
        """All of them."""
        for member in self._members:
            member.stop(state, history)

    def finish(self, last: State, final: State, history: Sequence[Metrics]) -> Mapping[str, Any]:
        """The entries of all."""
        entries: Metrics = {}
        for member in self._members:
            entries = with_entries(entries, member.finish(last, final, history))
        return entries

    def close(self) -> None:
        """All of them."""
        for member in self._members:
            member.close()
