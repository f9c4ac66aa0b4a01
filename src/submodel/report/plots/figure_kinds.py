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
    """Kind of figure: description, reader and drawing function."""

    about: str
    drawing: str = "draw_against"  # function of `plots.figures`: data and width to figure
    reading: str = "read_series"  # function of `plots.series`: paths to data
    options: tuple[str, ...] = ()  # further arguments of the drawing

    def read(self, paths: Sequence[Path]) -> Any:
        """Read the data of the figure from folders of runs, comparisons and reproductions."""
        series = importlib.import_module("submodel.report.plots.series")
        return getattr(series, self.reading)(paths)

    def draw(self, read_data: Any, width: float) -> Any:
        """Draw the data of `read` as a figure of a width in inches."""
        figures = importlib.import_module("submodel.report.plots.figures")
        return getattr(figures, self.drawing)(read_data, width, *self.options)


FIGURES = {
    "accuracy": FigureKind("test accuracy over rounds", options=("round",)),
    "loss": FigureKind("test loss over rounds", options=("round", "test_loss")),
    "traffic": FigureKind("test accuracy against bytes sent", options=("bytes",)),
    "flops": FigureKind("test accuracy against the clients' FLOPs", options=("flops",)),
    "time": FigureKind("test accuracy against the time of all rounds", options=("seconds",)),
    "coverage": FigureKind(
        "fraction of units with a holder, by round", options=("round", "coverage.units")
    ),
    "capacities": FigureKind("test accuracy of every capacity over rounds", "draw_capacities"),
    "phases": FigureKind("seconds of a round by phase", "draw_phases"),
    "comparison": FigureKind("final scores of all arms, sorted, by seed", "draw_comparison"),
    "partition": FigureKind(
        "examples by client and label, of one run", "draw_partition", "read_partition"
    ),
}
"""Figures by name."""


def find_figure(name: str) -> FigureKind:
    """Return a figure by name; the error for an unknown name suggests the nearest.

    >>> find_figure("trafic")
    Traceback (most recent call last):
    submodel.core.errors.SubmodelError: 'trafic' is not a figure; did you mean 'traffic'? ...
    """
    if name in FIGURES:
        return FIGURES[name]
    near = get_close_matches(name.lower(), FIGURES, 1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise SubmodelError(f"{name!r} is not a figure{hint} Figures: {', '.join(FIGURES)}")
