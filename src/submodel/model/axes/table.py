"""Axes as text: one line per axis, where it lies, and what to know about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from submodel.model.axes.layout import Along, FixedPart, Layout, Product

if TYPE_CHECKING:
    from submodel.model.axes.declare import Axes


def table(axes: Axes, most: int = 4) -> str:
    """The axes, at most ``most`` members of each, and the dimensions that are frozen.

    Within a product or a concatenation, ``_`` stands for the axis and a number for another part:
    ``fc.weight[1] = _ x 16`` is what a flatten of 4 x 4 images leaves.
    """
    width = max([4, *(len(name) for name in axes.sizes)])
    lines = [f"{'axis':{width}}  size  members"]
    for axis, size in axes.sizes.items():
        members = [
            f"{name}[{d}]{_position(layout, axis)}"
            for name, layouts in axes.layouts.items()
            for d, layout in enumerate(layouts)
            if axis in layout.axes()
        ]
        more = [f"{len(members) - most} more"] if len(members) > most else []
        lines.append(f"{axis:{width}}  {size:4}  {', '.join(members[:most] + more)}")
        remarks = (
            [f"kept whole: {axes.kept_whole[axis]}{_at(axes, axis)}"]
            if axis in axes.kept_whole
            else []
        )
        remarks += [f"not exact: {words}" for words in axes.inexact.get(axis, ())]
        lines += [f"{'':{width}}        {remark}" for remark in remarks]
    reasons: dict[str, list[str]] = {}
    for dimension, reason in axes.frozen.items():
        reasons.setdefault(f"{reason}{_at(axes, dimension)}", []).append(dimension)
    for reason, members in reasons.items():
        more = [f"{len(members) - most} more"] if len(members) > most else []
        lines.append(f"frozen, {reason}: {', '.join(members[:most] + more)}")
    if axes.unused_tensors:
        lines.append(f"never read: {', '.join(axes.unused_tensors)}")
    return "\n".join(lines)


def _at(axes: Axes, where: str) -> str:
    return f", at {axes.lines[where]}" if where in axes.lines else ""


def _position(layout: Layout, axis: str) -> str:
    return "" if isinstance(layout, Along) else f" = {_part(layout, axis, outermost=True)}"


def _part(layout: Layout, axis: str, outermost: bool = False) -> str:
    if isinstance(layout, Along) and layout.axis == axis:
        return "_"
    if isinstance(layout, FixedPart | Along) or axis not in layout.axes():
        return str(layout.size)
    sign = " x " if isinstance(layout, Product) else " + "
    text = sign.join(_part(part, axis) for part in layout.parts)
    return text if outermost else f"({text})"
