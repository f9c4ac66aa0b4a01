"""What a scheme is: the rule that says which units of an axis a client holds in a round.

A scheme selects from one axis at a time and knows nothing of models. At coordinate granularity the
flat vector of all weights is the one axis, so the same few lines serve both granularities. What
only some schemes need beyond that are optional members of `Scheme`, each with a default.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from submodel.core.errors import SubmodelError
from submodel.model.axes import Axes
from submodel.model.axes.layout import Indices
from submodel.model.cut import Cut
from submodel.model.inputs import Inputs
from submodel.tasks.loss import Loss
from submodel.tasks.optimisers import Gradients
from submodel.tasks.training import LocalWork

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]
SchemeMemory = Mapping[str, Tensor]
"""What a scheme keeps from round to round, by names of its own; saved with every checkpoint."""


class Knowledge(Protocol):
    """What the server knows when it draws the cuts of a round: the global model, and its memory."""

    @property
    def memory(self) -> SchemeMemory:
        """What the scheme kept."""
        return {}

    @property
    def axes(self) -> Sequence[str]:
        """The axes that the scheme is asked about, for those that rank them together."""
        raise LookupError("the axes are not known here")

    def magnitudes(self, axis: str) -> Floats:
        """The mean |w| of the weights that each unit of ``axis`` holds."""
        raise LookupError(f"the weights of axis {axis} are not known here")

    def pieces(self, axis: str) -> Sequence[int]:
        """The sizes of the parts that ``axis`` is made of: tensors, for the flat vector of all."""
        raise LookupError(f"the parts of axis {axis} are not known here")

    def shapes(self, axis: str) -> Sequence[Sequence[int]]:
        """The shapes of the tensors that the flat vector of all is made of; none for units."""
        raise LookupError(f"the tensors of axis {axis} are not known here")


class _Nothing(Knowledge):
    """The knowledge of schemes that do not ask."""


NOTHING: Knowledge = _Nothing()


@dataclass(frozen=True)
class Draw:
    """What a draw may depend on: seed, round, client, its place in the round, and the model.

    Only a scheme that says that it looks at the model has ``knowledge`` of it.
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
    has_labels: bool = True  # the loss is the cross-entropy of class labels
    module: nn.Module | None = None
    are_axes_traced: bool = True  # not given, and not changed by the section `axes`


@dataclass(frozen=True)
class SchemeContext:
    """What a scheme may need to know to be made of its options."""

    sizes: Mapping[str, int]  # units by axis
    capacities: Sequence[float]  # of the clients


# -- what a scheme is given, beyond a draw ---------------------------------------------------------


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


@dataclass(frozen=True)
class Observation:
    """What a scheme may measure of a client before a round, over all the client's examples."""

    gradient: Mapping[str, Tensor]  # grad f(w), w the global model
    masked_gradient: Mapping[str, Tensor]
    """m (.) grad f(m (.) w), in the same shapes; m the client's cut."""
    round: int = 0


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


def pass_cuts(
    rule: StepRule | None, cut: Cut, passes: Passes, least: Mapping[str, float]
) -> list[tuple[Cut, int]]:
    """What passes computed with, and on how many examples; empty: all with the whole cut."""
    if rule is None:
        return []
    return [(rule.cut(cut, width, least), examples) for width, examples in passes]


# -- schemes ---------------------------------------------------------------------------------------


