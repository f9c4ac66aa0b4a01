"""Numbers of many rounds in little text: columns of 32-bit floats, as a page carries them."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence

import numpy as np

MOST_POINTS = 2_000
"""More of one curve nobody can see apart on a page."""
PackedColumn = str | float
"""Base64 of little-endian 32-bit floats; of values that are all the same, that one."""


def pack_column(values: Sequence[float]) -> PackedColumn:
    """A column for a page; what is not known is NaN.

    Args:
        values: one for every row.

    >>> pack_column([1.0, 2.0]), pack_column([3, 3])
    ('AACAPwAAAEA=', 3.0)
    """
    with np.errstate(over="ignore"):  # what is too large for them is infinite, and not drawn
        table = np.asarray(values, "<f4")
    if len(table) and math.isfinite(table[0]) and bool((table == table[0]).all()):
        return float(table[0])
    return base64.b64encode(table.tobytes()).decode("ascii")


def places(rows: int, most: int = MOST_POINTS) -> list[int]:
    """Which of so many rows a page shows: all, or evenly spread ones with the first and last.

    Args:
        rows: how many there are.
        most: how many may be shown.

    >>> places(3), places(9, most=3)
    ([0, 1, 2], [0, 4, 8])
    """
    if rows <= most:
        return list(range(rows))
    return [int(place) for place in np.linspace(0, rows - 1, most).round()]


def pack_table(columns: Mapping[str, Sequence[float]]) -> dict[str, PackedColumn | int]:
    """Columns of equal length as one table, thinned where there are too many rows.

    Args:
        columns: by name.

    >>> pack_table({"round": [1, 2], "clients": [5, 5]})
    {'rows': 2, 'round': 'AACAPwAAAEA=', 'clients': 5.0}
    """
    rows = max(map(len, columns.values()), default=0)
    shown_places = places(rows)
    return {
        "rows": len(shown_places),
        **{
            name: pack_column([values[p] for p in shown_places]) for name, values in columns.items()
        },
    }


def finite(value: object) -> float | None:
    """A number that JSON can hold; None for anything else.

    Args:
        value: whatever a file held.

    >>> finite(2), finite(math.nan), finite("7"), finite(10**400)
    (2, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # a whole number that no float can hold
        return None
