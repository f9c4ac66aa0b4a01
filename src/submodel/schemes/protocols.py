"""What a scheme may offer beyond masks: small protocols; `submodel.schemes.roles` asks for them.

A scheme offers a protocol by defining all of its members; naming the protocol among its base
classes lets a type checker hold it to them. A protocol is of one of two kinds. A `MaskRole` has to
do with masks, and is passed on to schemes that train with another scheme's masks (`BorrowsMasks`).
A `TrainingRole` has to do with how clients train and are averaged, and is not.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from submodel.local.optimisers import Gradients
from submodel.local.work import LocalWork
from submodel.model.cut import Cut
from submodel.model.inputs import Inputs
from submodel.schemes.base import Scheme, SchemeMemory
from submodel.tasks.loss import Loss


class MaskRole(Protocol):
    """The kind of protocol that goes with the masks, whoever trains with them."""


class TrainingRole(Protocol):
    """The kind of protocol that is the scheme's own way to train and to average."""


# -- about masks -----------------------------------------------------------------------------------


class LooksAtModel(MaskRole):
    """Declares that `select` looks at ``draw.knowledge``: the global model, or the scheme's memory.

    It has no members: a scheme names it as a base class, and only then is anything known. Clients
    can repeat a draw that depends on (seed, round, client, place); no other, as they keep nothing
    from round to round. So the coordinate masks of such a scheme are sent, and counted.
    """


class SendsMasks(MaskRole, Protocol):
    """Says whether coordinate masks must be sent along with values.

    For schemes whose masks clients cannot repeat though they do not look at the model; for those
    that do, it follows.
    """

    sends_masks: bool


class HasMemory(MaskRole, Protocol):
    """Keeps tensors from round to round, in ``draw.knowledge.memory`` and in every checkpoint."""

    @abstractmethod
    def begin(self, parameters: Mapping[str, Tensor]) -> SchemeMemory:
        """The memory at the start; its names and shapes stay the same over the run."""


@dataclass(frozen=True)
class Adaptation:
    """What a scheme may look at when it adapts, before a round."""

    seed: int
    round: int
    tensors: Mapping[str, Tensor]  # the global model
    parameters: Sequence[str]  # those of its names that are trained
    capacities: Sequence[float]  # of the clients
    memory: SchemeMemory
    squared_gradients: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
    """The clients' mean of grad f_i(w)^2, w the global model: every client of the round computes
    its own over all its examples, and that costs a pass. By name, for parameters. Given are masks
    by name: w is zero outside of them, and only what is inside has to be sent."""
    flops: Callable[[], Mapping[str, float]]
    """What one weight of each parameter costs in a forward pass of one example, in FLOPs."""


class Adapts(MaskRole, Protocol):
    """Changes the global model, or its memory, before some rounds."""

    @abstractmethod
    def adapts(self, round_: int) -> bool:
        """Whether `adapt` is to be called before this round."""

    @abstractmethod
    def adapt(self, now: Adaptation) -> tuple[Mapping[str, Tensor], SchemeMemory]:
        """The global model and the memory with which the round begins; for schemes of one cell."""


class HasOutputPasses(MaskRole, Protocol):
    """Has the final output step average over several schemes' masks; others over their own."""

    @abstractmethod
    def output_passes(self) -> Sequence[Scheme]:
        """The schemes whose masks it averages over."""


@dataclass(frozen=True)
class Observation:
    """What a scheme may measure of a client before a round, over all the client's examples."""

    gradient: Mapping[str, Tensor]  # grad f(w), w the global model
    masked_gradient: Mapping[str, Tensor]
    """m (.) grad f(m (.) w), in the same shapes; m the client's cut."""
    round: int = 0


class Observes(MaskRole, Protocol):
    """Measures clients before some rounds, for the books; nothing depends on it."""

    @abstractmethod
    def observes(self, round_: int) -> bool:
        """Whether `observe` is to be called before this round, for every client."""

    @abstractmethod
    def observe(self, now: Observation) -> dict[str, float]:
        """Numbers for the round's books, by name: their means over the clients."""


# -- about training --------------------------------------------------------------------------------


class HasLocalWork(TrainingRole, Protocol):
    """Lets clients of some capacities train otherwise: other steps, another learning rate."""

    @abstractmethod
    def work(self, work: LocalWork, capacity: float) -> LocalWork:
        """What a client of this capacity does with its sub-model, of the run's own ``work``."""


Passes = Sequence[tuple[float, int]]
"""(width, examples) of training passes that were not all of the client's whole cut."""


Key = tuple[int, int, int]
"""Seed, round and client: what the draws of a client's steps depend on."""


@dataclass(frozen=True)
class Client:
    """What a client computes its steps with."""

    module: nn.Module  # its sub-model
    cut: Cut
    build: Callable[[Cut], nn.Module]  # another sub-model
    work: LocalWork
    loss: Loss
    least: Mapping[str, float]  # the least share of an axis that any cut holds
    key: Key


class ClientStep(Protocol):
    """The steps of one client in one round."""

    @property
    def passes(self) -> Passes:
        """What was computed so far."""

    def __call__(self, number: int, x: Inputs, y: Tensor) -> tuple[Tensor, Gradients]:
        """The loss of a batch, and its gradient for every trained parameter of the client."""


class StepRule(Protocol):
    """How clients of a capacity compute their steps: on narrower sub-models of their own."""

    @property
    def widths(self) -> Sequence[float]:
        """The shares of the model that steps may take, ascending."""

    def begin(self, client: Client) -> ClientStep:
        """The steps of a client."""

    def cut(self, cut: Cut, width: float, least: Mapping[str, float]) -> Cut:
        """What a pass of this width computes with, of what the client holds."""

    def plan_passes(
        self, cut: Cut, lengths: Sequence[int], least: Mapping[str, float], key: Key
    ) -> Passes:
        """The passes that steps on batches of these lengths will take, before any is taken."""


class HasStepRule(TrainingRole, Protocol):
    """Has clients compute their steps in a way of its own; each trains alone, in no stack."""

    @abstractmethod
    def step_rule(self, capacity: float) -> StepRule | None:
        """The way of a capacity's clients; None: plain steps."""


class HasChances(TrainingRole, Protocol):
    """Knows with which chance weights are held: clients compute with each divided by its own."""

    @abstractmethod
    def chance(
        self, size: int, capacity: float, units: int = 1, spare: bool = False
    ) -> float | None:
        """The chance that so many given units of an axis are all held; None: weights stay.

        ``spare``: where a draw is empty, one unit, drawn uniformly, is held.
        """


class HasCells(TrainingRole, Protocol):
    """Divides clients into cells, which average among themselves between joins."""

    @property
    @abstractmethod
    def cells(self) -> int:
        """How many there are."""

    @abstractmethod
    def cell(self, client: int) -> int:
        """The cell of a client, from 0."""

    @abstractmethod
    def joins(self, round_: int) -> bool:
        """Whether the cells' models are merged at the end of this round."""


PROTOCOLS: tuple[type, ...] = (
    LooksAtModel,
    SendsMasks,
    HasMemory,
    Adapts,
    HasOutputPasses,
    Observes,
    HasLocalWork,
    HasStepRule,
    HasChances,
    HasCells,
)
"""All of them."""
