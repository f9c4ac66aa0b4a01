"""Figures that reports share: matplotlib where it is installed, one style, whole files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from submodel.errors import SubmodelError
from submodel.extras import needs_extra
from submodel.presentation.style import in_style, with_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
"""What a figure can be written as; a file's name ends with it."""
_NO_DATES: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}  # the same figure is the same bytes, on any day


@with_style
def new_figure(width: float, height: float, margins: dict[str, float] | None = None) -> Figure:
    """An empty figure of so many inches; raises `MissingExtraError` without matplotlib.

    Args:
        width: In inches; `presentation.style` has those of a paper's columns.
        height: In inches.
        margins: As matplotlib's `subplots_adjust` takes them; by default, room is made for whatever
            is drawn, which takes three times as long.

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
    """What a file's name says that it is; raises `SubmodelError` where that is no format of ours.

    Args:
        path: Of a picture.

    >>> format_of(Path("curves.PDF"))
    'pdf'
    """
    ending = path.suffix.removeprefix(".").lower()
    if ending not in FORMATS:
        raise SubmodelError(
            f"{path}: figures are written as {', '.join(FORMATS)}: let its name end with one"
        )
    return ending


def save_figure(figure: Figure, path: Path, dpi: int = 200) -> None:
    """Write a PNG, an SVG or a PDF, of which nobody sees a half.

    Args:
        figure: What to write.
        path: Where, ending with the format; its folder is made.
        dpi: Dots per inch of a PNG.
    """
    ending = format_of(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with in_style():
        figure.savefig(partial, dpi=dpi, format=ending, metadata=_NO_DATES[ending])
    partial.replace(path)
