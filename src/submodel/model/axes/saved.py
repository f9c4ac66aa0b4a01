"""Axes as JSON: found once, kept for later processes of the same run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pydantic_core

from submodel.errors import PlanError
from submodel.model.axes.declare import Axes
from submodel.model.axes.layout import Along, Concatenation, Fixed, Layout, Product
from submodel.model.axes.number import Attribute, Computed, SizeOf
from submodel.model.axes.stored import Compared, Made, Stored

_LAYOUTS = (Fixed, Along, Product, Concatenation)
_NUMBERS = (Stored, Made, Compared, Attribute, SizeOf, Computed)
_KINDS = {kind.__name__: kind for kind in (Axes, *_LAYOUTS, *_NUMBERS)}
_KIND, _SET = "", "set"  # no tensor and no axis has an empty name


def to_json(axes: Axes) -> str:
    """Everything that there is to know of the axes.

    >>> found = Axes({"hidden": 8}, {"w": (Along("hidden", 8), Fixed(3))})
    >>> from_json(to_json(found)) == found
    True
    """
    return json.dumps(_plain(axes))


def from_json(text: str) -> Axes:
    """What `to_json` wrote; raises `PlanError` for anything else."""
    try:
        found = _made(pydantic_core.from_json(text))  # not nested more than 200 deep
        if not isinstance(found, Axes):
            raise ValueError(f"a {type(found).__name__}")
        _check_sizes(found)
    except (TypeError, KeyError, ValueError) as error:
        raise PlanError(f"not the axes of a model: {str(error)[:200]}") from None
    return found


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        own = {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
        return {_KIND: type(value).__name__, **own}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return {_KIND: _SET, "items": sorted(value)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _made(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_made, value))
    if not isinstance(value, dict):
        return value
    given = {key: _made(item) for key, item in value.items()}
    kind = given.pop(_KIND, None)
    if kind is None:
        return given
    if kind == _SET:
        return frozenset(given["items"])
    part = _KINDS[kind](**given)
    for name, hint in _hints(_KINDS[kind]).items():
        if not _fits(getattr(part, name), hint):
            raise ValueError(f"{kind}.{name} is {str(getattr(part, name))[:60]!r}")
    return part


_hints = cache(get_type_hints)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type of a field; parts were looked at when they were made."""
    kinds = get_args(hint)
    if isinstance(hint, UnionType):
        return any(_fits(value, kind) for kind in kinds)
    if hint is int:
        return type(value) is int and abs(value) < 1 << 53
    if hint is float:
        return type(value) in (int, float)
    if hint is Any:  # what makes a dimension: a layout, once it is kept
        return isinstance(value, get_args(Layout))
    origin = get_origin(hint) or hint
    if not isinstance(value, origin):
        return False
    if issubclass(origin, Mapping):
        return all(isinstance(key, str) and _fits(item, kinds[1]) for key, item in value.items())
    return origin not in (tuple, frozenset) or all(_fits(item, kinds[0]) for item in value)


def _check_sizes(axes: Axes) -> None:
    """Every part is of an axis that there is, as large as it is, and none has a negative size."""
    parts: list[Any] = [layout for own in axes.layouts.values() for layout in own]
    while parts:
        part = parts.pop()
        if isinstance(part, Along) and axes.sizes.get(part.axis) != part.size:
            raise ValueError(f"no axis {part.axis[:60]!r} of {part.size}")
        if isinstance(part, Along | Fixed) and part.size < 0:
            raise ValueError(f"a dimension of {part.size}")
        parts += getattr(part, "parts", ())


def axes_fingerprint(axes: Axes) -> str:
    """Equal for axes that cut alike: both sides must have found the same."""
    found = repr((sorted(axes.sizes.items()), sorted(axes.layouts.items())))
    return hashlib.sha256(found.encode()).hexdigest()[:16]
