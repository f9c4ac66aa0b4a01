"""What a scheme is: the rule that says which units of an axis a client holds in a round.

A scheme selects from one axis at a time and knows nothing of models. At coordinate granularity the
flat vector of all weights is the one axis, so the same few lines serve both granularities.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from submodel.local.work import LocalWork

Mask = NDArray[np.bool_]
Memory = Mapping[str, Tensor]
"""What a scheme keeps from round to round, by names of its own; saved with every checkpoint."""


class Known(Protocol):
    """What the server knows when it draws the cuts of a round: the global model, and its memory."""

    @property
    def memory(self) -> Memory:
        """What the scheme kept."""
        ...

    @property
    def axes(self) -> Sequence[str]:
        """The axes that the scheme is asked about, for those that rank them together."""
        ...

    def magnitudes(self, axis: str) -> NDArray[np.float64]:
        """The mean |w| of the weights that each unit of ``axis`` holds."""
        ...

    def pieces(self, axis: str) -> Sequence[int]:
        """The sizes of the parts that ``axis`` is made of: tensors, for the flat vector of all."""
        ...

    def shapes(self, axis: str) -> Sequence[Sequence[int]]:
        """The shapes of the tensors that the flat vector of all is made of; none for units."""
        ...


class _Nothing:
    """Known where nothing is: for schemes that do not ask."""

    @property
    def memory(self) -> Memory:
        return {}

    @property
    def axes(self) -> Sequence[str]:
        raise LookupError("the axes are not known here")

    def magnitudes(self, axis: str) -> NDArray[np.float64]:
        raise LookupError(f"the weights of axis {axis} are not known here")

    def pieces(self, axis: str) -> Sequence[int]:
        raise LookupError(f"the parts of axis {axis} are not known here")

    def shapes(self, axis: str) -> Sequence[Sequence[int]]:
        raise LookupError(f"the tensors of axis {axis} are not known here")


NOTHING: Known = _Nothing()


@dataclass(frozen=True)
class Draw:
    """What a draw may depend on: seed, round, client, its place in the round, and the model."""

    seed: int
    round: int
    client: int
    place: int = 0  # of the client among those of the round
    known: Known = field(default=NOTHING, compare=False, repr=False)


@dataclass(frozen=True)
class Given:
    """The run that a scheme is asked to serve; `Scheme.problems` says why it cannot."""

    sizes: Mapping[str, int]  # units by axis; one axis, COORDINATES, at coordinate granularity
    capacities: Sequence[float]
    clients: int
    per_round: int
    granularity: Literal["unit", "coordinate"]
    output_step: bool = False
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)  # of the parameters
    least: Mapping[str, float] = field(default_factory=dict)
    rounds: int = 0  # 0: not known yet
    aligned: bool = True  # False: alignment = independent
    labelled: bool = True  # the loss is the cross-entropy of class labels


@dataclass(frozen=True)
class Adaptation:
    """What a scheme may look at when it adapts, before a round."""

    seed: int
    round: int
    tensors: Mapping[str, Tensor]  # the global model
    parameters: Sequence[str]  # those of its names that are trained
    capacities: Sequence[float]  # of the clients
    memory: Memory
    squared_gradients: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
    """The clients' mean of grad f_i(w)^2, w the global model: every client of the round computes
    its own over all its examples, and that costs a pass. By name, for parameters. Given are masks
    by name: w is zero outside of them, and only what is inside has to be sent."""
    flops: Callable[[], Mapping[str, float]]
    """What one weight of each parameter costs in a forward pass of one example, in FLOPs."""


@dataclass(frozen=True)
class Observation:
    """What a scheme may measure of a client before a round, over all the client's examples."""

    gradient: Mapping[str, Tensor]  # grad f(w), w the global model
    masked: Mapping[str, Tensor]  # m (.) grad f(m (.) w), in the same shapes; m the client's cut
    round: int = 0


class Scheme(ABC):
    """The rule that draws a cut, one axis at a time.

    A scheme must define `select`, as a pure function of its arguments. The rest has defaults that
    suit schemes whose draws depend on nothing but (seed, round, client, place).
    """

    sends_masks: bool = False
    """Whether coordinate masks must be sent along with values. Clients keep nothing from round to
    round, but can repeat a draw that depends on (seed, round, client, place) alone; no other."""

    @abstractmethod
    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        """Which of the ``size`` units of ``axis`` the client of this draw holds."""

    def output_passes(self) -> Sequence[Scheme]:
        """The schemes whose masks the final output step averages over: itself, once."""
        return (self,)

    def problems(self, given: Given) -> list[str]:  # noqa: ARG002
        """Why the scheme is not defined for this run; checked before anything runs.

        Each as a mistake in a configuration is told: ``key: what is given, what is allowed``.
        """
        return []

    def work(self, work: LocalWork, capacity: float) -> LocalWork:  # noqa: ARG002
        """What a client of this capacity does with its sub-model."""
        return work

    def chance(
        self,
        size: int,  # noqa: ARG002
        capacity: float,  # noqa: ARG002
        units: int = 1,  # noqa: ARG002
        spare: bool = False,  # noqa: ARG002
    ) -> float | None:
        """The chance that so many given units of an axis are all held; None: weights stay.

        A scheme that gives it has clients compute with every weight divided by its chance.
        ``spare``: where a draw is empty, one unit, drawn uniformly, is held.
        """
        return None

    @property
    def cells(self) -> int:
        """Into how many cells the clients fall that average among themselves between joins."""
        return 1

    def cell(self, client: int) -> int:  # noqa: ARG002
        """The cell of a client."""
        return 0

    def joins(self, round_: int) -> bool:  # noqa: ARG002
        """Whether the cells' models are merged at the end of this round."""
        return True

    def begin(self, parameters: Mapping[str, Tensor]) -> Memory:  # noqa: ARG002
        """The memory at the start; its names and shapes stay the same over the run."""
        return {}

    def adapts(self, round_: int) -> bool:  # noqa: ARG002
        """Whether `adapt` is to be called before this round."""
        return False

    def adapt(self, now: Adaptation) -> tuple[Mapping[str, Tensor], Memory]:
        """The global model and the memory with which the round begins; for schemes of one cell."""
        return now.tensors, now.memory

    def observes(self, round_: int) -> bool:  # noqa: ARG002
        """Whether `observe` is to be called before this round, for every client."""
        return False

    def observe(self, now: Observation) -> dict[str, float]:  # noqa: ARG002
        """Numbers for the round's books, by name: their means over the clients."""
        return {}
