"""The protocol of callbacks: they see a run from outside and change nothing of the training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from submodel.algorithm.tally import RoundReport
from submodel.algorithm.types import State
from submodel.runs.metrics import Metrics

if TYPE_CHECKING:
    from submodel.runs.training import Training


class Callback:
    """What happens around the rounds of a run; every method does nothing unless it is overridden.

    A round is *measured* first, which may add entries to its line of the metrics. Then it counts,
    and all are told of it, with the line complete. In a group of processes a user's callbacks are
    called in the first process only. What they are given is a copy; a callback that fails ends the
    run, which `resume` goes on with.

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
            history: the lines of the rounds so far.
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
