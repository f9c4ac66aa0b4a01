"""What a round is made of: setup, state, tasks, updates, and the protocols of those who run it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from submodel.algorithm.merge import SELECTIVE, Accumulator, MergeRule, exact_weight
from submodel.algorithm.packing import Transport
from submodel.algorithm.projection import NoProjection, Projection
from submodel.algorithm.server import Plain, ServerStep
from submodel.algorithm.tally import Tally
from submodel.data import Dataset, Examples, Partition, Population
from submodel.local.schedule import Constant, Schedule
from submodel.local.work import LocalWork
from submodel.model.axes import Axes
from submodel.model.cut import COORDINATES, Cut, Granularity, Tensors
from submodel.model.norm import Statistics
from submodel.schemes import Scheme
from submodel.schemes.protocols import Passes, StepRule
from submodel.schemes.random.independent import Alignment
from submodel.tasks.classification import AbsentLabels
from submodel.tasks.counting import NOTHING_COUNTS
from submodel.tasks.loss import Loss

_RECENT_CLIENTS = 256
Model = tuple[Tensors, Cut]
"""A whole model's tensors, and what is held of them."""
Present = Mapping[int, float | None]
"""The clients that are there, with the capacity that each told; None: as configured."""


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

    def present(self, round_: int | None) -> None:
        """None: everyone is there, always."""

    def moments(self, models: Sequence[Model]) -> list[Tensor | None]:
        """None: whoever evaluates takes the statistics of static norms from the examples itself."""
        return [None for _ in models]


class Clients(Protocol):
    """The clients' data, here or on their own devices."""

    @property
    def dataset(self) -> Dataset:
        """What the server has of it: shapes, classes, the test part."""
        ...

    def indices(self, client: int) -> NDArray[np.int64]:
        """The positions of the client's examples in the training set, where they are here."""
        ...

    def size(self, client: int) -> int:
        """How many examples the client has."""
        ...

    def examples(self, client: int) -> Examples:
        """The examples of one client, where they are here."""
        ...

    def labels(self, client: int) -> NDArray[np.int64]:
        """The class labels that the client has, ascending."""
        ...

    def present(self, round_: int | None) -> Present | None:
        """Who is there to take part in a round, or in the output step (None); may wait for them.

        None where all clients are there.
        """
        ...

    def moments(self, models: Sequence[Model]) -> list[Tensor | None]:
        """What the static norms of each model see of the clients' data: rows of `norm.moments`.

        None where the data is here, or nobody can tell.
        """
        ...


@dataclass(frozen=True)
class Setup:
    """Everything that stays the same over a run."""

    module: nn.Module  # gives the shapes and the forward pass; its weights are not touched
    axes: Axes
    scheme: Scheme
    population: Population
    federation: Clients
    work: LocalWork
    loss: Loss
    seed: int = 0
    granularity: Granularity = "unit"
    alignment: Alignment = "residual"
    least: Mapping[str, float] = field(default_factory=dict)  # of an axis, whatever the capacity
    schedule: Schedule = field(default_factory=Constant)
    absent_labels: AbsentLabels = "keep"
    rule: MergeRule = SELECTIVE
    weights: Literal["uniform", "examples"] = "uniform"
    server: ServerStep = field(default_factory=Plain)
    projection: Projection = field(default_factory=NoProjection)
    statistics: Statistics = field(default_factory=Statistics)  # of static norms, in evaluation
    transport: Transport = "exact"

    @property
    def sizes(self) -> dict[str, int]:
        """The axes that the scheme is asked about, and how many units each has."""
        if self.granularity == "unit":
            return dict(self.axes.cut_by_capacity)
        return {COORDINATES: sum(p.numel() for p in self.module.parameters())}

    def weight(self, examples: int) -> float:
        """What the update of a client with so many examples counts."""
        return exact_weight(examples / 1024) if self.weights == "examples" else 1.0


