"""Types of a round: clients, setup, state, assignments, tasks and updates."""

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
"""The tensors of a whole model, and the held part of them."""
Present = Mapping[int, float | None]
"""Present clients, each with its reported capacity; None: the configured one."""


class Clients(Protocol):
    """The clients' data, on this machine or on their own devices."""

    @property
    def dataset(self) -> Dataset:
        """The server's view of the data: shapes, classes, the test part."""
        ...

    def indices(self, client: int) -> NDArray[np.int64]:
        """Return the positions of the client's examples in the training set, if they are here."""
        ...

    def size(self, client: int) -> int:
        """Return the number of the client's examples."""
        ...

    def examples(self, client: int) -> Examples:
        """Return the examples of one client, if they are here."""
        ...

    def labels(self, client: int) -> NDArray[np.int64]:
        """Return the client's class labels in ascending order."""
        ...

    def present(self, round_: int | None) -> Present | None:
        """Return the clients present for a round, or for the output step (None); may wait for them.

        Return None if all clients are present.
        """
        ...

    def moments(self, models: Sequence[Model]) -> list[Tensor | None]:
        """Return the statistics of each model's static norms on the clients' data: `norm.moments`.

        Return None for a model if the data is here, or if no client can compute them.
        """
        ...


@dataclass(frozen=True)
class PartitionedClients:
    """Clients of this machine: the parts of one dataset, read for one client at a time."""

    dataset: Dataset
    partition: Partition

    @cached_property
    def _recent(self) -> Callable[[int], NDArray[np.int64]]:
        """Cached positions: a round needs those of a client several times."""
        return lru_cache(maxsize=_RECENT_CLIENTS)(self.partition.indices)

    def indices(self, client: int) -> NDArray[np.int64]:
        """Return the positions of the client's examples in the training set; not to be changed."""
        return self._recent(client)

    def size(self, client: int) -> int:
        """Return the number of the client's examples."""
        return self.partition.size(client)

    def examples(self, client: int) -> Examples:
        """Return the examples of one client."""
        return self.dataset.train.take(torch.from_numpy(self.indices(client)))

    def labels(self, client: int) -> NDArray[np.int64]:
        """Return the client's class labels in ascending order; not to be changed."""
        return self._recent_labels(client)

    @cached_property
    def _recent_labels(self) -> Callable[[int], NDArray[np.int64]]:
        return lru_cache(maxsize=_RECENT_CLIENTS)(self._labels)

    def _labels(self, client: int) -> NDArray[np.int64]:
        index = torch.from_numpy(self.indices(client))
        return np.unique(self.dataset.train.y[index].numpy())

    def present(self, round_: int | None) -> None:
        """Return None: all clients are always present."""

    def moments(self, models: Sequence[Model]) -> list[Tensor | None]:
        """Return None for each model: evaluation computes the statistics from the examples."""
        return [None for _ in models]


Scorer = Callable[[nn.Module], Callable[[Inputs], Tensor]]
"""A function of the current module, of the model or of a cut, that returns its forward function."""


def plain_scorer(module: nn.Module) -> Callable[[Inputs], Tensor]:
    """Return the forward function of the module.

    >>> import torch
    >>> plain_scorer(nn.Flatten())(torch.ones(2, 3, 4)).shape
    torch.Size([2, 12])
    """
    return lambda inputs: call(module, inputs)


