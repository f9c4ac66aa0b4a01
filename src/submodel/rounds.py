"""The algorithm: one round as the paper writes it (Algorithms 1 and 2), for any scheme.

    plan -> gather -> train -> guard -> add -> merge -> project

Everything here is a pure function of the state, the setup and the round's number; the engine
alone knows where a task runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from submodel.alignment import Alignment, draw_independent
from submodel.axes import Axes
from submodel.build import tensors_of
from submodel.cost import CostModel
from submodel.cut import Cut, Granularity, LastCut, draw_coordinates, draw_units, gather
from submodel.data import Dataset, Examples, Partition, Population
from submodel.errors import DivergedError
from submodel.local import AbsentLabels, LocalWork, Loss, Schedule
from submodel.merge import Accumulator, NoProjection, Projection, Rule, exact_weight
from submodel.norm import Statistics
from submodel.schemes import Draw, Scheme
from submodel.tally import RoundReport, Tally

_RECENT_CLIENTS = 256


@dataclass(frozen=True)
class Federation:
    """The clients' data: asked for one client at a time."""

    dataset: Dataset
    partition: Partition

    @cached_property
    def _recent(self) -> Callable[[int], NDArray[np.int64]]:
        """A round asks for the same clients several times."""
        return lru_cache(maxsize=_RECENT_CLIENTS)(self.partition.indices)

    def indices(self, client: int) -> NDArray[np.int64]:
        """The positions of the client's examples in the training set; not to be changed."""
        return self._recent(client)

    def size(self, client: int) -> int:
        """How many examples the client has."""
        return self.partition.size(client)

    def examples(self, client: int) -> Examples:
        """The examples of one client."""
        index = torch.from_numpy(self.indices(client))
        return Examples(self.dataset.train.x[index], self.dataset.train.y[index])

    def labels(self, client: int) -> NDArray[np.int64]:
        """The class labels that the client has, ascending."""
        index = torch.from_numpy(self.indices(client))
        return np.unique(self.dataset.train.y[index].numpy())


@dataclass(frozen=True)
class Setup:
    """Everything that stays the same over a run."""

    module: nn.Module  # gives the shapes and the forward pass; its weights are not touched
    axes: Axes
    scheme: Scheme
    population: Population
    federation: Federation
    work: LocalWork
    loss: Loss
    seed: int = 0
    granularity: Granularity = "unit"
    alignment: Alignment = "residual"
    least: Mapping[str, float] = field(default_factory=dict)  # of an axis, whatever the capacity
    schedule: Schedule = field(default_factory=Schedule)
    absent_labels: AbsentLabels = "keep"
    rule: Rule = "selective"
    weights: Literal["uniform", "examples"] = "uniform"
    projection: Projection = field(default_factory=NoProjection)
    statistics: Statistics = field(default_factory=Statistics)  # of static norms, in evaluation


@dataclass(frozen=True)
class State:
    """The global model after ``round`` rounds."""

    round: int
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True)
class Assignment:
    """Who trains in a round, and how much of the model."""

    round: int
    client: int
    capacity: float


@dataclass(frozen=True)
class Task:
    """What goes to a client: plain data, the same for every engine."""

    assignment: Assignment
    cut: Cut
    tensors: dict[str, Tensor]
    work: LocalWork
    classes: NDArray[np.int64] | None  # the labels that the loss is restricted to


@dataclass(frozen=True)
class Update:
    """What comes back."""

    assignment: Assignment
    cut: Cut
    tensors: dict[str, Tensor]
    examples: int
    processed: int
    loss: float


@dataclass(frozen=True)
class Bundle:
    """Assignments that are trained together: what processes share is whole bundles."""

    assignments: Sequence[Assignment]
    overhead: float  # seconds, roughly, that do not grow with the number of assignments
    work: float  # seconds that do

    @property
    def cost(self) -> float:
        """Both together."""
        return self.overhead + self.work

    def split(self, parts: int) -> list[Bundle]:
        """About equal parts, each with the overhead of the whole."""
        return [
            Bundle([self.assignments[i] for i in part], self.overhead, self.work / parts)
            for part in np.array_split(np.arange(len(self.assignments)), parts)
        ]


class Engine(Protocol):
    """Where tasks run: updates may come back in any order."""

    def bundles(self, assignments: Sequence[Assignment]) -> list[Bundle]:
        """What to train together: a function of the round, not of who trains it."""
        ...

    def run(self, tasks: Iterable[Task]) -> Iterator[Update]:
        """Train the tasks of one bundle; their tensors are not to be changed."""
        ...


class Group(Protocol):
    """The processes that share a run: each plans the same round and trains its part of it."""

    def share(self, bundles: Sequence[Bundle]) -> Sequence[Bundle]:
        """The bundles of this process."""
        ...

    def reduce(self, accumulator: Accumulator, tally: Tally) -> None:
        """Let every process hold the sums and the books of all."""
        ...

    def spread(self, count: int, work: Callable[[int], Tensor]) -> list[Tensor]:
        """Compute work(0), work(1), ..., all of one shape, together; everyone gets all of it."""
        ...


class Alone:
    """One process does everything."""

    def share(self, bundles: Sequence[Bundle]) -> Sequence[Bundle]:
        """All of them."""
        return bundles

    def reduce(self, accumulator: Accumulator, tally: Tally) -> None:
        """There is nobody else."""

    def spread(self, count: int, work: Callable[[int], Tensor]) -> list[Tensor]:
        """One after another."""
        return [work(number) for number in range(count)]


ALONE = Alone()


