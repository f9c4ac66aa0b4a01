"""What a round is made of: clients, setup, state, assignments, tasks, updates that come back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from submodel.algorithm.merge import SELECTIVE, Accumulator, HasSums, MergeRule, exact_weight
from submodel.algorithm.packing import Transport
from submodel.algorithm.server import NoProjection, Plain, Projection, ServerStep
from submodel.data import Dataset, Examples, Partition, Population
from submodel.data.augmentations import Augmentations
from submodel.model.axes import Axes
from submodel.model.cut import COORDINATES, Cut, Granularity, Tensors
from submodel.model.inputs import Inputs, call
from submodel.model.norm import Statistics
from submodel.model.travel import Travel, travel_of
from submodel.model.zoo.low_rank import FactorPair, factor_pairs
from submodel.schemes import Scheme
from submodel.schemes.scheme import Passes, StepRule
from submodel.tasks.builtin_tasks import AbsentLabels
from submodel.tasks.loss import NOTHING_COUNTS, Loss
from submodel.tasks.metrics import BatchMetric
from submodel.tasks.schedule import Constant, Schedule
from submodel.tasks.training import LocalWork

_RECENT_CLIENTS = 256
Model = tuple[Tensors, Cut]
"""A whole model's tensors, and what is held of them."""
Present = Mapping[int, float | None]
"""The clients that are there, each with the capacity that it reported; None: as configured."""


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
class PartitionedClients:
    """Clients whose data is here: the parts of one dataset, asked for one client at a time."""

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
        return self.dataset.train.take(torch.from_numpy(self.indices(client)))

    def labels(self, client: int) -> NDArray[np.int64]:
        """The class labels that the client has, ascending; not to be changed."""
        return self._recent_labels(client)

    @cached_property
    def _recent_labels(self) -> Callable[[int], NDArray[np.int64]]:
        return lru_cache(maxsize=_RECENT_CLIENTS)(self._labels)

    def _labels(self, client: int) -> NDArray[np.int64]:
        index = torch.from_numpy(self.indices(client))
        return np.unique(self.dataset.train.y[index].numpy())

    def present(self, round_: int | None) -> None:
        """None: everyone is there, always."""

    def moments(self, models: Sequence[Model]) -> list[Tensor | None]:
        """None: whoever evaluates takes the statistics of static norms from the examples itself."""
        return [None for _ in models]


Scorer = Callable[[nn.Module], Callable[[Inputs], Tensor]]
"""From a module of the model or of a cut, as it is now, to a function from inputs to outputs."""


def plain_scorer(module: nn.Module) -> Callable[[Inputs], Tensor]:
    """The module itself.

    >>> import torch
    >>> plain_scorer(nn.Flatten())(torch.ones(2, 3, 4)).shape
    torch.Size([2, 12])
    """
    return lambda inputs: call(module, inputs)


