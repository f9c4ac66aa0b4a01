"""Callbacks: they see a run from outside and change nothing of the training."""

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

    A round is *measured* first, which may add entries to its line of the metrics. Then it counts,
    and all callbacks see it, with the line complete. In a group of processes a user's callbacks are
    called in the first process only, with copies. One that fails ends the run, which `resume`
    continues.

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
        """Whether it may look at the model before a round: then a large one is there twice."""
        methods = (getattr(type(self), name) for name in ("measure", "after_round"))
        return any((method.__module__ or "").partition(".")[0] != "submodel" for method in methods)

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        """The run begins or goes on.

        Args:
            training: the configuration and the setup; ``training.model(state)`` is a module.
            state: the model that the run goes on from; its ``round`` is how many are done.
            history: the lines of the rounds that are done.
        """

    def after_merge(self, round_: int, report: RoundReport) -> None:
        """The updates of a round are merged; it is not measured yet, and does not count.

        Args:
            round_: its number, from 1.
            report: its books: what was sent, merged and refused, and who held what.
        """

    def measure(self, before: State, after: State) -> Mapping[str, Any]:
        """Entries for the line of the round that led from one state to the other.

        Args:
            before: the model before the round.
            after: the model after it.

        Returns:
            Numbers, texts, or tables of them, by names that the line does not have yet.
        """
        return {}

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        """A round counts, and its line is complete.

        Args:
            before: the model before the round.
            after: the model after it.
            line: what `metrics.jsonl` says of the round.
        """

    def stop(self, state: State, history: Sequence[Metrics]) -> None:
        """The run stops before its end, and may be resumed.

        Args:
            state: the model after the last round that counts.
            history: the lines of the rounds that count.
        """

    def finish(self, last: State, final: State, history: Sequence[Metrics]) -> Mapping[str, Any]:
        """All rounds are done.

        Args:
            last: the model after the last round.
            final: the result: ``last``, or the model after the output step.
            history: the lines of all rounds.

        Returns:
            Entries for the run's summary.
        """
        return {}

    def close(self) -> None:
        """Nothing more follows, however the run ended; called once."""


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


class Tell(Callback):
    """Calls a function with the line of every round, also of those before a resumed run began."""

    def __init__(self, on_round: OnRound) -> None:
        self._on_round = on_round

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        """The rounds that are done."""
        for line in history:
            self._on_round(line)

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        """One more."""
        self._on_round(line)


class CallbackGuard(Callback):
    """A user's callback: it gets copies, its results are checked, a failure names it."""

    def __init__(self, callback: Callback) -> None:
        self._callback = callback
        self._name = type(callback).__name__

    @property
    def looks_back(self) -> bool:
        """Whether the guarded callback does."""
        return self._callback.looks_back

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        """With copies of the state and the lines."""
        if self._does("begin"):
            self._call("begin", training, _copy(state), copy.deepcopy(history))

    def after_merge(self, round_: int, report: RoundReport) -> None:
        """With a copy of the books."""
        if self._does("after_merge"):
            self._call("after_merge", round_, copy.deepcopy(report))

    def measure(self, before: State, after: State) -> Mapping[str, Any]:
        """Its entries, if they can stand in a line."""
        if not self._does("measure"):
            return {}
        return self._entries("measure", *self._copies(before, after))

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        """With copies of the states and the line."""
        if self._does("after_round"):
            self._call("after_round", *self._copies(before, after), copy.deepcopy(line))

    def stop(self, state: State, history: Sequence[Metrics]) -> None:
        """A failure is only logged: the run ends already, for another reason."""
        if self._does("stop"):
            self._try("stop", _copy(state), copy.deepcopy(history))

    def finish(self, last: State, final: State, history: Sequence[Metrics]) -> Mapping[str, Any]:
        """Its entries, if they can stand in a summary."""
        if not self._does("finish"):
            return {}
        return self._entries("finish", _copy(last), _copy(final), copy.deepcopy(history))

    def close(self) -> None:
        """A failure is only logged."""
        self._try("close")

    def _does(self, method: str) -> bool:
        """Whether the callback overrides a method: only then is the model copied for it."""
        return getattr(type(self._callback), method) is not getattr(Callback, method)

    def _copies(self, before: State, after: State) -> tuple[State, State]:
        """Copies of both; a tracker of ours reads the line alone, and needs none."""
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
    """A copy that shares no tensor with the state that is trained."""
    tensors, memory, slots = (
        {name: tensor.clone() for name, tensor in tensors.items()}
        for tensors in (state.tensors, state.memory, state.client_slots)
    )
    return State(state.round, tensors, memory, slots)
