"""A run, or an experiment of many, as one screen of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from submodel.amounts import duration, si
from submodel.errors import plain
from submodel.experiments.outline import ExperimentOutline
from submodel.report.listing import STATE_STYLES, ago
from submodel.report.live.drawing import (
    COLOURS,
    DotCurve,
    facts_table,
    plot,
    progress_line,
    side_by_side,
    sparkline,
    time_left,
    title_line,
)
from submodel.report.live.following import Follower, RunView, seconds_of
from submodel.runs.metrics import Metrics, is_number
from submodel.runs.outline import RunOutline, sum_of

_SECTIONS = ("scheme", "data", "model")
_MOST_NAMES = 6
_OTHER_LINES_OF_RUN, _OTHER_LINES_OF_EXPERIMENT = 13, 9  # beside the drawing, or the table
_TALLEST = 14
_LONGEST_CURVE = 24


def run_screen(view: RunView, now: float, width: int, height: int) -> Group:
    """A run: how far it is, its curves, its last round, its devices.

    Args:
        view: the run.
        now: seconds since 1970.
        width: characters.
        height: lines.
    """
    outline = view.outline
    names = [plain(outline.path, 60), *(outline.text(f"{n}.name") for n in _SECTIONS)]
    rounds = f"round {outline.rounds}/{outline.rounds_planned or '?'}"
    rest = time_left(view.seconds_left()) if outline.phase == "running" else ""
    parts: list[RenderableType] = [
        title_line(names, outline.phase, width),
        progress_line(rounds, outline.rounds, outline.rounds_planned, rest, width),
        Text(),
    ]
    if view.lines:
        tallest = max(3, min(_TALLEST, height - _OTHER_LINES_OF_RUN))
        parts += [_plots(view, width, tallest), Text()]
    parts.append(facts_table(_facts_of_run(view, now), width))
    return Group(*parts)


def _points(lines: Sequence[Metrics], key: str) -> list[tuple[float, float]]:
    return [(line["round"], line[key]) for line in lines if is_number(line.get(key))]


def _capacity_points(lines: Sequence[Metrics], table: str) -> dict[str, list[tuple[float, float]]]:
    curves: dict[str, list[tuple[float, float]]] = {}
    for line in lines:
        for capacity, value in _mapping(line, table).items():
            if is_number(value):
                curves.setdefault(capacity, []).append((line["round"], value))
    return curves


def _mapping(line: Metrics, key: str) -> Mapping[str, Any]:
    """A table of a line, which may hold anything."""
    entries = line.get(key)
    return entries if isinstance(entries, Mapping) else {}


def _plots(view: RunView, width: int, height: int) -> RenderableType:
    """The accuracy beside the losses; of tasks without accuracy, their own metric."""
    lines, scores = view.evaluated_lines, view.outline.scores
    losses = [
        DotCurve(_points(view.lines, "train_loss"), "dim"),
        DotCurve(_points(lines, "test_loss"), COLOURS[0]),
    ]
    last = f" {losses[1].points[-1][1]:.4f}" if losses[1].points else ""
    loss_title = f"test loss{last} (training: grey)"
    metric = next((n for n in scores if n != "loss"), None)
    metric = "accuracy" if "accuracy" in scores else metric
    if metric is None:
        return plot(loss_title, losses, width, height, ".3f")
    form = ".1%" if metric == "accuracy" else ".4g"
    curves = [
        DotCurve(points, COLOURS[(place + 1) % len(COLOURS)])
        for place, points in enumerate(_capacity_points(lines, f"capacity_{metric}").values())
    ]
    curves.append(DotCurve(_points(lines, f"test_{metric}"), COLOURS[0]))
    title = f"test {plain(metric, 30).replace('_', ' ')} {scores[metric]:{form}}"
    half = width // 2 - 2 if width >= 70 else width
    both = [
        plot(title, curves, half, height, form),
        plot(loss_title, losses, half, height, ".3f"),
    ]
    return side_by_side(both, width) if width >= 70 else Group(*both)


def _facts_of_run(view: RunView, now: float) -> list[tuple[str, Text]]:
    outline = view.outline
    line: Metrics = dict(view.lines[-1]) if view.lines else {}
    running = outline.phase == "running"
    beginning = "no round is done yet" if running else ""
    totals = f"{duration(outline.seconds)}, {si(outline.traffic, 'B')}" if line else ""
    path = plain(outline.path, 200)
    advice = f"'submodel resume {path}' goes on" if outline.phase in ("stopped", "failed") else ""
    return [
        ("", Text(outline.reason, "red" if outline.phase == "failed" else "yellow")),
        ("capacity", _by_capacity(view)),
        ("last round", Text(_last_round(line, ago(outline.changed_at, now)) or beginning)),
        ("so far", Text(totals)),
        ("time", Text(_phases(view.lines))),
        ("refused", Text(_troubles(view.lines, "refused"), "red")),
        ("missing", Text(_troubles(view.lines, "missing"), "yellow")),
        ("devices", Text(_devices_of(view, running))),
        ("warnings", Text("\n".join(view.warnings), "yellow")),
        ("", Text(advice)),
    ]


def _by_capacity(view: RunView) -> Text:
    """The last score of every capacity, in the colour of its curve."""
    text = Text()
    metric = "accuracy" if "accuracy" in view.outline.scores else "loss"
    table = _capacity_points(view.evaluated_lines, f"capacity_{metric}")
    for place, (capacity, points) in enumerate(table.items()):
        colour = COLOURS[(place + 1) % len(COLOURS)] if metric == "accuracy" else ""
        value = f"{points[-1][1]:.1%}" if metric == "accuracy" else f"{points[-1][1]:.4f}"
        text.append(f"{plain(capacity, 12)} ", "dim").append(f"{value}   ", colour)
    return text


def _last_round(line: Metrics, when: str) -> str:
    if not line:
        return ""
    covered_share = _mapping(line, "coverage").get("units")
    parts = [
        f"{line['clients']} clients" if is_number(line.get("clients")) else "",
        duration(seconds_of(line)),
        si(sum_of(line, "bytes_down", "bytes_up"), "B"),
        f"{covered_share:.0%} of units" if is_number(covered_share) else "",
        f"training loss {line['train_loss']:.4f}" if is_number(line.get("train_loss")) else "",
        when,
    ]
    return ", ".join(part for part in parts if part)


def _phases(lines: Sequence[Metrics]) -> str:
    """The phases as shares of the time of all rounds, the longest first."""
    totals: dict[str, float] = {}
    for line in lines:
        for name, seconds in _mapping(line, "seconds").items():
            totals[name] = totals.get(name, 0.0) + (seconds if is_number(seconds) else 0.0)
    whole = sum(totals.values())
    longest = sorted(totals, key=lambda name: -totals[name])[:_MOST_NAMES]
    shares = [(plain(name, 20), totals[name] / whole) for name in longest] if whole > 0 else []
    return ", ".join(f"{name} {share:.0%}" for name, share in shares if share >= 0.005)


def _troubles(lines: Sequence[Metrics], kind: str) -> str:
    """How many updates were refused or missing, and the last of them."""
    count, last = 0, ""
    for line in lines:
        if entries := _mapping(line, kind):
            count += len(entries)
            client, reason = next(iter(entries.items()))
            last = f"client {plain(client, 20)} in round {line['round']}: {plain(reason, 120)}"
    return f"{count} in all; the last: {last}" if count else ""


def _devices_of(view: RunView, running: bool) -> str:
    if not view.devices:
        is_waiting = running and view.outline.text("engine.name") == "flower"
        return "none has said yet who it is" if is_waiting else ""
    if not running:
        return f"{len(view.devices)} known"
    away = [device for device in view.devices if not device.is_present]
    text = f"{len(view.devices) - len(away)} of {len(view.devices)} are here"
    if away:
        names = [d.name + (f" ({d.problem})" if d.problem else "") for d in away[:_MOST_NAMES]]
        more = f" and {len(away) - _MOST_NAMES} more" if len(away) > _MOST_NAMES else ""
        text += f"; away: {', '.join(names)}{more}"
    return text


def experiment_screen(
    outline: ExperimentOutline, follower: Follower, now: float, width: int, height: int
) -> Group:
    """An experiment: how far the whole plan is, the runs at work, and those that ended.

    Args:
        outline: the experiment.
        follower: keeps the curves of its runs.
        now: seconds since 1970.
        width: characters.
        height: lines.
    """
    work_done, whole = outline.work
    words = f"{outline.runs_ended}/{outline.runs_planned} runs"
    rest = time_left(outline.seconds_left(now))
    room = max(4, height - _OTHER_LINES_OF_EXPERIMENT)
    return Group(
        title_line([plain(outline.path, 100)], outline.phase, width),
        progress_line(words, work_done, whole, rest, width),
        Text(),
        _ways_table(outline, follower, width, room),
        Text(),
        facts_table(_facts_of_experiment(outline, now), width),
    )


def _facts_of_experiment(outline: ExperimentOutline, now: float) -> list[tuple[str, Text]]:
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
        ("so far", Text(f"{took} of rounds, {traffic}; last change {last_change}")),
    ]


def _ways_table(outline: ExperimentOutline, follower: Follower, width: int, most: int) -> Table:
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
    score = Text(_score(runs))
    return [Text(name), Text(state, STATE_STYLES[state]), Text(rounds), score, Text(curve, "cyan")]


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
