"""Curves of a run: accuracy and loss over rounds, and accuracy against traffic."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from submodel.drawing.labels import (
    amount_ticks,
    even_ticks,
    label_ends,
    log_scale,
    whole_ticks,
)
from submodel.drawing.style import (
    DOUBLE,
    FRAME,
    INK,
    LINES,
    capacity_colours,
    in_style,
    new_figure,
    save_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot

_MARGINS = {"left": 0.065, "right": 0.985, "bottom": 0.19, "top": 0.87, "wspace": 0.62}


def draw_curves(history: Sequence[dict[str, Any]], path: Path, title: str) -> None:
    """Draw a PNG from the lines of ``metrics.jsonl``."""
    figure = new_figure(DOUBLE, 2.0, _MARGINS)
    with in_style():
        scores, loss, traffic = figure.subplots(1, 3)
        scores.set_title(title)
        scored_lines = [line for line in history if "test_loss" in line]
        _draw_scores(scores, scored_lines)
        _draw_loss(loss, history, scored_lines)
        _draw_traffic(traffic, history, scored_lines)
        for plot in (scores, loss):
            plot.set_xlim(0, len(history) or 1)
            plot.set_xlabel("round")
            whole_ticks(plot.xaxis)
        label_ends((scores, loss))
    save_figure(figure, path)


def _marker(lines: Sequence[Any]) -> str | None:
    """Mark the point of a curve that has only one."""
    return "o" if len(lines) == 1 else None


def _draw_scores(plot: Plot, scored_lines: Sequence[dict[str, Any]]) -> None:
    """Draw the scores of the global model and by capacity: accuracy, or loss without labels."""
    score = _score(scored_lines)
    by_capacity = f"capacity_{score}"
    plot.set_ylabel(f"test {score}")
    rounds, marker = [line["round"] for line in scored_lines], _marker(scored_lines)
    names = scored_lines[0].get(by_capacity, {}) if scored_lines else {}
    capacities = sorted((name for name in names if float(name) < 1), key=float, reverse=True)
    for capacity, colour in zip(capacities, capacity_colours(len(capacities) + 1)[1:], strict=True):
        values = [line[by_capacity][capacity] for line in scored_lines]
        plot.plot(rounds, values, color=colour, linewidth=1, marker=marker, label=f"at {capacity}")
    values = [line[f"test_{score}"] for line in scored_lines]
    plot.plot(rounds, values, color=INK, marker=marker, label="global" if capacities else None)
    if score == "accuracy":
        plot.set_ylim(0, 1.02)  # a line at 100 % is not hidden by the frame
    even_ticks(plot.yaxis)


def _draw_loss(
    plot: Plot, history: Sequence[dict[str, Any]], scored_lines: Sequence[dict[str, Any]]
) -> None:
    """Draw the training loss of the clients and the test loss of the global model."""
    rounds, values = [line["round"] for line in history], [line["train_loss"] for line in history]
    plot.plot(rounds, values, color=FRAME, linewidth=0.8, marker=_marker(history), label="clients")
    rounds = [line["round"] for line in scored_lines]
    values = [line["test_loss"] for line in scored_lines]
    plot.plot(rounds, values, color=LINES[0], marker=_marker(scored_lines), label="test")
    plot.set_ylabel("loss")
    log_scale(plot)


def _draw_traffic(
    plot: Plot, history: Sequence[dict[str, Any]], scored_lines: Sequence[dict[str, Any]]
) -> None:
    """Draw the score of the global model against the cumulative traffic."""
    so_far = list(accumulate(line["bytes_down"] + line["bytes_up"] for line in history))
    position = {line["round"]: total for line, total in zip(history, so_far, strict=True)}
    values = [line.get("test_accuracy", line["test_loss"]) for line in scored_lines]
    places = [position[line["round"]] for line in scored_lines]
    plot.plot(places, values, color=INK, marker=_marker(scored_lines))
    most = so_far[-1] if so_far else 0
    plot.set_xlim(0, 1.02 * most or 1)
    plot.set_ylabel(f"test {_score(scored_lines)}")
    amount_ticks(plot.xaxis, most, "traffic, down + up", "B")
    even_ticks(plot.yaxis)


def _score(scored_lines: Sequence[dict[str, Any]]) -> str:
    return "accuracy" if scored_lines and "test_accuracy" in scored_lines[0] else "loss"
