"""What a scheme may offer beyond masks: small protocols, and `role`, which asks for them.

A scheme offers a protocol by defining all of its members; naming the protocol among its base
classes lets a type checker hold it to them. A protocol is of one of two kinds. A `MaskRole` has to
do with masks, and is passed on to schemes that train with another scheme's masks (`BorrowsMasks`).
A `TrainingRole` has to do with how clients train and are averaged, and is not.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from inspect import get_annotations
from typing import Protocol, TypeVar, cast

from torch import Tensor

from submodel.errors import SubmodelError
from submodel.local.work import LocalWork
from submodel.schemes.base import Draw, Given, Mask, Memory, Scheme

P = TypeVar("P")


class MaskRole(Protocol):
    """The kind of protocol that goes with the masks, whoever trains with them."""


class TrainingRole(Protocol):
    """The kind of protocol that is the scheme's own way to train and to average."""


# -- about masks -----------------------------------------------------------------------------------


class LooksAtModel(MaskRole):
    """Declares that `select` looks at ``draw.known``: the global model, or the scheme's memory.

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
    """Keeps tensors from round to round; ``draw.known.memory`` has them, and every checkpoint."""

    @abstractmethod
    def begin(self, parameters: Mapping[str, Tensor]) -> Memory:
        """The memory at the start; its names and shapes stay the same over the run."""


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


class Adapts(MaskRole, Protocol):
    """Changes the global model, or its memory, before some rounds."""

    @abstractmethod
    def adapts(self, round_: int) -> bool:
        """Whether `adapt` is to be called before this round."""

    @abstractmethod
    def adapt(self, now: Adaptation) -> tuple[Mapping[str, Tensor], Memory]:
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
    masked: Mapping[str, Tensor]  # m (.) grad f(m (.) w), in the same shapes; m the client's cut
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
    HasChances,
    HasCells,
)
"""All of them."""


# -- asking for them -------------------------------------------------------------------------------


@dataclass(frozen=True)
class BorrowsMasks(Scheme):
    """A scheme that trains with the masks of another one.

    Every `MaskRole` of the other is its own as well, unless it defines the same members itself.
    """

    masks_of: Scheme

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        """What the other selects."""
        return self.masks_of.select(axis, size, capacity, draw)

    def problems(self, given: Given) -> list[str]:
        """What the other is not defined for."""
        return self.masks_of.problems(given)


def role(scheme: Scheme, protocol: type[P]) -> P | None:
    """The scheme as one that offers a protocol; None if it does not.

    A `MaskRole` is looked for in the scheme itself, then in the one whose masks it borrows.

    Args:
        scheme: who is asked
        protocol: for what: a `MaskRole` or a `TrainingRole`

    Raises:
        SubmodelError: the scheme defines a part of the protocol; a part would be ignored

    >>> from submodel.schemes import Hierarchical, Static
    >>> role(Hierarchical(4), HasCells).cells
    4
    >>> role(Static(), HasCells)
    """
    return next(roles(scheme, protocol), None)


def roles(scheme: Scheme, protocol: type[P]) -> Iterator[P]:
    """All that offer a protocol: the scheme, then the one whose masks it borrows, and so on."""
    kind: type = protocol
    passed_on = _passed_on(kind)
    while True:
        if _offers(scheme, kind):
            yield cast(P, scheme)
        if not passed_on or not isinstance(scheme, BorrowsMasks):
            return
        scheme = scheme.masks_of


def check_roles(scheme: Scheme) -> None:
    """Raise `SubmodelError` if the scheme defines a part of any protocol: it would be ignored."""
    for protocol in PROTOCOLS:
        for _ in roles(scheme, protocol):
            pass


@cache
def _passed_on(protocol: type) -> bool:
    kinds = {MaskRole, TrainingRole} & set(protocol.__mro__)
    if len(kinds) != 1:
        raise TypeError(f"{protocol.__name__} must derive from MaskRole or from TrainingRole")
    return MaskRole in kinds


@cache
def members(protocol: type) -> dict[str, bool]:
    """The names that a protocol asks for, and whether they are methods.

    >>> members(HasCells)
    {'cells': False, 'cell': True, 'joins': True}
    """
    parts = [part for part in protocol.__mro__ if {MaskRole, TrainingRole} & set(part.__mro__)]
    names = {
        name: callable(getattr(part, name, None))
        for part in reversed(parts)
        for name in (*get_annotations(part), *vars(part))
    }
    return {name: method for name, method in names.items() if not name.startswith("_")}


def _offers(scheme: Scheme, protocol: type) -> bool:
    """Whether the scheme itself does, by its members or, where there are none, by its class."""
    wanted = members(protocol)
    if not wanted:
        return isinstance(scheme, protocol)
    there = [m for m in wanted if hasattr(type(scheme), m) or hasattr(scheme, m)]
    if not there:
        return False
    name = f"scheme {type(scheme).__name__}"
    if missing := [member for member in wanted if member not in there]:
        raise SubmodelError(
            f"{name}: it defines {_listed(there)}, but not {_listed(missing)}; "
            f"{protocol.__name__} needs all of {_listed(wanted)}"
        )
    for member in there:
        if wanted[member] and not callable(getattr(scheme, member)):
            raise SubmodelError(
                f"{name}: {member} is {getattr(scheme, member)!r}, not a method; the name belongs "
                f"to {protocol.__name__}"
            )
    return True


def _listed(names: Sequence[str] | Mapping[str, bool]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# -- what the algorithm makes of them --------------------------------------------------------------


def sends_masks(scheme: Scheme) -> bool:
    """Whether clients cannot repeat the draws of a scheme, so that its masks are sent.

    >>> from submodel.schemes import Importance, MaskedSgd, Static
    >>> [sends_masks(s) for s in (Static(), Importance(), MaskedSgd(Importance()))]
    [False, True, True]
    """
    looks = role(scheme, LooksAtModel) is not None
    told = role(scheme, SendsMasks)
    if looks and told is not None and not told.sends_masks:
        raise SubmodelError(
            f"scheme {type(scheme).__name__}: sends_masks is False, but it looks at the model, "
            "so clients cannot repeat its draws; leave sends_masks out"
        )
    return looks or (told is not None and told.sends_masks)


def output_passes(scheme: Scheme) -> Sequence[Scheme]:
    """The schemes whose masks the output step averages over, each training as ``scheme`` does.

    >>> from submodel.schemes import MaskedSgd, Rolling, Static
    >>> output_passes(Static())
    (Static(),)
    >>> len(output_passes(MaskedSgd(Rolling(4))))
    4
    """
    if isinstance(scheme, BorrowsMasks) and not _offers(scheme, HasOutputPasses):
        return [replace(scheme, masks_of=one) for one in output_passes(scheme.masks_of)]
    offered = role(scheme, HasOutputPasses)
    return (scheme,) if offered is None else offered.output_passes()


def local_work(scheme: Scheme, work: LocalWork, capacity: float) -> LocalWork:
    """What a client of a capacity does, of the run's own ``work``."""
    offered = role(scheme, HasLocalWork)
    return work if offered is None else offered.work(work, capacity)
