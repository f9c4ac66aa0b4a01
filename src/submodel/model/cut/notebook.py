"""Cuts as a notebook shows them: which units of every axis, or how much of every tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from submodel.presentation.notebook import card, cell, grid_of_cells, line_of_text, strip

if TYPE_CHECKING:
    from submodel.model.cut.cuts import CoordinateCut, UnitCut

_MOST_ROWS = 24
_MOST_CELLS = 480  # of a strip: two to a pixel


def unit_cut_html(cut: UnitCut) -> str:
    """A cut by units as HTML.

    Args:
        cut: what a client holds.
    """
    rows, kept_sizes = [], 0
    for axis, size in cut.axes.sizes.items():
        mask = np.zeros(size)
        mask[cut.units.get(axis, slice(None))] = 1
        count = int(mask.sum())
        kept_sizes += count
        text = f"{count:,} of {size:,}"
        rows.append([cell(axis), strip(_thin(mask), f"{text} units"), cell(text)])
    units = sum(cut.axes.sizes.values())
    title = f"Cut: {kept_sizes:,} of {units:,} units on {len(rows)} axes"
    return card(title, *_table("axis", rows, "axes"))


def coordinate_cut_html(cut: CoordinateCut) -> str:
    """A cut by single weights as HTML.

    Args:
        cut: what a client holds.
    """
    rows, held_weights, weights = [], 0, 0
    for name, mask in cut.masks.items():
        count, size = int(mask.sum()), mask.numel()
        held_weights, weights = held_weights + count, weights + size
        share = count / max(1, size)
        text = f"{count:,} of {size:,} ({share:.1%})"
        levels = [1.0] * round(48 * share) + [0.0] * (48 - round(48 * share))
        rows.append([cell(name), strip(levels, text), cell(text)])
    if not cut.masks:
        return card("Cut: the whole model")
    title = f"Cut: {held_weights:,} of {weights:,} weights in {len(rows)} tensors"
    return card(title, *_table("tensor", rows, "tensors"))


def _table(heading: str, rows: list[list[str]], plural: str) -> list[str]:
    parts = [grid_of_cells((heading, "", "held"), rows[:_MOST_ROWS], numbers=(2,))]
    if len(rows) > _MOST_ROWS:
        parts.append(line_of_text(f"and {len(rows) - _MOST_ROWS} more {plural}"))
    return parts


def _thin(mask: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[float]:
    """The mask, or the shares of its stretches where it is long."""
    if len(mask) <= _MOST_CELLS:
        return [float(level) for level in mask]
    return [float(part.mean()) for part in np.array_split(mask, _MOST_CELLS)]
