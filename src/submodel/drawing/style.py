"""Colours, style and files of all figures.

Pages take the colours, too. Any two of `LINES` differ by 20 or more (CIE 1976) as people with full
colour vision, protanopia, deuteranopia and tritanopia see them, and each has a contrast of 3 to 1
or more to the ground, as WCAG asks of what is drawn; `tests/presentation` measures both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from submodel.core.errors import SubmodelError
from submodel.core.extras import needs_extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#222222"
"""Text, and the line that others are compared with."""
GROUND = "#ffffff"
FAINT = "#b4b4b4"
"""Lines that only stand behind others."""
GRID = "#e6e6e6"
FRAME = "#8a8a8a"
LINES = ("#0b3f8c", "#f4590a", "#137a4c", "#a94284", "#3d97e0", "#6b3f00")
"""What is compared, in this order; `INK` may be one more."""
LINES_ON_DARK = ("#7c6cf6", "#ff661f", "#2a9663", "#bc4c98", "#97ccff", "#f6c681")
"""The same for a page with a dark ground, place by place."""
INK_ON_DARK, DARK_GROUND = "#f2f2f2", "#16181d"
DASHES = ("-", "--", ":", "-.")
"""Lines beyond the colours take them again, dashed otherwise."""
_LARGE_TO_SMALL = ("#0b2c5a", "#1f5f6b", "#5b7a3c", "#a8862b", "#cf7f4f")
NONE_TO_MANY = ("#f7f7f7", "#cfdbe8", "#8fb0d0", "#4a7fb5", "#1d4f8c", "#0b2c5a")
"""Amounts in a picture of cells, from nothing to most."""
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
_NO_DATES: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}  # by format: the same figure is the same bytes, on any day


def line_style(place: int) -> tuple[str, str]:
    """The colour and the dashes of a line by its place among many, from 0.

    >>> line_style(1), line_style(7)
    (('#f4590a', '-'), ('#f4590a', '--'))
    """
    turns, colour = divmod(place, len(LINES))
    return LINES[colour], DASHES[turns % len(DASHES)]


def capacity_colours(count: int) -> list[str]:
    """A colour for each of so many capacities, from the largest (dark) to the smallest (light).

    >>> capacity_colours(2)
    ['#0b2c5a', '#cf7f4f']
    """
    if count == 1:
        return [_LARGE_TO_SMALL[0]]
    return [shade(_LARGE_TO_SMALL, place / (count - 1)) for place in range(count)]


def shade(colours: Sequence[str], share: float) -> str:
    """The colour at a share of the way through some ``#rrggbb``, mixed from its two neighbours.

    >>> shade(("#000000", "#ffffff"), 0.5)
    '#808080'
    """
    place = min(max(share, 0.0), 1.0) * (len(colours) - 1)
    first = min(int(place), len(colours) - 2)
    pairs = zip(_channels(colours[first]), _channels(colours[first + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (place - first)):02x}" for a, b in pairs)


def _channels(colour: str) -> bytes:
    return bytes.fromhex(colour[1:])


@contextmanager
def in_style() -> Iterator[None]:
    """Draw in this style; the settings of matplotlib are restored after it.

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
    """Let a function draw in this style."""

    @wraps(draw)
    def draw_in_style(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with in_style():
            return draw(*args, **kwargs)

    return draw_in_style


@with_style
def new_figure(width: float, height: float, margins: dict[str, float] | None = None) -> Figure:
    """Make an empty figure of so many inches; raises `MissingExtraError` without matplotlib.

    Args:
        width: as `SINGLE` or `DOUBLE`.
        height: in inches.
        margins: as matplotlib's `subplots_adjust` takes them; by default, room is made for all
            that is drawn, which takes three times as long.

    >>> new_figure(4, 3).get_size_inches().tolist()
    [4.0, 3.0]
    """
    with needs_extra("server", "a figure"):  # half a second that only figures need
        from matplotlib.figure import Figure

    if margins is None:
        figure = Figure(figsize=(width, height), layout="constrained")
        engine: Any = figure.get_layout_engine()
        engine.set(w_pad=0.03, h_pad=0.03, wspace=0.03, hspace=0.05)
        return figure
    figure = Figure(figsize=(width, height))
    figure.subplots_adjust(**margins)
    return figure


def format_of(path: Path) -> str:
    """The format of a picture by the name of its file; raises `SubmodelError` for another one.

    >>> format_of(Path("curves.PDF"))
    'pdf'
    """
    ending = path.suffix.removeprefix(".").lower()
    if ending not in _NO_DATES:
        raise SubmodelError(
            f"{path}: figures are written as {', '.join(_NO_DATES)}: let its name end with one"
        )
    return ending


def save_figure(figure: Figure, path: Path, dpi: int = 200) -> None:
    """Write a PNG, an SVG or a PDF, as a whole or not at all; the folder is made.

    Args:
        figure: any.
        path: the file, whose name ends with the format.
        dpi: dots per inch of a PNG.
    """
    ending = format_of(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with in_style():
        figure.savefig(partial, dpi=dpi, format=ending, metadata=_NO_DATES[ending])
    partial.replace(path)