def initial_state(setup: Setup) -> State:
    """The untrained model."""
    return State(0, {n: t.clone() for n, t in tensors_of(setup.module).items()})


def plan(setup: Setup, round_: int) -> list[Assignment]:
    """Sample the clients of a round and their capacities: from (seed, round) alone."""
    clients = setup.population.sample(round_)
    return [Assignment(round_, c, setup.population.capacity(c, round_)) for c in clients]


def cut_of(setup: Setup, assignment: Assignment, classes: NDArray[np.int64] | None = None) -> Cut:
    """The cut m_i^r of one client in one round, optionally restricted to some classes."""
    draw = Draw(setup.seed, assignment.round, assignment.client)
    capacity = assignment.capacity
    if setup.alignment == "independent":
        return draw_independent(setup.module, setup.axes, capacity, draw, classes)
    if setup.granularity == "unit":
        return draw_units(setup.scheme, setup.axes, capacity, draw, classes, setup.least)
    parameters = {n: p.detach() for n, p in setup.module.named_parameters()}
    return draw_coordinates(setup.scheme, setup.axes, parameters, capacity, draw, classes)


class Dispatcher:
    """Makes the tasks of a round: gathers every client's slice of the global model, m_i (.) w_r.

    Clients that hold the same share one copy of it, as long as they come in a row.
    """

    def __init__(self, setup: Setup, state: State, work: LocalWork) -> None:
        self._setup, self._work = setup, work
        self._last: Cut | None = None
        self._gather = LastCut(lambda cut: gather(cut, state.tensors))

    def task(self, assignment: Assignment) -> Task:
        """What goes to this client."""
        setup = self._setup
        restricted = setup.absent_labels != "keep"
        classes = setup.federation.labels(assignment.client) if restricted else None
        cut = cut_of(setup, assignment, classes)
        if self._last is None or self._last.same_key != cut.same_key:
            self._last = cut
        return Task(assignment, self._last, self._gather(self._last), self._work, classes)


def step(
    setup: Setup, state: State, engine: Engine, costs: CostModel, group: Group = ALONE
) -> tuple[State, RoundReport]:
    """One round: w_r -> w_{r+1}."""
    work = replace(setup.work, lr=setup.work.lr * setup.schedule.factor(state.round))
    tally = Tally(setup.axes, state.tensors, costs)
    own = group.share(engine.bundles(plan(setup, state.round)))
    tally.lap("plan")
    accumulator = Accumulator(state.tensors, setup.rule)
    dispatcher = Dispatcher(setup, state, work)

    def tasks(bundle: Bundle) -> Iterator[Task]:
        for assignment in bundle.assignments:
            tally.lap("train")
            task = dispatcher.task(assignment)
            tally.send(task.cut)
            yield task

    for bundle in own:
        for update in engine.run(tasks(bundle)):
            tally.lap("train")
            weight = exact_weight(update.examples / 1024) if setup.weights == "examples" else 1.0
            reason = accumulator.refusal(update.cut, update.tensors, weight)
            if reason is None:
                accumulator.add(update.cut, update.tensors, weight)
                tally.accept(update.cut, update.processed, update.loss)
            else:
                tally.refuse(update.assignment.client, reason)
        tally.lap("train")
    group.reduce(accumulator, tally)
    tally.lap("reduce")
    if not tally.accepted:
        client, reason = next(iter(tally.refused.items()))
        raise DivergedError(
            f"round {state.round + 1}: all {len(tally.refused)} updates were refused "
            f"(client {client}: {reason}); a smaller local.lr, or local.clip, may help"
        )
    tensors = _project(setup, accumulator.merge())
    tally.lap("merge")
    return State(state.round + 1, tensors), tally.report(accumulator.coverage())


def _project(setup: Setup, merged: dict[str, Tensor]) -> dict[str, Tensor]:
    """P_W of the parameters; buffers are merged too, but W is a set of parameters."""
    names = {name for name, _ in setup.module.named_parameters()}
    return merged | setup.projection({n: t for n, t in merged.items() if n in names})


def output_step(
    setup: Setup,
    state: State,
    engine: Engine,
    costs: CostModel,
    smoothness: float,
    group: Group = ALONE,
) -> State:
    """The algorithms' output: one more masked gradient step with step size 1/L, over all clients.

    w^ = P(w_R - (1/L) (1/N) sum_i m_i (.) grad f_i(m_i (.) w_R)); rolling averages over all its
    windows as well. That is a round in which everyone takes one full-batch step, filled in.
    """
    work = LocalWork(lr=1 / smoothness, epochs=None, steps=1, batch_size=None)
    accumulator = Accumulator(state.tensors, "fill_in")
    tally = Tally(setup.axes, state.tensors, costs)
    everyone = [
        Assignment(state.round, c, setup.population.capacity(c, state.round))
        for c in range(setup.population.count)
    ]
    own = group.share(engine.bundles(everyone))
    for scheme in setup.scheme.output_passes():
        dispatcher = Dispatcher(replace(setup, scheme=scheme), state, work)
        for bundle in own:
            for update in engine.run(dispatcher.task(a) for a in bundle.assignments):
                reason = accumulator.refusal(update.cut, update.tensors)
                if reason is None:
                    accumulator.add(update.cut, update.tensors)
                else:
                    tally.refuse(update.assignment.client, reason)
    group.reduce(accumulator, tally)
    if tally.refused:
        client, reason = next(iter(tally.refused.items()))
        raise DivergedError(f"output step, client {client}: {reason}")
    return State(state.round, _project(setup, accumulator.merge()))
