"""Colours, style and files of all figures.

Pages use the same colours. Any two of `LINES` differ by 20 or more (CIE 1976) for full colour
vision, protanopia, deuteranopia and tritanopia, and each has a contrast of at least 3 to 1 to the
ground, as WCAG requires of graphics; `tests/drawing` measures both.
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
"""Colour of text, and of the reference line."""
GROUND = "#ffffff"
FAINT = "#b4b4b4"
"""Colour of lines in the background."""
GRID = "#e6e6e6"
FRAME = "#8a8a8a"
LINES = ("#0b3f8c", "#f4590a", "#137a4c", "#a94284", "#3d97e0", "#6b3f00")
"""Colours of compared lines, in this order; `INK` may be one more."""
LINES_ON_DARK = ("#7c6cf6", "#ff661f", "#2a9663", "#bc4c98", "#97ccff", "#f6c681")
"""The corresponding colours on a dark ground."""
INK_ON_DARK, DARK_GROUND = "#f2f2f2", "#16181d"
DASHES = ("-", "--", ":", "-.")
"""Dashes of lines; lines beyond the number of colours reuse them with the next dashes."""
_LARGE_TO_SMALL = ("#0b2c5a", "#1f5f6b", "#5b7a3c", "#a8862b", "#cf7f4f")
NONE_TO_MANY = ("#f7f7f7", "#cfdbe8", "#8fb0d0", "#4a7fb5", "#1d4f8c", "#0b2c5a")
"""Colours of amounts in a picture of cells, from none to the maximum."""
SINGLE, DOUBLE = 3.3, 6.9
"""Width of one column of a paper and of both, in inches."""
TEXT, SMALL_TEXT = 8.0, 7.0
"""Sizes of text in points: titles and names of axes; ticks and names of lines."""
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # part of matplotlib: the same on every machine
    "font.size": TEXT,
    "axes.titlesize": TEXT,
    "axes.labelsize": TEXT,
    "figure.titlesize": TEXT,
    "xtick.labelsize": SMALL_TEXT,
    "ytick.labelsize": SMALL_TEXT,
    "legend.fontsize": SMALL_TEXT,
    "text.parse_math": False,  # typesetting formulas takes a third of the time of a small figure
    "axes.unicode_minus": True,
    "pdf.fonttype": 42,  # TrueType, which editors open and publishers require
    "ps.fonttype": 42,
    "svg.fonttype": "none",  # text that can be searched and selected
    "svg.hashsalt": "submodel",  # equal figures have equal bytes
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
"""Settings of matplotlib (rcParams)."""
_P = ParamSpec("_P")
_T = TypeVar("_T")
_NO_DATES: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}  # metadata by format: equal figures have equal bytes on any day


def line_style(place: int) -> tuple[str, str]:
    """Return the colour and the dashes of a line by its place among all lines, from 0.

    >>> line_style(1), line_style(7)
    (('#f4590a', '-'), ('#f4590a', '--'))
    """
    turns, colour = divmod(place, len(LINES))
    return LINES[colour], DASHES[turns % len(DASHES)]


def capacity_colours(count: int) -> list[str]:
    """Return a colour for each capacity, from the largest (dark) to the smallest (light).

    >>> capacity_colours(2)
    ['#0b2c5a', '#cf7f4f']
    """
    if count == 1:
        return [_LARGE_TO_SMALL[0]]
    return [shade(_LARGE_TO_SMALL, place / (count - 1)) for place in range(count)]


def shade(colours: Sequence[str], share: float) -> str:
    """Interpolate a list of ``#rrggbb`` colours at a fraction from 0 to 1.

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
    """Apply `STYLE` in a context; the settings of matplotlib are restored afterwards.

    >>> import matplotlib
    >>> with in_style():
    ...     matplotlib.rcParams["pdf.fonttype"]
    42
    >>> matplotlib.rcParams["pdf.fonttype"]
    3
    """
    with needs_extra("server", "a figure"):
        import matplotlib as mpl

    with mpl.rc_context(STYLE):  # type: ignore[arg-type]  # mypy expects literal keys
        yield


def with_style(draw: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function so that it draws in `STYLE`."""

    @wraps(draw)
    def draw_in_style(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with in_style():
            return draw(*args, **kwargs)

    return draw_in_style


@with_style
def new_figure(width: float, height: float, margins: dict[str, float] | None = None) -> Figure:
    """Make an empty figure; raise `MissingExtraError` without matplotlib.

    Args:
        width: width in inches, as `SINGLE` or `DOUBLE`.
        height: height in inches.
        margins: arguments of matplotlib's `subplots_adjust`; by default the layout is computed
            from the content, which takes three times as long.

    >>> new_figure(4, 3).get_size_inches().tolist()
    [4.0, 3.0]
    """
    with needs_extra("server", "a figure"):  # imported here, as it takes half a second
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
    """Return the format of a picture by the name of its file; raise `SubmodelError` if unknown.

    >>> format_of(Path("curves.PDF"))
    'pdf'
    """
    ending = path.suffix.removeprefix(".").lower()
    if ending not in _NO_DATES:
        raise SubmodelError(
            f"{path}: the name of a figure must end with one of {', '.join(_NO_DATES)}"
        )
    return ending


def save_figure(figure: Figure, path: Path, dpi: int = 200) -> None:
    """Write a figure as PNG, SVG or PDF, atomically; create the folder.

    Args:
        figure: the figure.
        path: path of the file, whose name ends with the format.
        dpi: dots per inch of a PNG.
    """
    ending = format_of(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with in_style():
        figure.savefig(partial, dpi=dpi, format=ending, metadata=_NO_DATES[ending])
    partial.replace(path)
