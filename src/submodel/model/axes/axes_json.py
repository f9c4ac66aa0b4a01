"""Axes as JSON: found once, kept for later processes of the same run.

The dataclasses of axes, layouts and numbers are the form of the file; their aliases are the keys
that were first written, whatever the attributes are called today. (`tests/compatibility` holds it.)
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import Annotated

from pydantic import Field, TypeAdapter

from submodel.errors import PlanError
from submodel.files import UnreadableError, parse_typed
from submodel.model.axes.declare import Axes
from submodel.model.axes.layout import FixedPart, atoms


def to_json(axes: Axes) -> str:
    """Everything that there is to know of the axes.

    >>> from submodel.model.axes.layout import Along
    >>> axes = Axes({"hidden": 8}, {"w": (Along("hidden", 8), FixedPart(3))})
    >>> from_json(to_json(axes)) == axes
    True
    """
    return json.dumps(_adapter().dump_python(axes, mode="json", by_alias=True))


def from_json(text: str) -> Axes:
    """What `to_json` wrote; raises `PlanError` for anything else.

    >>> from_json('{"": "Axes", "sizes": {"hidden": -1}, "layouts": {}}')
    Traceback (most recent call last):
    submodel.errors.PlanError: not the axes of a model: Axes.sizes.hidden: input should be ...
    """
    try:
        axes = parse_typed(_adapter(), text)
        if not isinstance(axes, Axes):
            raise ValueError("a layout")
        for layouts in axes.layouts.values():
            for part in (atom for layout in layouts for atom in atoms(layout)):
                if axes.sizes.get(part.axis) != part.size:
                    raise ValueError(f"no axis {part.axis[:60]!r} of {part.size}")
    except (UnreadableError, ValueError) as error:  # ValueError: text that no bytes stand for
        raise PlanError(f"not the axes of a model: {str(error)[:200]}") from None
    return axes


@cache
def _adapter() -> TypeAdapter[Axes | FixedPart]:
    """Of axes; with a second kind, as a choice of kinds insists that an object names its own."""
    return TypeAdapter(Annotated[Axes | FixedPart, Field(discriminator="kind")])


def axes_fingerprint(axes: Axes) -> str:
    """Equal for axes that cut alike: both sides must have found the same.

    >>> from submodel.model.axes.layout import Along
    >>> axes_fingerprint(Axes({"hidden": 8}, {"w": (Along("hidden", 8), FixedPart(3))}))
    '7e197dc5eccb3290'
    """
    layouts = sorted(axes.layouts.items(), key=lambda item: item[0])
    text = repr((sorted(axes.sizes.items()), layouts)).replace("FixedPart(", "Fixed(")
    return hashlib.sha256(text.encode()).hexdigest()[:16]