class Scheme(ABC):
    """The rule that draws a cut, one axis at a time: `select`, as a pure function of its arguments.

    All else is optional. What comes before `work` goes with the masks, and a scheme that trains
    with another's masks has it from that one (`BorrowsMasks`); what follows is the scheme's own way
    to train and to average. Any object with ``select`` is a scheme (`as_scheme`).
    """

    @abstractmethod
    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        """Which of the ``size`` units of ``axis`` the client of this draw holds."""

    def problems(self, run: RunFacts) -> list[str]:  # noqa: ARG002
        """Why the scheme is not defined for this run; checked before anything runs.

        Each as a mistake in a configuration is told: ``key: what is given, what is allowed``.
        """
        return []

    looks_at_model: bool = False
    """Whether `select` looks at ``draw.knowledge``: the global model, or the scheme's memory.

    Only then is anything known. Clients can repeat a draw that depends on (seed, round, client,
    place); no other, as they keep nothing from round to round. So the coordinate masks of such a
    scheme are sent, and counted."""

    sends_masks: bool | None = None
    """Whether coordinate masks must be sent along with values; None: if it looks at the model."""

    own_cut: Callable[[nn.Module, Axes, float, Draw, Indices | None], Cut] | None = None
    """A cut that is none of axes, from (net, axes, capacity, draw, classes); `select` is not asked.

    It need not be a valid one: not even at capacity 1 does it have to be the global model."""

    def begin(self, parameters: Mapping[str, Tensor]) -> SchemeMemory:  # noqa: ARG002
        """The memory at the start; its names and shapes stay the same over the run.

        It is in ``draw.knowledge.memory`` and in every checkpoint.
        """
        return {}

    def adapts(self, round_: int) -> bool:  # noqa: ARG002
        """Whether `adapt` is to be called before this round."""
        return False

    def adapt(self, now: Adaptation) -> tuple[Mapping[str, Tensor], SchemeMemory]:
        """The global model and the memory with which the round begins; for schemes of one cell."""
        return now.tensors, now.memory

    def output_passes(self) -> Sequence[Scheme]:
        """The schemes over whose masks the final output step averages."""
        return [self]

    def observes(self, round_: int) -> bool:  # noqa: ARG002
        """Whether `observe` is to be called before this round, for every client."""
        return False

    def observe(self, now: Observation) -> dict[str, float]:  # noqa: ARG002
        """Numbers for the round's books, by name: their means over the clients.

        Nothing depends on them.
        """
        return {}

    def work(self, work: LocalWork, capacity: float) -> LocalWork:  # noqa: ARG002
        """What a client of this capacity does with its sub-model, of the run's own ``work``."""
        return work

    def step_rule(self, capacity: float) -> StepRule | None:  # noqa: ARG002
        """How clients of a capacity compute their steps, each alone, in no stack; None: plainly."""
        return None

    def chance(
        self,
        size: int,  # noqa: ARG002
        capacity: float,  # noqa: ARG002
        units: int = 1,  # noqa: ARG002
        spare: bool = False,  # noqa: ARG002
    ) -> float | None:
        """The chance that so many given units of an axis are all held; None: weights stay.

        Clients compute with each weight divided by its own. ``spare``: where a draw is empty, one
        unit, drawn uniformly, is held.
        """
        return None

    cells: int = 1
    """Cells of clients, which average among themselves between joins."""

    def cell(self, client: int) -> int:  # noqa: ARG002
        """The cell of a client, from 0."""
        return 0

    def joins(self, round_: int) -> bool:  # noqa: ARG002
        """Whether the cells' models are merged at the end of this round."""
        return True


@dataclass(frozen=True)
class BorrowsMasks(Scheme):
    """A scheme that trains with the masks of another one, and has from it all that goes with them.

    Both observe, as `observers_of` asks each.
    """

    masks_of: Scheme

    def __post_init__(self) -> None:
        """Take any object with ``select``."""
        object.__setattr__(self, "masks_of", as_scheme(self.masks_of))

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        """What the other selects."""
        return self.masks_of.select(axis, size, capacity, draw)

    def problems(self, run: RunFacts) -> list[str]:
        """What the other is not defined for."""
        return self.masks_of.problems(run)

    @property
    def looks_at_model(self) -> bool:  # type: ignore[override]
        """Whether the other looks."""
        return self.masks_of.looks_at_model

    @property
    def sends_masks(self) -> bool | None:  # type: ignore[override]
        """As the other."""
        return self.masks_of.sends_masks

    @property
    def own_cut(self) -> Callable[..., Cut] | None:  # type: ignore[override]
        """The other's."""
        return self.masks_of.own_cut

    def begin(self, parameters: Mapping[str, Tensor]) -> SchemeMemory:
        """The other's memory."""
        return self.masks_of.begin(parameters)

    def adapts(self, round_: int) -> bool:
        """Whether the other adapts."""
        return self.masks_of.adapts(round_)

    def adapt(self, now: Adaptation) -> tuple[Mapping[str, Tensor], SchemeMemory]:
        """As the other adapts."""
        return self.masks_of.adapt(now)

    def output_passes(self) -> Sequence[Scheme]:
        """The other's, each training as this does."""
        return [replace(self, masks_of=one) for one in output_passes(self.masks_of)]


# -- any object with ``select`` --------------------------------------------------------------------

_OF_MASKS = (
    ("looks_at_model",), ("sends_masks",), ("own_cut",), ("begin",), ("adapts", "adapt"),
    ("output_passes",), ("observes", "observe"),
)  # fmt: skip
_OF_TRAINING = (("work",), ("step_rule",), ("chance",), ("cells", "cell", "joins"))


def defines(scheme: object, *members: str) -> bool:
    """Whether a scheme has any of these members itself, or from the one whose masks it borrows.

    >>> from submodel.schemes import Hierarchical, MaskedSgd, Pruned, Static
    >>> defines(Hierarchical(4), "cells"), defines(MaskedSgd(Hierarchical(4)), "cells")
    (True, False)
    >>> defines(MaskedSgd(Pruned()), "adapt"), defines(Static(), "adapt")
    (True, False)
    """
    borrowed = [member for member in members if member in chain(*_OF_MASKS)]
    return any(own_member(scheme, member) for member in members) or (
        isinstance(scheme, BorrowsMasks) and bool(borrowed) and defines(scheme.masks_of, *borrowed)
    )


