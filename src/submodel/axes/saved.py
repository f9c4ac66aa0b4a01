"""Axes as JSON: found once, kept for later processes of the same run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from submodel.axes.declare import Axes
from submodel.axes.layout import Along, Concatenation, Fixed, Product
from submodel.axes.number import Attribute, Computed, SizeOf
from submodel.axes.stored import Compared, Made, Stored

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
    """What `to_json` wrote; raises ValueError for anything else."""
    try:
        found = json.loads(text, object_hook=_made)
        if not isinstance(found, Axes):
            raise ValueError(f"a {type(found).__name__}")
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"not the axes of a model: {error}") from None
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


def _made(found: dict[str, Any]) -> Any:
    given = {key: _tuples(value) for key, value in found.items()}
    kind = given.pop(_KIND, None)
    if kind is None:
        return given
    return frozenset(given["items"]) if kind == _SET else _KINDS[kind](**given)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
