"""Former names of the optional members of a scheme: ten protocols, used with `role`.

All are optional members of `Scheme` now, and nothing here is needed any more. A scheme that names
a protocol among its base classes still has to define it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import wraps
from inspect import get_annotations
from typing import Any, Protocol, TypeVar, cast

from submodel.schemes.scheme import BorrowsMasks, Scheme, check_together, own_member

_P = TypeVar("_P")
_F = TypeVar("_F", bound=Callable[..., Any])


def _asked(default: _F) -> _F:
    """Return a method of `Scheme` as one that must be defined."""

    @wraps(default)
    def missing(*arguments: Any, **keywords: Any) -> Any:
        return default(*arguments, **keywords)

    return cast(_F, abstractmethod(missing))


class _Role(Protocol):
    def __init_subclass__(cls, **keywords: Any) -> None:
        """Let the members of the protocols take precedence over the defaults of `Scheme`."""
        super().__init_subclass__(**keywords)
        if Scheme not in cls.__mro__:
            return
        protocols = [kind for kind in cls.__mro__ if _is_role(kind)]
        own = [kind for kind in cls.__mro__ if kind not in (Scheme, BorrowsMasks, *protocols)]
        for protocol in protocols:
            for name in _members(protocol) & vars(protocol).keys() & vars(Scheme).keys():
                if not any(name in vars(kind) for kind in own):
                    setattr(cls, name, vars(protocol)[name])


def _is_role(kind: type) -> bool:
    return _Role in kind.__mro__ and Scheme not in kind.__mro__


def _members(protocol: type) -> set[str]:
    parts = [kind for kind in protocol.__mro__ if _is_role(kind)]
    names = {name for part in parts for name in (*get_annotations(part), *vars(part))}
    return {name for name in names if not name.startswith("_")}


class MaskRole(_Role, Protocol):
    """A protocol of the masks: schemes that borrow them have it, too."""


class TrainingRole(_Role, Protocol):
    """A protocol of a scheme's own training and averaging."""


class LooksAtModel(MaskRole):
    """Sets `Scheme.looks_at_model`."""

    looks_at_model: bool = True


class SendsMasks(MaskRole):
    """Requires `Scheme.sends_masks`."""

    sends_masks: bool | None


class HasMemory(MaskRole):
    """Requires `Scheme.begin`."""

    begin = _asked(Scheme.begin)


class Adapts(MaskRole):
    """Requires `Scheme.adapts` and `Scheme.adapt`."""

    adapts, adapt = _asked(Scheme.adapts), _asked(Scheme.adapt)


class HasOutputPasses(MaskRole):
    """Requires `Scheme.output_passes`."""

    output_passes = _asked(Scheme.output_passes)


class Observes(MaskRole):
    """Requires `Scheme.observes` and `Scheme.observe`."""

    observes, observe = _asked(Scheme.observes), _asked(Scheme.observe)


class HasLocalWork(TrainingRole):
    """Requires `Scheme.work`."""

    work = _asked(Scheme.work)


class HasStepRule(TrainingRole):
    """Requires `Scheme.step_rule`."""

    step_rule = _asked(Scheme.step_rule)


class HasChances(TrainingRole):
    """Requires `Scheme.chance`."""

    chance = _asked(Scheme.chance)


class HasCells(TrainingRole):
    """Requires `Scheme.cells`, `Scheme.cell` and `Scheme.joins`."""

    cells: int
    cell, joins = _asked(Scheme.cell), _asked(Scheme.joins)


def role(scheme: Scheme, protocol: type[_P]) -> _P | None:
    """Return the scheme if it defines the members of a protocol; otherwise None.

    A `MaskRole` is searched in the scheme itself, then in the one whose masks it borrows.

    Raises:
        SubmodelError: the scheme defines only some members of the protocol

    >>> from submodel.schemes import HasCells, Hierarchical, Static
    >>> role(Hierarchical(4), HasCells).cells
    4
    >>> role(Static(), HasCells)
    """
    return next(all_roles(scheme, protocol), None)


def all_roles(scheme: Scheme, protocol: type[_P]) -> Iterator[_P]:
    """Yield all schemes that define it: this one, then any whose masks it borrows, and so on."""
    kind: type = protocol
    kinds = {MaskRole, TrainingRole} & {*kind.__mro__}
    if len(kinds) != 1:
        raise TypeError(f"{kind.__name__} must derive from MaskRole or from TrainingRole")
    names = sorted(_members(kind))
    while True:
        check_together(scheme, names)
        if all(found not in ([], [False]) for found in (own_member(scheme, n) for n in names)):
            yield cast(_P, scheme)
        if TrainingRole in kinds or not isinstance(scheme, BorrowsMasks):
            return
        scheme = scheme.masks_of
