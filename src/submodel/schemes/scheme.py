"""Schemes: rules that choose the units of an axis that a client holds in a round.

A scheme selects from one axis at a time, without reference to models. At coordinate granularity the
flat vector of all weights is the only axis, so the same code serves both granularities. Everything
else that a scheme may define is an optional member of `Scheme`, with a default.
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
"""Memory of a scheme between rounds, under its own names; saved with every checkpoint."""


class Knowledge(Protocol):
    """Facts that the server uses to draw the cuts of a round: the global model and the memory."""

    @property
    def memory(self) -> SchemeMemory:
        """Memory of the scheme."""
        return {}

    @property
    def axes(self) -> Sequence[str]:
        """Axes that the scheme draws from, for schemes that rank them together."""
        raise LookupError("the axes are not known here")

    def magnitudes(self, axis: str) -> Floats:
        """Return the mean |w| of the weights that each unit of ``axis`` holds."""
        raise LookupError(f"the weights of axis {axis} are not known here")

    def pieces(self, axis: str) -> Sequence[int]:
        """Return the sizes of the parts of ``axis``: of tensors, for the vector of all weights."""
        raise LookupError(f"the parts of axis {axis} are not known here")

    def shapes(self, axis: str) -> Sequence[Sequence[int]]:
        """Return the shapes of the tensors in the flat vector of all weights; none for units."""
        raise LookupError(f"the tensors of axis {axis} are not known here")


class _Nothing(Knowledge):
    """Empty knowledge, for schemes that use none."""


NOTHING: Knowledge = _Nothing()


@dataclass(frozen=True)
class Draw:
    """The arguments of a draw: seed, round, client, its place in the round, and the model.

    ``knowledge`` is available only to a scheme that declares `Scheme.looks_at_model`.
    """

    seed: int
    round: int
    client: int
    place: int = 0  # of the client among those of the round
    knowledge: Knowledge = field(default=NOTHING, compare=False, repr=False)


@dataclass(frozen=True)
class RunFacts:
    """Facts about a run, from which `Scheme.problems` decides whether the scheme is defined."""

    sizes: Mapping[str, int]  # units by axis; one axis, COORDINATES, at coordinate granularity
    capacities: Sequence[float]
    clients: int
    per_round: int
    granularity: Literal["unit", "coordinate"]
    output_step: bool = False
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)  # of the parameters
    least: Mapping[str, float] = field(default_factory=dict)
    rounds: int = 0  # 0: unknown
    has_labels: bool = True  # the loss is the cross-entropy of class labels
    module: nn.Module | None = None
    are_axes_traced: bool = True  # neither given nor changed by the section `axes`


@dataclass(frozen=True)
class SchemeContext:
    """The context in which a scheme is made from its options."""

    sizes: Mapping[str, int]  # units by axis
    capacities: Sequence[float]  # of the clients


# -- arguments of a scheme's methods ---------------------------------------------------------------


@dataclass(frozen=True)
class Adaptation:
    """The state before a round, from which a scheme adapts."""

    seed: int
    round: int
    tensors: Mapping[str, Tensor]  # the global model
    parameters: Sequence[str]  # names of the trained ones
    capacities: Sequence[float]  # of the clients
    memory: SchemeMemory
    squared_gradients: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
    """Return the clients' mean of grad f_i(w)^2, w the global model, by name for parameters: every
    client of the round computes its own over all its examples, which costs a pass. The argument is
    a mask for each name: w is zero outside of it, and only weights inside have to be sent."""
    flops: Callable[[], Mapping[str, float]]
    """Return the FLOPs of one weight of each parameter in a forward pass of one example."""


@dataclass(frozen=True)
class Observation:
    """Gradients of a client before a round, over all its examples, for a scheme's measurements."""

    gradient: Mapping[str, Tensor]  # grad f(w), w the global model
    masked_gradient: Mapping[str, Tensor]
    """m (.) grad f(m (.) w), in the same shapes; m the client's cut."""
    round: int = 0


Passes = Sequence[tuple[float, int]]
"""(width, examples) of training passes with less than the client's whole cut."""

Key = tuple[int, int, int]
"""Seed, round and client, from which the draws of a client's steps follow."""


@dataclass(frozen=True)
class Client:
    """The model and settings with which a client computes its steps."""

    module: nn.Module  # the client's sub-model
    cut: Cut
    build: Callable[[Cut], nn.Module]  # makes another sub-model
    work: LocalWork
    loss: Loss
    least: Mapping[str, float]  # the least share of an axis that any cut holds
    key: Key


class ClientStep(Protocol):
    """The steps of one client in one round."""

    @property
    def passes(self) -> Passes:
        """Training passes so far."""

    def __call__(self, number: int, x: Inputs, y: Tensor) -> tuple[Tensor, Gradients]:
        """Return the loss of a batch, and its gradient for every trained parameter."""