@dataclass(frozen=True)
class State:
    """The global model after ``round`` rounds, and what else the server carries on."""

    round: int
    tensors: Mapping[str, Tensor]
    memory: Mapping[str, Tensor] = field(default_factory=dict)  # by "scheme/...", "server/..."

    def recall(self, owner: str) -> dict[str, Tensor]:
        """What ``owner`` remembers, by its own names.

        >>> State(0, {}, {"server/speed/w": torch.zeros(1)}).recall("server")
        {'speed/w': tensor([0.])}
        """
        start = f"{owner}/"
        return {n.removeprefix(start): t for n, t in self.memory.items() if n.startswith(start)}

    def remember(self, owner: str, memory: Mapping[str, Tensor]) -> State:
        """The state in which ``owner`` remembers this instead."""
        others = {n: t for n, t in self.memory.items() if not n.startswith(f"{owner}/")}
        owned = {f"{owner}/{name}": tensor for name, tensor in memory.items()}
        return replace(self, memory=others | owned)


@dataclass(frozen=True)
class Assignment:
    """Who trains in a round, and how much of the model."""

    round: int
    client: int
    capacity: float
    place: int = 0  # among the clients of the round


@dataclass(frozen=True)
class Task:
    """What goes to a client: plain data, the same for every engine."""

    assignment: Assignment
    cut: Cut
    tensors: dict[str, Tensor]
    work: LocalWork
    classes: NDArray[np.int64] | None  # the labels that the loss is restricted to
    scales: Mapping[str, Tensor] = field(default_factory=dict)  # the client computes with s (.) w
    step_rule: StepRule | None = None  # None: plain steps
    local: Mapping[str, Tensor] | None = None  # buffers never exchanged; None: the engine has them


@dataclass(frozen=True)
class Update:
    """What comes back."""

    assignment: Assignment
    cut: Cut
    tensors: dict[str, Tensor]
    examples: int
    processed: int
    loss: float
    passes: Passes = ()  # empty: all of the whole cut
    counted: float | None = None  # examples that the loss is the mean of; None: all processed

    @property
    def weight_of_loss(self) -> float:
        """What the loss counts among those of other clients."""
        return self.processed if self.counted is None else self.counted

    @property
    def unusable(self) -> str | None:
        """Why its loss forbids to merge it; None if it does not."""
        if not self.weight_of_loss:
            return NOTHING_COUNTS
        return None if math.isfinite(self.loss) else "its loss is not finite"


@dataclass(frozen=True)
class Failure:
    """Nothing came back, or nothing that can be read."""

    assignment: Assignment
    reason: str


Outcome = Update | Failure


@dataclass(frozen=True)
class Bundle:
    """Assignments that are trained together: what processes share is whole bundles."""

    assignments: Sequence[Assignment]
    overhead: float = 0.0  # seconds, roughly, that do not grow with the number of assignments
    estimate: Callable[[], float] = float  # seconds that do; asked where there is work to share

    @cached_property
    def work(self) -> float:
        """The estimate."""
        return self.estimate()

    @property
    def cost(self) -> float:
        """Both together."""
        return self.overhead + self.work

    def split(self, parts: int) -> list[Bundle]:
        """About equal parts, each with the overhead of the whole."""
        if parts == 1:
            return [self]
        return [
            Bundle([self.assignments[i] for i in part], self.overhead, lambda: self.work / parts)
            for part in np.array_split(np.arange(len(self.assignments)), parts)
        ]


class Engine(Protocol):
    """Where tasks run: updates, or the news that there is none, come back in any order."""

    def bundles(self, assignments: Sequence[Assignment]) -> list[Bundle]:
        """What to train together: a function of the round, not of who trains it."""
        ...

    def run(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """Train the tasks of one bundle; their tensors are not to be changed."""
        ...


class Group(Protocol):
    """The processes that share a run: each plans the same round and trains its part of it."""

    def share(self, bundles: Sequence[Bundle]) -> Sequence[Bundle]:
        """The bundles of this process."""
        ...

    def reduce(self, accumulators: Sequence[Accumulator], tally: Tally) -> None:
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

    def reduce(self, accumulators: Sequence[Accumulator], tally: Tally) -> None:
        """There is nobody else."""

    def spread(self, count: int, work: Callable[[int], Tensor]) -> list[Tensor]:
        """One after another."""
        return [work(number) for number in range(count)]


ALONE = Alone()
