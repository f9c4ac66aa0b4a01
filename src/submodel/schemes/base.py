"""What a scheme is: the rule that says which units of an axis a client holds in a round.

A scheme selects from one axis at a time and knows nothing of models. At coordinate granularity the
flat vector of all weights is the one axis, so the same few lines serve both granularities.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]
SchemeMemory = Mapping[str, Tensor]
"""What a scheme keeps from round to round, by names of its own; saved with every checkpoint."""


class Knowledge(Protocol):
    """What the server knows when it draws the cuts of a round: the global model, and its memory."""

    @property
    def memory(self) -> SchemeMemory:
        """What the scheme kept."""
        ...

    @property
    def axes(self) -> Sequence[str]:
        """The axes that the scheme is asked about, for those that rank them together."""
        ...

    def magnitudes(self, axis: str) -> Floats:
        """The mean |w| of the weights that each unit of ``axis`` holds."""
        ...

    def pieces(self, axis: str) -> Sequence[int]:
        """The sizes of the parts that ``axis`` is made of: tensors, for the flat vector of all."""
        ...

    def shapes(self, axis: str) -> Sequence[Sequence[int]]:
        """The shapes of the tensors that the flat vector of all is made of; none for units."""
        ...


class _Nothing:
    """The knowledge of schemes that do not ask: there is none."""

    @property
    def memory(self) -> SchemeMemory:
        return {}

    @property
    def axes(self) -> Sequence[str]:
        raise LookupError("the axes are not known here")

    def magnitudes(self, axis: str) -> Floats:
        raise LookupError(f"the weights of axis {axis} are not known here")

    def pieces(self, axis: str) -> Sequence[int]:
        raise LookupError(f"the parts of axis {axis} are not known here")

    def shapes(self, axis: str) -> Sequence[Sequence[int]]:
        raise LookupError(f"the tensors of axis {axis} are not known here")


NOTHING: Knowledge = _Nothing()


@dataclass(frozen=True)
class Draw:
    """What a draw may depend on: seed, round, client, its place in the round, and the model.

    Only a scheme that declares `LooksAtModel` has ``knowledge`` of the model.
    """

    seed: int
    round: int
    client: int
    place: int = 0  # of the client among those of the round
    knowledge: Knowledge = field(default=NOTHING, compare=False, repr=False)


@dataclass(frozen=True)
class RunFacts:
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
    is_aligned: bool = True  # False: alignment = independent
    has_labels: bool = True  # the loss is the cross-entropy of class labels


@dataclass(frozen=True)
class SchemeContext:
    """What a scheme may need to know to be made of its options."""

    sizes: Mapping[str, int]  # units by axis
    capacities: Sequence[float]  # of the clients


class Scheme(ABC):
    """The rule that draws a cut, one axis at a time: `select`, as a pure function of its arguments.

    What only some schemes need beyond that (a memory, cells, local steps of their own, ...) are the
    optional protocols of `submodel.schemes.protocols`. Any object with ``select`` is a scheme; one
    that derives from this class is held to it by a type checker.
    """

    @abstractmethod
    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        """Which of the ``size`` units of ``axis`` the client of this draw holds."""

    def problems(self, run: RunFacts) -> list[str]:  # noqa: ARG002
        """Why the scheme is not defined for this run; checked before anything runs.

        Each as a mistake in a configuration is told: ``key: what is given, what is allowed``.
        """
        return []


def problems_of(scheme: Scheme, run: RunFacts) -> list[str]:
    """Why a scheme is not defined for a run; one without ``problems`` is defined for every run.

    Args:
        scheme: any object with ``select``.
        run: the run that it is to serve.
    """
    ask = getattr(scheme, "problems", None)
    return [] if ask is None else list(ask(run))
