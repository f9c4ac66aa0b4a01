"""The figures of `submodel report`: name, description and drawing function."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from submodel.core.errors import SubmodelError


@dataclass(frozen=True)
class FigureKind:
    """A figure: what it shows, how its data is read, and how it is drawn."""

    about: str
    drawing: str = "draw_against"  # of `plots.figures`: from data and a width to a figure
    reading: str = "read_series"  # of `plots.series`: from paths to data
    options: tuple[str, ...] = ()  # further arguments of the drawing

    def read(self, paths: Sequence[Path]) -> Any:
        """Read what is drawn from folders of runs, comparisons and reproductions."""
        series = importlib.import_module("submodel.report.plots.series")
        return getattr(series, self.reading)(paths)

    def draw(self, read_data: Any, width: float) -> Any:
        """Draw what `read` returned as a figure of so many inches."""
        figures = importlib.import_module("submodel.report.plots.figures")
        return getattr(figures, self.drawing)(read_data, width, *self.options)


FIGURES = {
    "accuracy": FigureKind("test accuracy over rounds", options=("round",)),
    "loss": FigureKind("test loss over rounds", options=("round", "test_loss")),
    "traffic": FigureKind("test accuracy against bytes sent", options=("bytes",)),
    "flops": FigureKind("test accuracy against the clients' FLOPs", options=("flops",)),
    "time": FigureKind("test accuracy against the time of all rounds", options=("seconds",)),
    "coverage": FigureKind(
        "the share of units that clients held, by round", options=("round", "coverage.units")
    ),
    "capacities": FigureKind("test accuracy of every capacity over rounds", "draw_capacities"),
    "phases": FigureKind("where the seconds of a round go", "draw_phases"),
    "comparison": FigureKind("what all came to, sorted, with every seed", "draw_comparison"),
    "partition": FigureKind(
        "who has how many examples of which label, of one run", "draw_partition", "read_partition"
    ),
}
"""Every figure by its name."""


def find_figure(name: str) -> FigureKind:
    """Return the figure of a name; the error about an unknown one names the nearest.

    >>> find_figure("trafic")
    Traceback (most recent call last):
    submodel.core.errors.SubmodelError: 'trafic' is no figure; did you mean 'traffic'? There are ...
    """
    if name in FIGURES:
        return FIGURES[name]
    near = get_close_matches(name.lower(), FIGURES, 1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise SubmodelError(f"{name!r} is no figure{hint} There are {', '.join(FIGURES)}")
