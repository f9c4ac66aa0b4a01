"""The callback protocol: callbacks observe a run and do not change the training."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from submodel.algorithm.round_statistics import RoundReport
from submodel.algorithm.types import State
from submodel.core.errors import CallbackError
from submodel.runs.metrics import RESERVED_NAMES, Metrics, with_entries

if TYPE_CHECKING:
    from submodel.runs.training import Training

_log = logging.getLogger(__name__)
OnRound = Callable[[Metrics], object]


class Callback:
    """A callback around the rounds of a run; each method does nothing unless it is overridden.

    `measure` is called first and may add entries to the round's line of metrics. Then the round
    counts, and `after_round` is called with the complete line. In a group of processes a user's
    callbacks are called in the first process only, with copies. An exception in a callback ends the
    run, which can be resumed.

    >>> import submodel, torch
    >>> class Norm(submodel.Callback):
    ...     def measure(self, before, after):
    ...         return {"norm": float(sum(t.square().sum() for t in after.tensors.values()))}
    >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    >>> config = {"scheme": {"granularity": "coordinate"}, "train": {"rounds": 1}}
    >>> result = submodel.train(net, submodel.digits(), config, callbacks=[Norm()])
    >>> result.history[0]["norm"] > 0
    True
    """

    @property
    def looks_back(self) -> bool:
        """Whether the model before a round is needed, which doubles its memory."""
        methods = (getattr(type(self), name) for name in ("measure", "after_round"))
        return any((method.__module__ or "").partition(".")[0] != "submodel" for method in methods)

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        """Called when the run begins or is resumed.

        Args:
            training: configuration and setup; ``training.model(state)`` is a module.
            state: state that the run starts from; ``state.round`` rounds are done.
            history: lines of the finished rounds.
        """

    def after_merge(self, round_: int, report: RoundReport) -> None:
        """Called when the updates of a round are merged, before it is measured and counts.

        Args:
            round_: number of the round, from 1.
            report: statistics of the round: traffic, merged and refused updates, held units.
        """

    def measure(self, before: State, after: State) -> Mapping[str, Any]:
        """Return further entries for the line of a round.

        Args:
            before: state before the round.
            after: state after the round.

        Returns:
            Numbers, texts, or tables of them, under names that the line does not have yet.
        """
        return {}

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        """Called when a round counts and its line is complete.

        Args:
            before: state before the round.
            after: state after the round.
            line: line of the round in `metrics.jsonl`.
        """

    def stop(self, state: State, history: Sequence[Metrics]) -> None:
        """Called when the run stops before its end; it may be resumed.

        Args:
            state: state after the last round that counts.
            history: lines of the rounds that count.
        """

    def finish(self, last: State, final: State, history: Sequence[Metrics]) -> Mapping[str, Any]:
        """Called when all rounds are done.

        Args:
            last: state after the last round.
            final: result: ``last``, or the state after the output step.
            history: lines of all rounds.

        Returns:
            Entries for the summary of the run.
        """
        return {}

    def close(self) -> None:
        """Called once at the very end, however the run ended."""


class CallbackList(Callback):
    """Callbacks that are called one after another."""

    def __init__(self, members: Sequence[Callback]) -> None:
        self._members = members

    @property
    def looks_back(self) -> bool:
        """Whether any of them needs the model before a round."""
        return any(member.looks_back for member in self._members)

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        """Call ``begin`` of all."""
        for member in self._members:
            member.begin(training, state, history)

    def after_merge(self, round_: int, report: RoundReport) -> None:
        """Call ``after_merge`` of all."""
        for member in self._members:
            member.after_merge(round_, report)

    def complete(self, before: State, after: State, line: Metrics) -> Metrics:
        """Add the entries of all to the line of a round."""
        for member in self._members:
            line = with_entries(line, member.measure(before, after))
        return line

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        """Call ``after_round`` of all."""
        for member in self._members:
            member.after_round(before, after, line)

    def stop(self, state: State, history: Sequence[Metrics]) -> None:
        """Call ``stop`` of all."""
        for member in self._members:
            member.stop(state, history)

    def finish(self, last: State, final: State, history: Sequence[Metrics]) -> Mapping[str, Any]:
        """Join the entries of all."""
        entries: Metrics = {}
        for member in self._members:
            entries = with_entries(entries, member.finish(last, final, history))
        return entries

    def close(self) -> None:
        """Call ``close`` of all."""
        for member in self._members:
            member.close()


class RoundCallback(Callback):
    """Calls a function with the line of every round, including those before a resumption."""

    def __init__(self, on_round: OnRound) -> None:
        self._on_round = on_round

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        """Pass on the lines of finished rounds."""
        for line in history:
            self._on_round(line)

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        """Pass on the line of the round."""
        self._on_round(line)


class CallbackGuard(Callback):
    """Guard of a user's callback: it passes copies, checks the results and names it in errors."""

    def __init__(self, callback: Callback) -> None:
        self._callback = callback
        self._name = type(callback).__name__

    @property
    def looks_back(self) -> bool:
        """Whether the guarded callback needs the model before a round."""
        return self._callback.looks_back

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        """Call it with copies of the state and the lines."""
        if self._does("begin"):
            self._call("begin", training, _copy(state), copy.deepcopy(history))

    def after_merge(self, round_: int, report: RoundReport) -> None:
        """Call it with a copy of the statistics."""
        if self._does("after_merge"):
            self._call("after_merge", round_, copy.deepcopy(report))

    def measure(self, before: State, after: State) -> Mapping[str, Any]:
        """Return its entries, checked for a line of metrics."""
        if not self._does("measure"):
            return {}
        return self._entries("measure", *self._copies(before, after))

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        """Call it with copies of the states and the line."""
        if self._does("after_round"):
            self._call("after_round", *self._copies(before, after), copy.deepcopy(line))

    def stop(self, state: State, history: Sequence[Metrics]) -> None:
        """Call it; a failure is only logged, because the run already ends for another reason."""
        if self._does("stop"):
            self._try("stop", _copy(state), copy.deepcopy(history))

    def finish(self, last: State, final: State, history: Sequence[Metrics]) -> Mapping[str, Any]:
        """Return its entries, checked for a summary."""
        if not self._does("finish"):
            return {}
        return self._entries("finish", _copy(last), _copy(final), copy.deepcopy(history))

    def close(self) -> None:
        """Call it; a failure is only logged."""
        self._try("close")

    def _does(self, method: str) -> bool:
        """Whether the callback overrides a method; otherwise nothing is copied for it."""
        return getattr(type(self._callback), method) is not getattr(Callback, method)

    def _copies(self, before: State, after: State) -> tuple[State, State]:
        """Copy both states; built-in trackers read only the line and need no copies."""
        return (_copy(before), _copy(after)) if self.looks_back else (before, after)

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._callback, method)(*arguments)
        except Exception as error:
            raise CallbackError(
                f"callback {self._name}: {method} fails: {type(error).__name__}: {error}"
            ) from error

    def _try(self, method: str, *arguments: Any) -> None:
        try:
            self._call(method, *arguments)
        except CallbackError as error:
            _log.warning("%s", error)

    def _entries(self, method: str, *arguments: Any) -> Metrics:
        entries = self._call(method, *arguments)
        subject = f"callback {self._name}: {method} returns"
        if not isinstance(entries, Mapping) or not all(isinstance(key, str) for key in entries):
            raise CallbackError(f"{subject} {entries!r}, not a dictionary of names and numbers")
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

    tensors, memory, slots = (
        {name: tensor.clone() for name, tensor in tensors.items()}
        for tensors in (state.tensors, state.memory, state.client_slots)
    )
    return State(state.round, tensors, memory, slots)
