"""The picture of a run: accuracy (or loss) and loss over rounds, and accuracy against traffic."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from submodel.algorithm.types import State
from submodel.extras import MissingExtraError
from submodel.presentation.figures import new_figure, plain_log_scale, save_figure
from submodel.runs.callbacks.base import Callback
from submodel.runs.folder import RunFolder
from submodel.runs.metrics import Metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot

_log = logging.getLogger(__name__)
_MARGINS = {"left": 0.065, "right": 0.985, "bottom": 0.14, "top": 0.88, "wspace": 0.34}


class Curves(Callback):
    """Draws ``curves.png`` when a run is finished."""

    def __init__(self, folder: RunFolder, title: str) -> None:
        self._file, self._title = folder.curves_file, title

    def finish(self, last: State, final: State, history: Sequence[Metrics]) -> Mapping[str, Any]:
        """Draw the lines of all rounds; a machine without matplotlib does without them."""
        try:
            draw_curves(history, self._file, self._title)
        except MissingExtraError as error:
            _log.warning("no curves: %s", error)
        return {}


def draw_curves(history: Sequence[dict[str, Any]], path: Path, title: str) -> None:
    """Draw one PNG from the lines of ``metrics.jsonl``."""
    figure = new_figure(12, 3.6, _MARGINS)
    scores, loss, traffic = figure.subplots(1, 3)
    figure.suptitle(title)
    scored_lines = [line for line in history if "test_loss" in line]
    rounds = [line["round"] for line in scored_lines]
    _draw_scores(scores, scored_lines, rounds)

    loss.plot([line["round"] for line in history], [line["train_loss"] for line in history],
              label="train (clients)", alpha=0.5, linewidth=1)  # fmt: skip
    marker = _marker(rounds)
    loss.plot(
        rounds, [line["test_loss"] for line in scored_lines], marker=marker, label="test (global)"
    )
    loss.set(xlabel="round", ylabel="loss")
    plain_log_scale(loss)
    loss.legend(fontsize=8)

    traffic_so_far = list(accumulate(line["bytes_down"] + line["bytes_up"] for line in history))
    position = {line["round"]: total for line, total in zip(history, traffic_so_far, strict=True)}
    traffic.plot(
        [position[r] / 1e6 for r in rounds],
        [line.get("test_accuracy", line["test_loss"]) for line in scored_lines],
        marker=marker,
    )
    traffic.set(xlabel="traffic, MB (down + up)", ylabel=f"test {_score(scored_lines)}")
    ends = (len(history), len(history), traffic_so_far[-1] / 1e6 if traffic_so_far else 0)
    for plot, end in zip((scores, loss, traffic), ends, strict=True):
        plot.grid(alpha=0.3)
        plot.set_xlim(0, 1.02 * end or 1)
        plot.xaxis.get_major_locator().set_params(integer=plot is not traffic)
    save_figure(figure, path)


def _marker(rounds: Sequence[int]) -> str | None:
    """A line of one point is none: show the point."""
    return "o" if len(rounds) == 1 else None


def _draw_scores(plot: Plot, scored_lines: Sequence[dict[str, Any]], rounds: Sequence[int]) -> None:
    """Accuracy, or the loss where targets are not labels: of the global model and by capacity."""
    score = _score(scored_lines)
    by_capacity = f"capacity_{score}"
    plot.set(xlabel="round", ylabel=f"test {score}")
    for capacity in scored_lines[0].get(by_capacity, {}) if scored_lines else ():
        if float(capacity) < 1:
            values = [line[by_capacity][capacity] for line in scored_lines]
            plot.plot(rounds, values, alpha=0.7, linewidth=1, marker=_marker(rounds),
                      label=f"capacity {capacity}")  # fmt: skip
    plot.plot(rounds, [line[f"test_{score}"] for line in scored_lines], color="k",
              marker=_marker(rounds), label="global model")  # fmt: skip
    if score == "accuracy":
        plot.set_ylim(0, 1.02)  # a line at 100 % is not hidden by the frame
    plot.legend(fontsize=8)


def _score(scored_lines: Sequence[dict[str, Any]]) -> str:
    return "accuracy" if scored_lines and "test_accuracy" in scored_lines[0] else "loss"
