"""Watching in a terminal: a screen that is drawn again and again, or lines for a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from submodel.errors import SubmodelError, plain
from submodel.experiments.outline import ExperimentOutline, is_experiment, is_run, read_experiment
from submodel.report.live.experiment_screen import ExperimentFollower, experiment_screen
from submodel.report.live.following import RunFollower, RunView
from submodel.report.live.parts import screen_size, time_left
from submodel.report.live.run_screen import run_screen
from submodel.runs.metrics import Metrics
from submodel.runs.outline import is_number, scores_in

PAUSE = 1.0
"""Seconds between two looks."""


class Lookout:
    """A run or an experiment that somebody looks at; it may not be there yet.

    Args:
        path: its folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._run, self._experiment = RunFollower(path), ExperimentFollower(path)

    def look(self) -> RunView | ExperimentOutline | None:
        """How it stands now; None: there is nothing yet."""
        if is_run(self.path):
            return self._run.view()
        return read_experiment(self.path) if is_experiment(self.path) else None

    def screen(self, sight: RunView | ExperimentOutline | None, console: Console) -> RenderableType:
        """What is shown of it.

        Args:
            sight: of `look`.
            console: where it is shown.
        """
        width, height = screen_size(console)
        if isinstance(sight, RunView):
            return run_screen(sight, time.time(), width, height)
        if sight is not None:
            return experiment_screen(sight, self._experiment, time.time(), width, height)
        return Text(f"{plain(self.path, 200)}: nothing there yet; waiting for a run to begin")


def state_of(sight: RunView | ExperimentOutline | None) -> str:
    """How something stands; empty: it is not there.

    Args:
        sight: of `Lookout.look`.
    """
    if sight is None:
        return ""
    return sight.outline.phase if isinstance(sight, RunView) else sight.phase


def look_once(path: Path) -> RunView | ExperimentOutline:
    """How a run or an experiment stands; raises `SubmodelError` where there is neither.

    Args:
        path: its folder.
    """
    sight = Lookout(path).look()
    if sight is None:
        raise SubmodelError(f"{plain(path, 200)}: neither a run nor an experiment")
    return sight


def show_once(path: Path, console: Console) -> None:
    """Show how a run or an experiment stands.

    Args:
        path: its folder.
        console: where.
    """
    console.print(Lookout(path).screen(look_once(path), console))


def watch(path: Path, console: Console, pause: float = PAUSE) -> None:
    """Show a run or an experiment until it is finished.

    Args:
        path: its folder; waits until there is one.
        console: a terminal, which is drawn over, or anything else, which gets lines.
        pause: seconds between two looks.
    """
    if not console.is_terminal:
        _tell_lines(path, lambda text: console.print(text, soft_wrap=True), pause)
        return
    lookout = Lookout(path)
    sight = lookout.look()
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(lookout.screen(sight, console), refresh=True)
                if state_of(sight) == "finished":
                    break
                time.sleep(pause)
                sight = lookout.look()
    finally:  # the screen is gone: leave what it showed
        console.print(lookout.screen(sight, console))


def _tell_lines(path: Path, say: Callable[[str], None], pause: float) -> None:
    """A line for every new evaluated round or ended run, and for every change of state."""
    lookout, state = Lookout(path), ""
    rounds, names_told = 0, set[str]()
    while True:
        sight = lookout.look()
        if isinstance(sight, RunView):
            last = sight.outline.rounds
            rounds = min(rounds, last)  # a run that goes on may have lost its last rounds
            for line in sight.evaluated_lines:
                if line["round"] > rounds:
                    say(describe_round(line, sight.outline.rounds_planned))
                    rounds = line["round"]
        elif sight is not None:
            for text in _new_ends(sight, names_told):
                say(text)
        if state_of(sight) != state:
            state = state_of(sight)
            say(_describe_state(sight, path, state))
        if state == "finished":
            return
        time.sleep(pause)


def _new_ends(outline: ExperimentOutline, names_told: set[str]) -> Iterator[str]:
    for run in outline.runs:
        name = plain(run.path.relative_to(outline.path / "runs"), 100)
        if run.phase in ("finished", "failed") and name not in names_told:
            names_told.add(name)
            scores = ", ".join(_describe_scores(run.scores))
            rest = time_left(outline.seconds_left())
            of_plan = f"{outline.runs_ended}/{outline.runs_planned} runs"
            yield "; ".join(p for p in (f"{name}: {run.phase}", scores, of_plan, rest) if p)


def _describe_state(sight: RunView | ExperimentOutline | None, path: Path, state: str) -> str:
    reason = ""
    if sight is not None:
        reason = sight.outline.reason if isinstance(sight, RunView) else sight.reason
    return f"{plain(path, 200)}: {state or 'nothing there'}{f': {reason}' if reason else ''}"


def describe_round(line: Metrics, planned_rounds: int) -> str:
    """What a round's line says of the model.

    Args:
        line: of an evaluated round.
        planned_rounds: how many there will be; 0: nobody can tell.

    >>> describe_round({"round": 2, "train_loss": 1.25, "test_accuracy": 0.5}, 4)
    'round 2/4: train loss 1.2500, test accuracy 50.0%'
    """
    loss = [f"train loss {line['train_loss']:.4f}"] if is_number(line.get("train_loss")) else []
    scores = [f"test {text}" for text in _describe_scores(scores_in(line))]
    return f"round {line['round']}/{planned_rounds or '?'}: {', '.join([*loss, *scores])}"


def _describe_scores(scores: Mapping[str, float]) -> list[str]:
    return [
        f"{plain(name, 30).replace('_', ' ')} {value:{'.1%' if name == 'accuracy' else '.4f'}}"
        for name, value in scores.items()
    ]
