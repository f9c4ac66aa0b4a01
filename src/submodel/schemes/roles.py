"""Asking a scheme what it offers beyond masks (`role`), and what the algorithm makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from inspect import get_annotations
from typing import TypeVar, cast

from submodel.errors import SubmodelError
from submodel.local.work import LocalWork
from submodel.model.cut import Cut
from submodel.schemes.base import Draw, Mask, RunFacts, Scheme, problems_of
from submodel.schemes.protocols import (
    PROTOCOLS,
    HasLocalWork,
    HasOutputPasses,
    HasStepRule,
    LooksAtModel,
    MaskRole,
    Passes,
    SendsMasks,
    StepRule,
    TrainingRole,
)

_P = TypeVar("_P")


@dataclass(frozen=True)
class BorrowsMasks(Scheme):
    """A scheme that trains with the masks of another one.

    Every `MaskRole` of the other is its own as well, unless it defines the same members itself.
    """

    masks_of: Scheme

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        """What the other selects."""
        return self.masks_of.select(axis, size, capacity, draw)

    def problems(self, run: RunFacts) -> list[str]:
        """What the other is not defined for."""
        return problems_of(self.masks_of, run)


def role(scheme: Scheme, protocol: type[_P]) -> _P | None:
    """The scheme as one that offers a protocol; None if it does not.

    A `MaskRole` is looked for in the scheme itself, then in the one whose masks it borrows.

    Args:
        scheme: who is asked
        protocol: for what: a `MaskRole` or a `TrainingRole`

    Raises:
        SubmodelError: the scheme defines a part of the protocol; a part would be ignored

    >>> from submodel.schemes import HasCells, Hierarchical, Static
    >>> role(Hierarchical(4), HasCells).cells
    4
    >>> role(Static(), HasCells)
    """
    return next(all_roles(scheme, protocol), None)


def all_roles(scheme: Scheme, protocol: type[_P]) -> Iterator[_P]:
    """All that offer a protocol: the scheme, then the one whose masks it borrows, and so on."""
    kind: type = protocol
    passed_on = _passed_on(kind)
    while True:
        if _offers(scheme, kind):
            yield cast(_P, scheme)
        if not passed_on or not isinstance(scheme, BorrowsMasks):
            return
        scheme = scheme.masks_of


def check_roles(scheme: Scheme) -> None:
    """Raise `SubmodelError` if the scheme defines a part of any protocol: it would be ignored."""
    for protocol in PROTOCOLS:
        for _ in all_roles(scheme, protocol):
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

    >>> from submodel.schemes import HasCells
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
    is_method = members(protocol)
    if not is_method:
        return isinstance(scheme, protocol)
    there = [m for m in is_method if hasattr(type(scheme), m) or hasattr(scheme, m)]
    if not there:
        return False
    name = f"scheme {type(scheme).__name__}"
    if missing := [member for member in is_method if member not in there]:
        raise SubmodelError(
            f"{name}: it defines {_quote_names(there)}, but not {_quote_names(missing)}; "
            f"{protocol.__name__} needs all of {_quote_names(is_method)}"
        )
    for member in there:
        if is_method[member] and not callable(getattr(scheme, member)):
            raise SubmodelError(
                f"{name}: {member} is {getattr(scheme, member)!r}, not a method; the name belongs "
                f"to {protocol.__name__}"
            )
    return True


def _quote_names(names: Sequence[str] | Mapping[str, bool]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def sends_masks(scheme: Scheme) -> bool:
    """Whether clients cannot repeat the draws of a scheme, so that its masks are sent.

    >>> from submodel.schemes import Importance, MaskedSgd, Static
    >>> [sends_masks(s) for s in (Static(), Importance(), MaskedSgd(Importance()))]
    [False, True, True]
    """
    looks = role(scheme, LooksAtModel) is not None
    sender = role(scheme, SendsMasks)
    if looks and sender is not None and not sender.sends_masks:
        raise SubmodelError(
            f"scheme {type(scheme).__name__}: sends_masks is False, but it looks at the model, "
            "so clients cannot repeat its draws; leave sends_masks out"
        )
    return looks or (sender is not None and sender.sends_masks)


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
    provider = role(scheme, HasOutputPasses)
    return (scheme,) if provider is None else provider.output_passes()


def local_work(scheme: Scheme, work: LocalWork, capacity: float) -> LocalWork:
    """What a client of a capacity does, of the run's own ``work``."""
    provider = role(scheme, HasLocalWork)
    return work if provider is None else provider.work(work, capacity)


def step_rule(scheme: Scheme, capacity: float) -> StepRule | None:
    """How clients of a capacity compute their steps, if not plainly.

    >>> from submodel.schemes import Ordered, Static
    >>> step_rule(Ordered((0.25, 0.5, 1.0)), 0.5).widths, step_rule(Static(), 0.5)
    ((0.25, 0.5), None)
    """
    provider = role(scheme, HasStepRule)
    return None if provider is None else provider.step_rule(capacity)


def pass_cuts(
    rule: StepRule | None, cut: Cut, passes: Passes, least: Mapping[str, float]
) -> list[tuple[Cut, int]]:
    """What passes computed with, and on how many examples; empty: all with the whole cut.

    Args:
        rule: that the client's steps followed; None: plain steps
        cut: what the client holds
        passes: as its steps told of them
        least: the least share of an axis that any cut holds
    """
    if rule is None:
        return []
    return [(rule.cut(cut, width, least), examples) for width, examples in passes]
