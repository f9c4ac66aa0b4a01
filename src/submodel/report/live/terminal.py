"""Live view in a terminal: a refreshed screen, or lines for a pipe."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from submodel.comparison.outline import ExperimentOutline
from submodel.core.errors import plain
from submodel.report.listing import score_text
from submodel.report.live.following import RunView, read_view, require_view
from submodel.report.live.screens import experiment_screen, run_screen, screen_size, time_left
from submodel.runs.metrics import Metrics, is_number
from submodel.runs.outline import RunOutline, scores_in

_PAUSE = 1.0  # seconds between two updates
View = RunView | ExperimentOutline | None


def show_once(path: Path, console: Console) -> None:
    """Print the present state of a run or an experiment."""
    console.print(_screen(path, require_view(path), console))


def watch(path: Path, console: Console, pause: float = _PAUSE) -> None:
    """Show a run or an experiment until it is finished.

    Args:
        path: folder of the run or experiment; it need not exist yet.
        console: a terminal gets a refreshed screen, anything else gets lines.
        pause: seconds between two updates.
    """
    if not console.is_terminal:
        for text in _lines(path, pause):
            console.print(text, soft_wrap=True)
        return
    view = read_view(path)
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_screen(path, view, console), refresh=True)
                if _state_of(view)[0] == "finished":
                    break
                time.sleep(pause)
                view = read_view(path)
    finally:  # print the last screen again after it was cleared
        console.print(_screen(path, view, console))


def _screen(path: Path, view: View, console: Console) -> RenderableType:
    width, height = screen_size(console)
    if isinstance(view, RunView):
        return run_screen(view, time.time(), width, height)
    if view is not None:
        return experiment_screen(view, time.time(), width, height)
    return Text(f"{plain(path, 200)}: waiting for a run to begin")


def _state_of(view: View) -> tuple[str, str]:
    """Return the state and its reason; empty if there is no run."""
    outline: RunOutline | ExperimentOutline | None
    outline = view.outline if isinstance(view, RunView) else view
    return ("", "") if outline is None else (outline.phase, outline.reason)


def _lines(path: Path, pause: float) -> Iterator[str]:
    """Yield a line for every new evaluated round or ended run, and for every new state."""
    state, rounds, names_shown = "", 0, set[str]()
    while True:
        view = read_view(path)
        if isinstance(view, RunView):
            rounds = min(rounds, view.outline.rounds)  # a resumed run may have lost rounds
            for line in view.evaluated_lines:
                if line["round"] > rounds:
                    yield describe_round(line, view.outline.rounds_planned)
                    rounds = line["round"]
        elif view is not None:
            yield from _new_ends(view, names_shown)
        new_state, reason = _state_of(view)
        if new_state != state:
            state = new_state
            because = f": {reason}" if reason else ""
            yield f"{plain(path, 200)}: {state or 'nothing there'}{because}"
        if state == "finished":
            return
        time.sleep(pause)


def _new_ends(outline: ExperimentOutline, names_shown: set[str]) -> Iterator[str]:
    for run in outline.runs:
        name = plain(run.path.relative_to(outline.path / "runs"), 100)
        if run.phase in ("finished", "failed") and name not in names_shown:
            names_shown.add(name)
            scores = ", ".join(_describe_scores(run.scores))
            rest = time_left(outline.seconds_left())
            of_plan = f"{outline.runs_ended}/{outline.runs_planned} runs"
            yield "; ".join(p for p in (f"{name}: {run.phase}", scores, of_plan, rest) if p)


def describe_round(line: Metrics, planned_rounds: int) -> str:
    """Describe an evaluated round in one line; `planned_rounds` is 0 if unknown.

    >>> describe_round({"round": 2, "train_loss": 1.25, "test_accuracy": 0.5}, 4)
    'round 2/4: train loss 1.2500, test accuracy 50.0%'
    """
    loss = [f"train loss {line['train_loss']:.4f}"] if is_number(line.get("train_loss")) else []
    scores = [f"test {text}" for text in _describe_scores(scores_in(line))]
    return f"round {line['round']}/{planned_rounds or '?'}: {', '.join([*loss, *scores])}"


def _describe_scores(scores: Mapping[str, float]) -> list[str]:
    return [
        f"{plain(name, 30).replace('_', ' ')} {score_text(name, value)}"
        for name, value in scores.items()
    ]
