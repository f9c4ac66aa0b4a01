"""Numbers along an axis: whole rounds, bytes in a fitting unit, plain values on a log scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot
    from matplotlib.axis import Axis

_STEPS = [1, 2, 5, 10]
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_DENSITIES: tuple[tuple[float, ...], ...] = (
    *((1, 1.5, 2, 3, 4, 5, 7), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)),
)  # within a decade
_FEWEST, _MOST = 3, 6  # ticks of an axis


def whole_ticks(axis: Axis, most: int = 4) -> None:
    """Ticks at whole numbers only, as those of rounds.

    Args:
        axis: Of a plot.
        most: How many steps at most.
    """
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(most, integer=True, steps=_STEPS, min_n_ticks=1))


def even_ticks(axis: Axis, most: int = 6) -> None:
    """Few ticks at steps of 1, 2 or 5.

    Args:
        axis: Of a plot.
        most: How many steps at most.
    """
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(most, steps=_STEPS))


def fitting_unit(most: float, unit: str = "B") -> tuple[float, str]:
    """The unit in which the largest of some amounts has one to three digits, and its size.

    Args:
        most: The largest amount.
        unit: Without a prefix.

    >>> fitting_unit(420e6), fitting_unit(3.1e12, "FLOPs"), fitting_unit(12, "s")
    ((1000000.0, 'MB'), (1000000000000.0, 'TFLOPs'), (1.0, 's'))
    """
    for size, prefix in _PREFIXES:
        if most >= size:
            return size, f"{prefix}{unit}"
    return 1.0, unit


def amount_ticks(axis: Axis, most: float, what: str, unit: str) -> None:
    """Ticks of amounts, and the axis' name with the unit that fits the largest.

    Args:
        axis: Of a plot; its values have no prefix.
        most: The largest amount.
        what: What is measured, as "traffic".
        unit: Without a prefix, as "B".
    """
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    size, name = fitting_unit(most, unit)
    axis.set_major_locator(MaxNLocator(5, steps=_STEPS))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / size:g}"))
    axis.set_label_text(f"{what} ({name})")


def plain_number(value: float) -> str:
    """A number as a tick tells it: 0.05, 20, 5,000, 2 M, 10⁻⁶.

    >>> [plain_number(v) for v in (0.05, 20, 5000, 2e6, 1e-6, 3e-7, 0)]
    ['0.05', '20', '5,000', '2 M', '10⁻⁶', '3·10⁻⁷', '0']
    """
    size = abs(value)
    if value == 0 or 1e-3 <= size < 1e5:
        return f"{value:,.0f}" if size >= 1e3 else f"{value:.3g}"
    if 1e5 <= size < 1e12:
        factor, prefix = next((f, p) for f, p in _PREFIXES if size >= f)
        return f"{value / factor:.4g} {prefix}"
    exponent = math.floor(math.log10(size) + 1e-9)
    digits = f"{value / 10.0**exponent:.3g}"
    power = "10" + str(exponent).translate(_SUPERSCRIPTS)
    return power if digits == "1" else f"{digits}·{power}"


def log_places(low: float, high: float) -> list[float]:
    """Round numbers for the ticks of a log scale: three to six where there are as many.

    Args:
        low: The lower end of the scale, above 0.
        high: The upper end.

    >>> log_places(0.4, 30), log_places(1e-9, 1e-1)
    ([0.5, 1.0, 2.0, 5.0, 10.0, 20.0], [1e-09, 1e-07, 1e-05, 0.001, 0.1])
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors in _DENSITIES:
        places = [float(f"{f}e{e}") for e in range(first, last + 1) for f in factors]
        places = [place for place in places if low * (1 - 1e-9) <= place <= high * (1 + 1e-9)]
        if len(places) <= _MOST:
            break
    if len(places) > _MOST:  # a decade each is too many
        places = places[:: -(-len(places) // _MOST)]
    return places if len(places) >= _FEWEST else _even_places(low, high)


def _even_places(low: float, high: float) -> list[float]:
    """Ticks at equal steps, for a scale of less than a decade."""
    from matplotlib.ticker import MaxNLocator

    places = MaxNLocator(4, steps=_STEPS).tick_values(low, high)
    return [float(place) for place in places if low <= place <= high]


def log_scale(plot: Plot, which: str = "y") -> None:
    """A logarithmic scale with plain numbers.

    Args:
        plot: What is scaled; its values are drawn already.
        which: The axis, ``x`` or ``y``.
    """
    if which == "x":
        plot.set_xscale("log")
        low, high = plot.get_xlim()
    else:
        plot.set_yscale("log")
        low, high = plot.get_ylim()
    name_ticks(plot.xaxis if which == "x" else plot.yaxis, log_places(low, high))


def name_ticks(axis: Axis, places: Sequence[float], names: Sequence[str] | None = None) -> None:
    """Ticks at these places and nowhere else, each with its number.

    Args:
        axis: Of a plot.
        places: Where.
        names: What stands there; by default the plain number.
    """
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    axis.set_major_locator(FixedLocator(list(places)))
    axis.set_major_formatter(FixedFormatter(names or [plain_number(place) for place in places]))
    axis.set_minor_locator(NullLocator())