class StepRule(Protocol):
    """A rule by which clients of a capacity compute their steps, on narrower sub-models."""

    @property
    def widths(self) -> Sequence[float]:
        """Fractions of the model that steps may use, in ascending order."""

    def begin(self, client: Client) -> ClientStep:
        """Return the steps of a client."""

    def cut(self, cut: Cut, width: float, least: Mapping[str, float]) -> Cut:
        """Return the part of a client's cut that a pass of this width uses."""

    def plan_passes(
        self, cut: Cut, lengths: Sequence[int], least: Mapping[str, float], key: Key
    ) -> Passes:
        """Predict the passes of steps on batches of these lengths."""


def pass_cuts(
    rule: StepRule | None, cut: Cut, passes: Passes, least: Mapping[str, float]
) -> list[tuple[Cut, int]]:
    """Return the cuts of passes with their numbers of examples; empty if all used the whole cut."""
    if rule is None:
        return []
    return [(rule.cut(cut, width, least), examples) for width, examples in passes]


# -- schemes ---------------------------------------------------------------------------------------


class Scheme(ABC):
    """A rule that draws a cut, one axis at a time: `select`, as a pure function of its arguments.

    All other members are optional. The members before `work` belong to the masks, and a scheme that
    trains with another's masks takes them from it (`BorrowsMasks`). The members from `work` on
    define the scheme's own training and averaging. Any object with ``select`` is a scheme
    (`as_scheme`).
    """

    @abstractmethod
    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        """Return a mask of the ``size`` units of ``axis``: true for those the client holds."""

    def problems(self, run: RunFacts) -> list[str]:  # noqa: ARG002
        """Return the reasons why the scheme is not defined for a run; checked before anything runs.

        A problem has the form of a mistake in a configuration: ``key: given value, allowed
        values``.
        """
        return []

    looks_at_model: bool = False
    """Whether `select` uses ``draw.knowledge``: the global model, or the scheme's memory.

    Otherwise the knowledge is empty. Clients can repeat a draw that depends on (seed, round,
    client, place), but no other, as they keep nothing between rounds. So the coordinate masks of
    such a scheme are sent, and counted."""

    sends_masks: bool | None = None
    """Whether coordinate masks must be sent along with values; None: if it looks at the model."""

    own_cut: Callable[[nn.Module, Axes, float, Draw, Indices | None], Cut] | None = None
    """A cut that ignores axes, from (net, axes, capacity, draw, classes); replaces `select`.

    It need not be a valid cut: not even at capacity 1 must it be the global model."""

    def begin(self, parameters: Mapping[str, Tensor]) -> SchemeMemory:  # noqa: ARG002
        """Return the initial memory; its names and shapes stay the same over the run.

        The memory is in ``draw.knowledge.memory`` and in every checkpoint.
        """
        return {}

    def adapts(self, round_: int) -> bool:  # noqa: ARG002
        """Return whether `adapt` is called before this round."""
        return False

    def adapt(self, now: Adaptation) -> tuple[Mapping[str, Tensor], SchemeMemory]:
        """Return the global model and the memory for the round; only for schemes of one cell."""
        return now.tensors, now.memory

    def output_passes(self) -> Sequence[Scheme]:
        """Return the schemes over whose masks the final output step averages."""
        return [self]

    def observes(self, round_: int) -> bool:  # noqa: ARG002
        """Return whether `observe` is called before this round, for every client."""
        return False

    def observe(self, now: Observation) -> dict[str, float]:  # noqa: ARG002
        """Return measurements for the round's statistics, by name; clients are averaged.

        The measurements have no other effect.
        """
        return {}

    def work(self, work: LocalWork, capacity: float) -> LocalWork:  # noqa: ARG002
        """Return the local work of a client of this capacity, given the run's ``work``."""
        return work

    def step_rule(self, capacity: float) -> StepRule | None:  # noqa: ARG002
        """Return the step rule of a capacity, whose clients train without stacks; None: plain."""
        return None

    def chance(
        self,
        size: int,  # noqa: ARG002
        capacity: float,  # noqa: ARG002
        units: int = 1,  # noqa: ARG002
        spare: bool = False,  # noqa: ARG002
    ) -> float | None:
        """Return the probability that ``units`` given units of an axis are held; None: no scaling.

        Clients compute with each weight divided by its probability. ``spare``: an empty draw is
        replaced by one unit, drawn uniformly.
        """
        return None

    cells: int = 1
    """Number of cells of clients, which average among themselves between joins."""

    def cell(self, client: int) -> int:  # noqa: ARG002
        """Return the cell of a client, from 0."""
        return 0

    def joins(self, round_: int) -> bool:  # noqa: ARG002
        """Return whether the cells' models are merged at the end of this round."""
        return True


