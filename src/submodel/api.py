"""The Python interface: train an own module on own tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn import functional

from submodel.axes import Axes, Dimension
from submodel.config import Config, parse
from submodel.cut import WHOLE
from submodel.data import Dataset
from submodel.evaluate import EVALUATOR, assemble
from submodel.exchange import Assignment, Setup, State
from submodel.local import Loss
from submodel.prepare import prepare
from submodel.rounds import cut_of, known
from submodel.run import Metrics, OnRound, RunFolder
from submodel.run import train as train_run
from submodel.scaled import scaled


@dataclass(frozen=True)
class Result:
    """A trained global model and how it came about."""

    model: nn.Module
    history: list[Metrics] = field(repr=False)
    setup: Setup = field(repr=False)
    state: State = field(repr=False)

    @property
    def accuracy(self) -> float | None:
        """The global model's last test accuracy; None where targets are not labels."""
        value: float | None = self.history[-1].get("test_accuracy")
        return value

    def submodel(self, capacity: float) -> nn.Module:
        """The trained sub-model of a capacity, ready to use."""
        where = Assignment(self.state.round, EVALUATOR, capacity)
        cut = (
            WHOLE
            if capacity == 1
            else cut_of(self.setup, where, known=known(self.setup, self.state))
        )
        return assemble(self.setup, scaled(self.setup, self.state.tensors, capacity), cut)


def train(
    model: nn.Module,
    data: Dataset,
    config: Config | Mapping[str, Any] | None = None,
    *,
    axes: Axes | Mapping[str, tuple[Dimension, ...]] | None = None,
    loss: Loss = functional.cross_entropy,
    out: str | Path | None = None,
    resume: bool = False,
    on_round: OnRound = lambda _: None,
) -> Result:
    """Train ``model`` through sub-models, as ``submodel train`` does; ``model`` is not changed.

    What must be cut together is found by tracing; ``axes`` overrides it, with what
    `submodel.trace` or `submodel.declare` returned or a table for the latter. With
    ``out`` the run is a folder, and ``resume`` goes on with it.

    >>> from submodel import digits
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    >>> rounds = {"scheme": {"granularity": "coordinate"}, "train": {"rounds": 2}}
    >>> len(train(net, digits(), rounds).history)
    2
    """
    given = config if isinstance(config, Config) else parse(config or {})
    own = {"name": "own"}
    resolved = given.model_copy(
        update={
            "model": given.model.model_copy(update=own),
            "data": given.data.model_copy(update=own),
        }
    )
    setup = prepare(resolved, model, data, axes, loss)
    folder = None
    if out is not None:
        folder = RunFolder(Path(out))
        if not resume:
            folder.create(resolved)
    if folder is None:
        state, history = train_run(resolved, setup, None, on_round)
    else:
        with folder.locked():
            state, history = train_run(resolved, setup, folder, on_round, resume)
    return Result(assemble(setup, state.tensors), history, setup, state)