@dataclass(frozen=True)
class Setup:
    """Everything that stays the same over a run."""

    module: (
        nn.Module
    )  # gives the shapes and the forward pass; no value is changed, or has to be there
    axes: Axes
    scheme: Scheme
    population: Population
    clients: Clients
    work: LocalWork
    loss: Loss
    seed: int = 0
    granularity: Granularity = "unit"
    least: Mapping[str, float] = field(default_factory=dict)  # of an axis, whatever the capacity
    schedule: Schedule = field(default_factory=Constant)
    absent_labels: AbsentLabels = "keep"
    rule: MergeRule = SELECTIVE
    weights: Literal["uniform", "examples"] = "uniform"
    server: ServerStep = field(default_factory=Plain)
    projection: Projection = field(default_factory=NoProjection)
    statistics: Statistics = field(default_factory=Statistics)  # of static norms, in evaluation
    transport: Transport = "exact"
    metrics: Mapping[str, BatchMetric] = field(default_factory=dict)  # told beside the loss
    headline: str = "loss"  # the metric that a run is judged by
    augment: Augmentations = field(default_factory=Augmentations)  # of training batches
    keeps_slots: bool = False  # whether clients' optimisers go on where they ended
    constants: frozenset[str] = frozenset()  # buffers that are not finite: they never come back
    scorer: Scorer = plain_scorer  # what computes a module's outputs when it is scored

    @property
    def sizes(self) -> dict[str, int]:
        """The axes that the scheme is asked about, and how many units each has."""
        if self.granularity == "unit":
            return dict(self.axes.cut_by_capacity)
        return {COORDINATES: sum(p.numel() for p in self.module.parameters())}

    @property
    def cuts_units(self) -> bool:
        """Whether clients hold units of axes: not single weights, nor what a scheme cuts itself."""
        return self.granularity == "unit" and self.scheme.own_cut is None

    @cached_property
    def parameter_names(self) -> Sequence[str]:
        """Of the model: walking through its modules takes as long as a small client's step."""
        return [name for name, _ in self.module.named_parameters()]

    @cached_property
    def trained_names(self) -> Sequence[str]:
        """Of the parameters that training changes."""
        return [name for name, p in self.module.named_parameters() if p.requires_grad]

    @cached_property
    def travel(self) -> Travel:
        """Which tensors go out, and which come back."""
        return travel_of(self.module, self.axes, self.cuts_units, self.constants)

    @cached_property
    def pairs(self) -> list[FactorPair]:
        """The trained tensors whose products count, in low-rank layers."""
        fixed_names = self.travel.untrained_names
        return [p for p in factor_pairs(self.module) if not {p.up, p.down} & fixed_names]

    def begin_sums(self, whole: Mapping[str, Tensor]) -> Accumulator:
        """Where the updates of a round to these tensors are added up."""
        sums = Accumulator(whole, self.rule)
        if isinstance(self.rule, HasSums):
            sums = self.rule.sums(whole, self.pairs)
        sums.expect_statistics(whole.keys() - set(self.parameter_names))
        return sums

    def weight(self, examples: int) -> float:
        """What the update of a client with so many examples counts."""
        return exact_weight(examples / 1024) if self.weights == "examples" else 1.0


@dataclass(frozen=True)
class State:
    """The global model after ``round`` rounds, and what else the server carries on."""

    round: int
    tensors: Mapping[str, Tensor]
    memory: Mapping[str, Tensor] = field(default_factory=dict)  # by "scheme/...", "server/..."
    client_slots: Mapping[str, Tensor] = field(default_factory=dict)
    """What clients' optimisers keep, by "client/slot/parameter" (see `client_slots`)."""

    def recall(self, owner: str) -> dict[str, Tensor]:
        """What ``owner`` remembers, by its own names.

        >>> import torch
        >>> State(0, {}, {"server/speed/w": torch.zeros(1)}).recall("server")
        {'speed/w': tensor([0.])}
        """
        start = f"{owner}/"
        return {n.removeprefix(start): t for n, t in self.memory.items() if n.startswith(start)}

    def remember(self, owner: str, memory: Mapping[str, Tensor]) -> State:
        """The state in which ``owner`` remembers this instead."""
        others = {n: t for n, t in self.memory.items() if not n.startswith(f"{owner}/")}
        own_entries = {f"{owner}/{name}": tensor for name, tensor in memory.items()}
        return replace(self, memory=others | own_entries)


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
    slots: Mapping[str, Tensor] | None = None  # that the optimiser kept; None: it begins afresh


@dataclass(frozen=True)
class Update:
    """What comes back."""

    assignment: Assignment
    cut: Cut
    tensors: dict[str, Tensor]
    examples: int
    examples_used: int
    loss: float
    passes: Passes = ()  # empty: all of the whole cut
    examples_counted: float | None = (
        None  # examples that the loss is the mean of; None: all processed
    )
    slots: Mapping[str, Tensor] | None = None  # that the optimiser is to go on with

    @property
    def unusable(self) -> str | None:
        """Why its loss forbids to merge it; None if it does not."""
        if not (self.examples_used if self.examples_counted is None else self.examples_counted):
            return NOTHING_COUNTS
        return None if math.isfinite(self.loss) else "its loss is not finite"


@dataclass(frozen=True)
class Failure:
    """Nothing came back, or nothing that can be read."""

    assignment: Assignment
    reason: str


Outcome = Update | Failure
