"""Axes as JSON: found once, kept for later processes of the same run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from submodel.errors import PlanError
from submodel.files import UnreadableError, parse_typed
from submodel.model.axes.axes_forms import AxesForm
from submodel.model.axes.code_numbers import CodeNumbers, Comparison, Sizing
from submodel.model.axes.declare import Axes
from submodel.model.axes.layout import Along, Concatenation, FixedPart, Layout, Product
from submodel.model.axes.number import Attribute, Number, Operation


def to_json(axes: Axes) -> str:
    """Everything that there is to know of the axes, in the form of `axes_forms`.

    >>> axes = Axes({"hidden": 8}, {"w": (Along("hidden", 8), FixedPart(3))})
    >>> from_json(to_json(axes)) == axes
    True
    """
    return json.dumps(
        {
            "": "Axes",
            "sizes": dict(axes.sizes),
            "layouts": {name: _layouts(layouts) for name, layouts in axes.layouts.items()},
            "frozen": dict(axes.frozen),
            "kept": dict(axes.kept_whole),
            "inexact": dict(axes.inexact),
            "unused": axes.unused_tensors,
            "stored": None if axes.code_numbers is None else _code_numbers(axes.code_numbers),
            "measured": axes.measured,
            "doubt": axes.doubt,
            "lines": dict(axes.lines),
            "notes": axes.notes,
        }
    )


def from_json(text: str) -> Axes:
    """What `to_json` wrote; raises `PlanError` for anything else.

    >>> from_json('{"": "Axes", "sizes": {"hidden": -1}, "layouts": {}}')
    Traceback (most recent call last):
    submodel.errors.PlanError: not the axes of a model: sizes.hidden: input should be greater ...
    """
    try:
        axes = parse_typed(_adapter(), text).axes()
        _check_sizes(axes)
    except (UnreadableError, ValueError) as error:  # ValueError: text that no bytes stand for
        raise PlanError(f"not the axes of a model: {str(error)[:200]}") from None
    return axes


@cache
def _adapter() -> TypeAdapter[AxesForm]:
    return TypeAdapter(AxesForm)


def _layouts(layouts: Iterable[Layout]) -> list[Any]:
    return [_layout(layout) for layout in layouts]


def _layout(layout: Layout) -> dict[str, Any]:
    match layout:
        case FixedPart(size):
            return {"": "Fixed", "size": size}
        case Along(axis, size):
            return {"": "Along", "axis": axis, "size": size}
        case Product(parts):
            return {"": "Product", "parts": _layouts(parts)}
        case Concatenation(parts):
            return {"": "Concatenation", "parts": _layouts(parts)}


def _number(number: Number) -> Any:
    if isinstance(number, int):
        return number
    if isinstance(number, Attribute):
        return {"": "Attribute", "name": number.name}
    if isinstance(number, Operation):
        first, second = _number(number.first), _number(number.second)
        return {"": "Computed", "operation": number.name, "left": first, "right": second}
    return {"": "SizeOf", "dimension": _layout(number.dimension)}


def _code_numbers(numbers: CodeNumbers) -> dict[str, Any]:
    return {
        "": "Stored",
        "made": [_sizing(sizing) for sizing in numbers.sizings],
        "elsewhere": _names(numbers.elsewhere),
        "compared": [_comparison(comparison) for comparison in numbers.comparisons],
        "layers": [_sizing(sizing) for sizing in numbers.layers],
        "grouped": _names(numbers.grouping_modules),
        "values": _names(numbers.values),
    }


def _sizing(sizing: Sizing) -> dict[str, Any]:
    return {
        "": "Made",
        "number": _number(sizing.number),
        "dimension": _layout(sizing.dimension),
        "where": sizing.where,
        "groups": sizing.groups,
        "line": sizing.line,
    }


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "": "Compared",
        "one": _number(comparison.one),
        "other": _number(comparison.other),
        "equal": comparison.equal,
        "line": comparison.line,
    }


def _names(names: frozenset[str]) -> dict[str, Any]:
    return {"": "set", "items": sorted(names)}


def _check_sizes(axes: Axes) -> None:
    """Every part is of an axis that there is, and as large as it is."""
    parts = [layout for layouts in axes.layouts.values() for layout in layouts]
    while parts:
        part = parts.pop()
        if isinstance(part, Along) and axes.sizes.get(part.axis) != part.size:
            raise ValueError(f"no axis {part.axis[:60]!r} of {part.size}")
        if isinstance(part, Product | Concatenation):
            parts += part.parts


def axes_fingerprint(axes: Axes) -> str:
    """Equal for axes that cut alike: both sides must have found the same.

    >>> axes_fingerprint(Axes({"hidden": 8}, {"w": (Along("hidden", 8), FixedPart(3))}))
    '7e197dc5eccb3290'
    """
    layouts = ", ".join(
        f"({name!r}, {_spell_all(layouts)})" for name, layouts in sorted(axes.layouts.items())
    )
    text = f"({sorted(axes.sizes.items())!r}, [{layouts}])"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _spell_all(layouts: tuple[Layout, ...]) -> str:
    return f"({', '.join(map(_spell, layouts))}{',' if len(layouts) == 1 else ''})"


def _spell(layout: Layout) -> str:
    """A layout in the words that fingerprints have been made of since the first runs."""
    match layout:
        case FixedPart(size):
            return f"Fixed(size={size!r})"
        case Along(axis, size):
            return f"Along(axis={axis!r}, size={size!r})"
        case Product(parts):
            return f"Product(parts={_spell_all(parts)})"
        case Concatenation(parts):
            return f"Concatenation(parts={_spell_all(parts)})"
