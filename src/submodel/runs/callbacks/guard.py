"""A callback of the user's: its failures end the run resumably, and it can change nothing."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from submodel.algorithm.tally import RoundReport
from submodel.algorithm.types import State
from submodel.errors import CallbackError
from submodel.runs.callbacks.base import Callback
from submodel.runs.metrics import RESERVED_NAMES, Metrics

if TYPE_CHECKING:
    from submodel.runs.training import Training

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class CallbackGuard(Callback):
    """Calls another callback with copies, checks what it returns, and names it where it fails."""

    def __init__(self, callback: Callback) -> None:
        self._callback = callback
        self._name = type(callback).__name__

    @property
    def looks_back(self) -> bool:
        """Whether the other callback does."""
        return self._callback.looks_back

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        """With copies of the state and the lines."""
        if self._does("begin"):
            copies = _copy(state), copy.deepcopy(history)
            self._call("begin", lambda: self._callback.begin(training, *copies))

    def after_merge(self, round_: int, report: RoundReport) -> None:
        """With a copy of the books."""
        if self._does("after_merge"):
            books = copy.deepcopy(report)
            self._call("after_merge", lambda: self._callback.after_merge(round_, books))

    def measure(self, before: State, after: State) -> Mapping[str, Any]:
        """Its entries, if they can stand in a line."""
        if not self._does("measure"):
            return {}
        return self._entries("measure", self._callback.measure, *self._copies(before, after))

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        """With copies of the states and the line."""
        if self._does("after_round"):
            copies = *self._copies(before, after), copy.deepcopy(line)
            self._call("after_round", lambda: self._callback.after_round(*copies))

    def stop(self, state: State, history: Sequence[Metrics]) -> None:
        """A failure is said and no more: the run ends already, for another reason."""
        try:
            self._call("stop", lambda: self._callback.stop(_copy(state), copy.deepcopy(history)))
        except CallbackError as error:
            _log.warning("%s", error)

    def finish(self, last: State, final: State, history: Sequence[Metrics]) -> Mapping[str, Any]:
        """Its entries, if they can stand in a summary."""
        if not self._does("finish"):
            return {}
        states, lines = (_copy(last), _copy(final)), copy.deepcopy(history)
        return self._entries("finish", self._callback.finish, *states, lines)

    def close(self) -> None:
        """A failure is said and no more."""
        try:
            self._call("close", self._callback.close)
        except CallbackError as error:
            _log.warning("%s", error)

    def _does(self, method: str) -> bool:
        """Whether it has a method of its own, which is worth a copy of the model."""
        return getattr(type(self._callback), method) is not getattr(Callback, method)

    def _copies(self, before: State, after: State) -> tuple[State, State]:
        """For a callback of ours, such as a tracker, none: it looks at the line alone."""
        return (_copy(before), _copy(after)) if self.looks_back else (before, after)

    def _call(self, method: str, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except Exception as error:
            raise CallbackError(
                f"callback {self._name}: {method} fails: {type(error).__name__}: {error}"
            ) from error

    def _entries(self, method: str, function: Callable[..., Any], *arguments: Any) -> Metrics:
        entries = self._call(method, lambda: function(*arguments))
        subject = f"callback {self._name}: {method} returns"
        if not isinstance(entries, Mapping) or not all(isinstance(key, str) for key in entries):
            raise CallbackError(f"{subject} {entries!r}; want a dictionary of names and numbers")
        if reserved_names := sorted(entries.keys() & RESERVED_NAMES):
            raise CallbackError(f"{subject} {reserved_names[0]!r}, which the run itself writes")
        try:
            json.dumps(dict(entries), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise CallbackError(
                f"{subject} {entries!r}, which cannot be written as JSON ({error}); use finite "
                "numbers, texts, and tables of them"
            ) from None
        return dict(entries)


def _copy(state: State) -> State:
    """A state that shares nothing with the one that is trained."""
    tensors, memory, slots = (
        {name: tensor.clone() for name, tensor in tensors.items()}
        for tensors in (state.tensors, state.memory, state.client_slots)
    )
    return State(state.round, tensors, memory, slots)