def own_member(scheme: object, name: str) -> list[Any]:
    """What an object has by a name besides the default of `Scheme`: nothing, or one thing.

    Its class may define it, the object itself, or ``__getattr__`` of a class that passes on what it
    lacks.
    """
    if isinstance(scheme, _Adopted):
        return own_member(scheme.thing, name)
    kinds = [kind for kind in type(scheme).__mro__ if kind not in (Scheme, BorrowsMasks)]
    if name in getattr(scheme, "__dict__", ()) or any(name in vars(kind) for kind in kinds):
        return [getattr(scheme, name)]
    pass_on = getattr(type(scheme), "__getattr__", None)
    try:
        return [] if pass_on is None else [pass_on(scheme, name)]
    except AttributeError:
        return []


def as_scheme(thing: Any) -> Any:
    """An object with ``select`` as a `Scheme`, with all that it defines; others as they are.

    >>> from types import SimpleNamespace
    >>> as_scheme(SimpleNamespace(select=len, cells=3)).cells
    3
    """
    passes_on = hasattr(type(thing), "__getattr__") and not isinstance(thing, _Adopted)
    is_whole = isinstance(thing, Scheme) and not passes_on
    if is_whole or not callable(getattr(thing, "select", None)):
        return thing
    kind = type(type(thing).__name__, (_Adopted,), {"__module__": type(thing).__module__})
    return kind(thing)


class _Adopted(Scheme):
    """A scheme made of an object that does not derive from `Scheme`; what else that has, it has."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing
        for name in ("problems", *chain(*_OF_MASKS, *_OF_TRAINING)):
            for member in own_member(thing, name):
                setattr(self, name, member)

    def __getattr__(self, name: str) -> Any:
        if name == "thing":  # of a copy that is not filled yet
            raise AttributeError(name)
        return getattr(self.thing, name)

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        mask: Mask = self.thing.select(axis, size, capacity, draw)
        return mask


def check_members(scheme: Scheme) -> None:
    """Raise `SubmodelError` if a scheme defines a part of what goes together: it is ignored."""
    check_together(scheme, *_OF_MASKS, *_OF_TRAINING)
    while isinstance(scheme, BorrowsMasks):
        scheme = scheme.masks_of
        check_together(scheme, *_OF_MASKS)


def check_together(scheme: object, *groups: Sequence[str]) -> None:
    """Raise `SubmodelError` unless of every group all members are defined, or none."""
    name = f"scheme {type(scheme).__name__}"
    for group in groups:
        found = {member: own_member(scheme, member) for member in group}
        there = ", ".join(f"`{member}`" for member in group if found[member])
        missing = ", ".join(f"`{member}`" for member in group if not found[member])
        if there and missing:
            raise SubmodelError(
                f"{name}: it defines {there}, but not {missing}; a scheme needs all of them"
            )
        for member in group:
            for value in found[member]:
                if callable(getattr(Scheme, member, None)) and not callable(value):
                    raise SubmodelError(
                        f"{name}: {member} is {value!r}, not a method; the name belongs to one"
                    )


# -- asking a scheme -------------------------------------------------------------------------------


def problems_of(scheme: Scheme, run: RunFacts) -> list[str]:
    """Why a scheme is not defined for a run; one without ``problems`` is defined for every run.

    Args:
        scheme: any object with ``select``.
        run: the run that it is to serve.
    """
    return list(as_scheme(scheme).problems(run))


def sends_masks(scheme: Scheme) -> bool:
    """Whether clients cannot repeat the draws of a scheme, so that its masks are sent.

    >>> from submodel.schemes import Importance, MaskedSgd, Static
    >>> [sends_masks(s) for s in (Static(), Importance(), MaskedSgd(Importance()))]
    [False, True, True]
    """
    if scheme.looks_at_model and scheme.sends_masks is False:
        raise SubmodelError(
            f"scheme {type(scheme).__name__}: sends_masks is False, but it looks at the model, "
            "so clients cannot repeat its draws; leave sends_masks out"
        )
    return scheme.looks_at_model or bool(scheme.sends_masks)


def output_passes(scheme: Scheme) -> Sequence[Scheme]:
    """The schemes whose masks the output step averages over, each training as ``scheme`` does.

    >>> from submodel.schemes import MaskedSgd, Rolling, Static
    >>> output_passes(Static())
    [Static()]
    >>> len(output_passes(MaskedSgd(Rolling(4))))
    4
    """
    return [as_scheme(one) for one in as_scheme(scheme).output_passes()]


def observers_of(scheme: Scheme, round_: int) -> list[Scheme]:
    """Those that observe this round: the scheme, and the one whose masks it borrows."""
    others = observers_of(scheme.masks_of, round_) if isinstance(scheme, BorrowsMasks) else []
    return [scheme, *others] if scheme.observes(round_) else others
