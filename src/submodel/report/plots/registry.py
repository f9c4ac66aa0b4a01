"""The figures of ``submodel plot``: a name, what it shows, and which function draws it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from submodel.errors import SubmodelError

_HERE = "submodel.report.plots"


@dataclass(frozen=True)
class FigureKind:
    """A figure that can be asked for by its name."""

    about: str
    drawing: str
    """The function from what was read and the width in inches to a figure, as module:name here."""
    reading: str = "sources:read_series"
    """The function from paths to what is drawn."""

    def draw(self, read_data: Any, width: float) -> Any:
        """The figure.

        Args:
            read_data: What `read` returned.
            width: In inches.
        """
        return _function(self.drawing)(read_data, width)

    def read(self, paths: Any) -> Any:
        """What is drawn.

        Args:
            paths: Of runs, comparisons and reproductions.
        """
        return _function(self.reading)(paths)


FIGURES = {
    "accuracy": FigureKind("test accuracy over rounds", "against:accuracy"),
    "loss": FigureKind("test loss over rounds", "against:loss"),
    "traffic": FigureKind("test accuracy against bytes sent", "against:traffic"),
    "flops": FigureKind("test accuracy against the clients' FLOPs", "against:flops"),
    "time": FigureKind("test accuracy against the time of all rounds", "against:time"),
    "coverage": FigureKind(
        "the share of units that clients held, by round", "against:unit_coverage"
    ),
    "capacities": FigureKind(
        "test accuracy of every capacity over rounds", "capacities:capacities"
    ),
    "phases": FigureKind("where the seconds of a round go", "phases:phases"),
    "comparison": FigureKind("what all came to, sorted, with every seed", "comparison:comparison"),
    "partition": FigureKind(
        "who has how many examples of which label, of one run",
        "partition:partition_figure",
        "partition:read_partition",
    ),
}
"""Every figure by its name."""


def find_figure(name: str) -> FigureKind:
    """The figure of a name; an unknown one is answered with the nearest.

    Args:
        name: As a user gave it.

    >>> find_figure("trafic")
    Traceback (most recent call last):
    submodel.errors.SubmodelError: 'trafic' is no figure; did you mean 'traffic'? There are ...
    """
    if name in FIGURES:
        return FIGURES[name]
    near = get_close_matches(name.lower(), FIGURES, 1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise SubmodelError(f"{name!r} is no figure{hint} There are {', '.join(FIGURES)}")


def _function(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(f"{_HERE}.{module}"), name)
    return function
