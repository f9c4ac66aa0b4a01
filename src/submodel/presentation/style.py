"""The look of all figures: widths of a paper's columns, fonts, lines, and text that stays text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from submodel.extras import needs_extra
from submodel.presentation.palette import FRAME, GRID, GROUND, INK

SINGLE, DOUBLE = 3.3, 6.9
"""Inches: the width of one column of a paper, and of both."""
TEXT, SMALL_TEXT = 8.0, 7.0
"""Points: of titles and the names of axes; of ticks and the names of lines."""
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same on every machine
    "font.size": TEXT,
    "axes.titlesize": TEXT,
    "axes.labelsize": TEXT,
    "figure.titlesize": TEXT,
    "xtick.labelsize": SMALL_TEXT,
    "ytick.labelsize": SMALL_TEXT,
    "legend.fontsize": SMALL_TEXT,
    "text.parse_math": False,  # setting a formula takes a third of the time of a small figure
    "axes.unicode_minus": True,
    "pdf.fonttype": 42,  # TrueType, which editors open and publishers ask for
    "ps.fonttype": 42,
    "svg.fonttype": "none",  # text that can be searched and selected
    "svg.hashsalt": "submodel",  # the same figure, the same bytes
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FRAME,
    "axes.facecolor": GROUND,
    "figure.facecolor": GROUND,
    "savefig.facecolor": GROUND,
    "axes.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "axes.labelpad": 2.5,
    "axes.titlepad": 4.0,
    "axes.titlelocation": "left",
    "xtick.color": FRAME,
    "ytick.color": FRAME,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.major.pad": 2.0,
    "ytick.major.pad": 2.0,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.0,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.borderaxespad": 0.2,
}
"""What matplotlib calls these; see its rcParams."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


@contextmanager
def in_style() -> Iterator[None]:
    """Draw in this style within; what the caller has set of matplotlib comes back after it.

    >>> import matplotlib
    >>> with in_style():
    ...     matplotlib.rcParams["pdf.fonttype"]
    42
    >>> matplotlib.rcParams["pdf.fonttype"]
    3
    """
    with needs_extra("server", "a figure"):
        import matplotlib as mpl

    with mpl.rc_context(STYLE):  # type: ignore[arg-type]  # its keys are all literals to mypy
        yield


def with_style(draw: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function that draws, in this style.

    Args:
        draw: What makes or fills a figure.
    """

    @wraps(draw)
    def draw_in_style(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with in_style():
            return draw(*args, **kwargs)

    return draw_in_style