@dataclass(frozen=True)
class Setup:
    """The settings of a run."""

    # gives shapes and the forward pass; its values are never changed, and may be absent
    module: nn.Module
    axes: Axes
    scheme: Scheme
    population: Population
    clients: Clients
    work: LocalWork
    loss: Loss
    seed: int = 0
    granularity: Granularity = "unit"
    least: Mapping[str, float] = field(default_factory=dict)  # least share of an axis that is held
    schedule: Schedule = field(default_factory=Constant)
    absent_labels: AbsentLabels = "keep"
    rule: MergeRule = SELECTIVE
    weights: Literal["uniform", "examples"] = "uniform"
    server: ServerStep = field(default_factory=Plain)
    projection: Projection = field(default_factory=NoProjection)
    statistics: Statistics = field(default_factory=Statistics)  # of static norms, in evaluation
    transport: Transport = "exact"
    metrics: Mapping[str, BatchMetric] = field(default_factory=dict)  # reported beside the loss
    headline: str = "loss"  # the metric that a run is judged by
    augment: Augmentations = field(default_factory=Augmentations)  # of training batches
    keeps_slots: bool = False  # whether clients' optimisers keep their state between rounds
    constants: frozenset[str] = frozenset()  # buffers that are not finite: never sent back
    scorer: Scorer = plain_scorer  # computes the outputs of modules in evaluation

    @property
    def sizes(self) -> dict[str, int]:
        """Number of units of every axis that the scheme draws from."""
        if self.granularity == "unit":
            return dict(self.axes.cut_by_capacity)
        return {COORDINATES: sum(p.numel() for p in self.module.parameters())}

    @property
    def cuts_units(self) -> bool:
        """Whether clients hold units of axes rather than single weights or a scheme's own cut."""
        return self.granularity == "unit" and self.scheme.own_cut is None

    @cached_property
    def parameter_names(self) -> Sequence[str]:
        """Names of the parameters, cached: walking the modules costs as much as a small step."""
        return [name for name, _ in self.module.named_parameters()]

    @cached_property
    def trained_names(self) -> Sequence[str]:
        """Names of the parameters that training changes."""
        return [name for name, p in self.module.named_parameters() if p.requires_grad]

    @cached_property
    def travel(self) -> Travel:
        """The tensors that are sent, and those that come back."""
        return travel_of(self.module, self.axes, self.cuts_units, self.constants)

    @cached_property
    def pairs(self) -> list[FactorPair]:
        """Pairs of trained tensors in low-rank layers whose products are merged."""
        fixed_names = self.travel.untrained_names
        return [p for p in factor_pairs(self.module) if not {p.up, p.down} & fixed_names]

    def begin_sums(self, whole: Mapping[str, Tensor]) -> Accumulator:
        """Make the accumulator for a round's updates to these tensors."""
        sums = Accumulator(whole, self.rule)
        if isinstance(self.rule, HasSums):
            sums = self.rule.sums(whole, self.pairs)
        sums.expect_statistics(whole.keys() - set(self.parameter_names))
        return sums

    def weight(self, examples: int) -> float:
        """Return the weight of an update from a client with ``examples`` examples."""
        return exact_weight(examples / 1024) if self.weights == "examples" else 1.0


@dataclass(frozen=True)
class State:
    """The global model after ``round`` rounds, with the memory of server, scheme and clients."""

    round: int
    tensors: Mapping[str, Tensor]
    memory: Mapping[str, Tensor] = field(default_factory=dict)  # by "scheme/...", "server/..."
    client_slots: Mapping[str, Tensor] = field(default_factory=dict)
    """States of the clients' optimisers, by "client/slot/parameter" (see `ClientSlots`)."""

    def recall(self, owner: str) -> dict[str, Tensor]:
        """Return the memory of ``owner``, by its own names.

        >>> import torch
        >>> State(0, {}, {"server/speed/w": torch.zeros(1)}).recall("server")
        {'speed/w': tensor([0.])}
        """
        start = f"{owner}/"
        return {n.removeprefix(start): t for n, t in self.memory.items() if n.startswith(start)}

    def remember(self, owner: str, memory: Mapping[str, Tensor]) -> State:
        """Return the state with the memory of ``owner`` replaced."""
        others = {n: t for n, t in self.memory.items() if not n.startswith(f"{owner}/")}
        own_entries = {f"{owner}/{name}": tensor for name, tensor in memory.items()}
        return replace(self, memory=others | own_entries)


@dataclass(frozen=True)
class Assignment:
    """A client that trains in a round, with its capacity."""

    round: int
    client: int
    capacity: float
    place: int = 0  # position among the clients of the round


@dataclass(frozen=True)
class Task:
    """The message to a client: plain data, the same for every engine."""

    assignment: Assignment
    cut: Cut
    tensors: dict[str, Tensor]
    work: LocalWork
    classes: NDArray[np.int64] | None  # labels to which the loss is restricted
    scales: Mapping[str, Tensor] = field(default_factory=dict)  # factors s: the model is s (.) w
    step_rule: StepRule | None = None  # None: plain steps
    local: Mapping[str, Tensor] | None = None  # buffers never exchanged; None: the engine's own
    slots: Mapping[str, Tensor] | None = None  # state of the optimiser; None: a fresh one


@dataclass(frozen=True)
class Update:
    """The answer of a client."""

    assignment: Assignment
    cut: Cut
    tensors: dict[str, Tensor]
    examples: int
    examples_used: int
    loss: float
    passes: Passes = ()  # empty: all of the whole cut
    examples_counted: float | None = None  # examples that the loss averages; None: all processed
    slots: Mapping[str, Tensor] | None = None  # final state of the optimiser

    @property
    def unusable(self) -> str | None:
        """The reason why the loss forbids a merge, if any."""
        if not (self.examples_used if self.examples_counted is None else self.examples_counted):
            return NOTHING_COUNTS
        return None if math.isfinite(self.loss) else "its loss is not finite"


@dataclass(frozen=True)
class Failure:
    """The answer of a client without a readable update."""

    assignment: Assignment
    reason: str


Outcome = Update | Failure