@dataclass(frozen=True)
class BorrowsMasks(Scheme):
    """A scheme that trains with the masks of another scheme, and has its members for masks.

    Both may observe (`observers_of`).
    """

    masks_of: Scheme

    def __post_init__(self) -> None:
        """Accept any object with ``select``."""
        object.__setattr__(self, "masks_of", as_scheme(self.masks_of))

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        """Select as the other scheme does."""
        return self.masks_of.select(axis, size, capacity, draw)

    def problems(self, run: RunFacts) -> list[str]:
        """Return the problems of the other scheme."""
        return self.masks_of.problems(run)

    @property
    def looks_at_model(self) -> bool:  # type: ignore[override]
        """Whether the other scheme looks at the model."""
        return self.masks_of.looks_at_model

    @property
    def sends_masks(self) -> bool | None:  # type: ignore[override]
        """Whether the other scheme sends masks."""
        return self.masks_of.sends_masks

    @property
    def own_cut(self) -> Callable[..., Cut] | None:  # type: ignore[override]
        """Own cut of the other scheme."""
        return self.masks_of.own_cut

    def begin(self, parameters: Mapping[str, Tensor]) -> SchemeMemory:
        """Return the memory of the other scheme."""
        return self.masks_of.begin(parameters)

    def adapts(self, round_: int) -> bool:
        """Return whether the other scheme adapts."""
        return self.masks_of.adapts(round_)

    def adapt(self, now: Adaptation) -> tuple[Mapping[str, Tensor], SchemeMemory]:
        """Adapt as the other scheme does."""
        return self.masks_of.adapt(now)

    def output_passes(self) -> Sequence[Scheme]:
        """Return this scheme with the masks of each output pass of the other."""
        return [replace(self, masks_of=one) for one in output_passes(self.masks_of)]


# -- any object with ``select`` --------------------------------------------------------------------

_OF_MASKS = (
    ("looks_at_model",), ("sends_masks",), ("own_cut",), ("begin",), ("adapts", "adapt"),
    ("output_passes",), ("observes", "observe"),
)  # fmt: skip
_OF_TRAINING = (("work",), ("step_rule",), ("chance",), ("cells", "cell", "joins"))


def defines(scheme: object, *members: str) -> bool:
    """Return whether a scheme, or the one whose masks it borrows, defines any of these members.

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
    """Return an object's member besides the default of `Scheme`, in a list; empty if it has none.

    The member may be defined by its class, by the object itself, or by ``__getattr__`` of a wrapper
    class.
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
    """Wrap an object with ``select`` as a `Scheme`, with all its members; return others unchanged.

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
    """A scheme made from an object that does not derive from `Scheme`, with all its members."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing
        for name in ("problems", *chain(*_OF_MASKS, *_OF_TRAINING)):
            for member in own_member(thing, name):
                setattr(self, name, member)

    def __getattr__(self, name: str) -> Any:
        if name == "thing":  # of a copy without attributes yet
            raise AttributeError(name)
        return getattr(self.thing, name)

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        mask: Mask = self.thing.select(axis, size, capacity, draw)
        return mask


def check_members(scheme: Scheme) -> None:
    """Raise `SubmodelError` if a scheme defines only some members of a group: without effect."""
    check_together(scheme, *_OF_MASKS, *_OF_TRAINING)
    while isinstance(scheme, BorrowsMasks):
        scheme = scheme.masks_of
        check_together(scheme, *_OF_MASKS)


def check_together(scheme: object, *groups: Sequence[str]) -> None:
    """Raise `SubmodelError` unless all members of each group are defined, or none."""
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
                    raise SubmodelError(f"{name}: {member} is {value!r}, but must be a method")


# -- facts about a scheme --------------------------------------------------------------------------


def problems_of(scheme: Scheme, run: RunFacts) -> list[str]:
    """Return the reasons why a scheme is not defined for a run; none without ``problems``.

    Args:
        scheme: any object with ``select``.
        run: the run.
    """
    return list(as_scheme(scheme).problems(run))


def sends_masks(scheme: Scheme) -> bool:
    """Return whether clients cannot repeat the draws of a scheme, so that its masks are sent.

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
    """Return the schemes whose masks the output step averages over, each training as ``scheme``.

    >>> from submodel.schemes import MaskedSgd, Rolling, Static
    >>> output_passes(Static())
    [Static()]
    >>> len(output_passes(MaskedSgd(Rolling(4))))
    4
    """
    return [as_scheme(one) for one in as_scheme(scheme).output_passes()]


def observers_of(scheme: Scheme, round_: int) -> list[Scheme]:
    """Return the schemes that observe this round: this one, and the one whose masks it borrows."""
    others = observers_of(scheme.masks_of, round_) if isinstance(scheme, BorrowsMasks) else []
    return [scheme, *others] if scheme.observes(round_) else others
