"""An experiment as one screen of text: how far the whole plan is, what runs now, what ended."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from submodel.amounts import duration, si
from submodel.errors import plain
from submodel.experiments.outline import ExperimentOutline
from submodel.report.list_table import STATE_STYLES, ago
from submodel.report.live.braille import sparkline
from submodel.report.live.following import GrowingLines
from submodel.report.live.parts import facts_table, progress_line, time_left, title_line
from submodel.runs.folder import RunFolder
from submodel.runs.outline import RunOutline, is_number

_OTHER_LINES = 9  # of the screen, beside the table
_LONGEST_CURVE = 24


class ExperimentFollower:
    """The curves of an experiment's runs, kept while it is looked at.

    Args:
        path: its folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: dict[Path, GrowingLines] = {}

    def scores(self, run: RunOutline) -> list[float]:
        """The accuracy of a run over its evaluated rounds; of one that has none, its loss.

        Args:
            run: one of the experiment's.
        """
        if run.path not in self._lines:
            self._lines[run.path] = GrowingLines(RunFolder(run.path).metrics_file)
        lines = self._lines[run.path].read()
        key = "test_accuracy" if "accuracy" in run.scores else "test_loss"
        return [line[key] for line in lines if is_number(line.get(key))]


def experiment_screen(
    outline: ExperimentOutline, follower: ExperimentFollower, now: float, width: int, height: int
) -> Group:
    """All there is to see of an experiment.

    Args:
        outline: the experiment.
        follower: keeps its curves.
        now: seconds since 1970.
        width: characters.
        height: lines.
    """
    work_done, whole = outline.work
    words = f"{outline.runs_ended}/{outline.runs_planned} runs"
    rest = time_left(outline.seconds_left(now))
    parts: list[RenderableType] = [
        title_line([plain(outline.path, 100)], outline.phase, width),
        progress_line(words, work_done, whole, rest, width),
        Text(),
        _ways_table(outline, follower, width, max(4, height - _OTHER_LINES)),
        Text(),
        facts_table(_facts(outline, now), width),
    ]
    return Group(*parts)


def _facts(outline: ExperimentOutline, now: float) -> list[tuple[str, Text]]:
    work_done, whole = outline.work
    progress = outline.progress
    if progress is None:
        plan = "unknown; only runs that have begun are counted"
    elif progress.has_estimates:
        plan = f"{work_done / 3600:.2f} of at least {whole / 3600:.2f} core-hours"
        plan += f", {progress.parallel} runs at a time"
    else:
        plan = f"{work_done:.0f} of {whole:.0f} rounds, {progress.parallel} runs at a time"
    took = duration(sum(run.seconds for run in outline.runs))
    traffic = si(sum(run.traffic for run in outline.runs), "B")
    last_change = ago(outline.changed_at, now)
    return [
        ("", Text(outline.reason, "red")),
        ("plan", Text(plan)),
        (
            "so far",
            Text(f"{took} of rounds, {traffic}; last change {last_change}"),
        ),
    ]


def _ways_table(
    outline: ExperimentOutline, follower: ExperimentFollower, width: int, most: int
) -> Table:
    """Runs that are at work, each with its curve; then the others by name, their seeds together."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("runs", no_wrap=True, overflow="ellipsis")
    for heading, side in (("state", "left"), ("rounds", "right"), ("score", "right"), ("", "left")):
        table.add_column(heading, justify=side, no_wrap=True)  # type: ignore[arg-type]
    running = [run for run in outline.runs if run.phase == "running"]
    others = [run for run in outline.runs if run.phase != "running"]
    curve_width = max(0, min(_LONGEST_CURVE, width - 60))
    for run in running[:most]:
        name = f"{_name_in(outline, run.path.parent)} {run.path.name}"
        curve = sparkline(follower.scores(run), curve_width)
        table.add_row(*_cells(name, "running", f"{run.rounds}/{run.rounds_planned}", [run], curve))
    groups = [(name, list(group)) for name, group in groupby(others, key=lambda r: r.path.parent)]
    groups.sort(key=lambda group: -max(run.changed_at for run in group[1]))
    room = max(1, most - len(running) - 1)
    for path, group in groups[:room]:
        states = {run.phase for run in group}
        state = next(s for s in ("failed", "stopped", "finished") if s in states)
        count = f"{len(group)} run{'s' if len(group) > 1 else ''}"
        table.add_row(*_cells(_name_in(outline, path), state, count, group, ""))
    if len(groups) > room:
        table.add_row(Text(f"and {len(groups) - room} more", "dim"))
    return table


def _cells(
    name: str, state: str, rounds: str, runs: Sequence[RunOutline], curve: str
) -> list[Text]:
    return [
        Text(name),
        Text(state, STATE_STYLES[state]),
        Text(rounds),
        Text(_score(runs)),
        Text(curve, "cyan"),
    ]


def _score(runs: Sequence[RunOutline]) -> str:
    """The mean of the runs' accuracies, or of their losses."""
    for name, form in (("accuracy", ".1%"), ("loss", ".4f")):
        values = [run.scores[name] for run in runs if name in run.scores]
        if values:
            return f"{fmean(values):{form}}"
    return ""


def _name_in(outline: ExperimentOutline, path: Path) -> str:
    base = outline.path / "runs"
    return plain(path.relative_to(base) if path.is_relative_to(base) else path, 60)
