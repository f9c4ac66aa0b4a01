"""Watching in a terminal: a screen that is drawn again and again, or lines for a pipe."""

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
from submodel.report.live.following import RunView, look, look_once
from submodel.report.live.screens import experiment_screen, run_screen, screen_size, time_left
from submodel.runs.metrics import Metrics, is_number
from submodel.runs.outline import RunOutline, scores_in

_PAUSE = 1.0  # seconds between two looks
Sight = RunView | ExperimentOutline | None


def show_once(path: Path, console: Console) -> None:
    """Show how a run or an experiment stands."""
    console.print(_screen(path, look_once(path), console))


def watch(path: Path, console: Console, pause: float = _PAUSE) -> None:
    """Show a run or an experiment until it is finished.

    Args:
        path: its folder; waits until there is one.
        console: a terminal, which is drawn over, or anything else, which gets lines.
        pause: seconds between two looks.
    """
    if not console.is_terminal:
        for text in _lines(path, pause):
            console.print(text, soft_wrap=True)
        return
    sight = look(path)
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_screen(path, sight, console), refresh=True)
                if _state_of(sight)[0] == "finished":
                    break
                time.sleep(pause)
                sight = look(path)
    finally:  # the screen is gone: leave what it showed
        console.print(_screen(path, sight, console))


def _screen(path: Path, sight: Sight, console: Console) -> RenderableType:
    width, height = screen_size(console)
    if isinstance(sight, RunView):
        return run_screen(sight, time.time(), width, height)
    if sight is not None:
        return experiment_screen(sight, time.time(), width, height)
    return Text(f"{plain(path, 200)}: nothing there yet; waiting for a run to begin")


def _state_of(sight: Sight) -> tuple[str, str]:
    """The state and its reason; empty where there is nothing."""
    outline: RunOutline | ExperimentOutline | None
    outline = sight.outline if isinstance(sight, RunView) else sight
    return ("", "") if outline is None else (outline.phase, outline.reason)


def _lines(path: Path, pause: float) -> Iterator[str]:
    """A line for every new evaluated round or ended run, and for every change of state."""
    state, rounds, names_shown = "", 0, set[str]()
    while True:
        sight = look(path)
        if isinstance(sight, RunView):
            rounds = min(rounds, sight.outline.rounds)  # a resumed run may have lost some
            for line in sight.evaluated_lines:
                if line["round"] > rounds:
                    yield describe_round(line, sight.outline.rounds_planned)
                    rounds = line["round"]
        elif sight is not None:
            yield from _new_ends(sight, names_shown)
        new_state, reason = _state_of(sight)
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
    """An evaluated round in a line; `planned_rounds` is 0 where unknown.

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
