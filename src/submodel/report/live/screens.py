"""State of a run or an experiment as a screen of text; curves have 2 x 4 dots per character."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from submodel.comparison.outline import ExperimentOutline
from submodel.core.amounts import duration, si
from submodel.core.errors import plain
from submodel.report.listing import STATE_STYLES, ago, score_text
from submodel.report.live.following import RunView, rounds_of, seconds_of
from submodel.runs.metrics import Metrics, is_number
from submodel.runs.outline import RunOutline, sum_of

_SECTIONS = ("scheme", "data", "model")
_MOST_NAMES = 6
_OTHER_LINES_OF_RUN, _OTHER_LINES_OF_EXPERIMENT = 13, 9  # outside the plots, or the table
_TALLEST = 14
_LONGEST_CURVE = 24
_COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red")  # of the curves of one plot
_LABEL = 7  # characters left of a plot
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # by row, then column
_BLANK = 0x2800
_BARS = "▁▂▃▄▅▆▇█"


def run_screen(view: RunView, now: float, width: int, height: int) -> Group:
    """Return the screen of a run: progress, curves, last round, devices.

    Args:
        view: state of the run.
        now: time in seconds since 1970.
        width: width in characters.
        height: height in lines.
    """
    outline = view.outline
    names = [plain(outline.path, 60), *(outline.text(f"{n}.name") for n in _SECTIONS)]
    rounds = f"round {outline.rounds}/{outline.rounds_planned or '?'}"
    rest = time_left(view.seconds_left()) if outline.phase == "running" else ""
    parts: list[RenderableType] = [
        _title_line(names, outline.phase, width),
        _progress_line(rounds, outline.rounds, outline.rounds_planned, rest, width),
        Text(),
    ]
    if view.lines:
        tallest = max(3, min(_TALLEST, height - _OTHER_LINES_OF_RUN))
        parts += [_plots(view, width, tallest), Text()]
    parts.append(_facts_table(_facts_of_run(view, now), width))
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
    """Return a table of a line; empty if the entry is not a table."""
    entries = line.get(key)
    return entries if isinstance(entries, Mapping) else {}


def _plots(view: RunView, width: int, height: int) -> RenderableType:
    """Draw the accuracy, or the task's own metric, beside the losses."""
    lines, scores = view.evaluated_lines, view.outline.scores
    losses = [
        DotCurve(_points(view.lines, "train_loss"), "dim"),
        DotCurve(_points(lines, "test_loss"), _COLOURS[0]),
    ]
    last = f" {losses[1].points[-1][1]:.4f}" if losses[1].points else ""
    loss_title = f"test loss{last} (training: grey)"
    metric = next((n for n in scores if n != "loss"), None)
    metric = "accuracy" if "accuracy" in scores else metric
    if metric is None:
        return _plot(loss_title, losses, width, height, ".3f")
    form = ".1%" if metric == "accuracy" else ".4g"
    curves = [
        DotCurve(points, _COLOURS[(place + 1) % len(_COLOURS)])
        for place, points in enumerate(_capacity_points(lines, f"capacity_{metric}").values())
    ]
    curves.append(DotCurve(_points(lines, f"test_{metric}"), _COLOURS[0]))
    title = f"test {plain(metric, 30).replace('_', ' ')} {scores[metric]:{form}}"
    half = width // 2 - 2 if width >= 70 else width
    both = [
        _plot(title, curves, half, height, form),
        _plot(loss_title, losses, half, height, ".3f"),
    ]
    return _side_by_side(both, width) if width >= 70 else Group(*both)


def _facts_of_run(view: RunView, now: float) -> list[tuple[str, Text]]:
    outline = view.outline
    line: Metrics = dict(view.lines[-1]) if view.lines else {}
    running = outline.phase == "running"
    beginning = "no round is done yet" if running else ""
    totals = f"{duration(outline.seconds)}, {si(outline.traffic, 'B')}" if line else ""
    path = plain(outline.path, 200)
    advice = (
        f"continue with: submodel resume {path}" if outline.phase in ("stopped", "failed") else ""
    )
    return [
        ("", Text(outline.reason, "red" if outline.phase == "failed" else "yellow")),
        ("capacity", _by_capacity(view)),
        ("last round", Text(_last_round(line, ago(outline.changed_at, now)) or beginning)),
        ("so far", Text(totals)),
        ("time", Text(_phases(view.lines))),
        ("refused", Text(_lost_updates(view.lines, "refused"), "red")),
        ("missing", Text(_lost_updates(view.lines, "missing"), "yellow")),
        ("devices", Text(_devices_of(view, running))),
        ("warnings", Text("\n".join(view.warnings), "yellow")),
        ("", Text(advice)),
    ]


def _by_capacity(view: RunView) -> Text:
    """Return the last score of every capacity, in the colour of its curve."""
    text = Text()
    metric = "accuracy" if "accuracy" in view.outline.scores else "loss"
    table = _capacity_points(view.evaluated_lines, f"capacity_{metric}")
    for place, (capacity, points) in enumerate(table.items()):
        colour = _COLOURS[(place + 1) % len(_COLOURS)] if metric == "accuracy" else ""
        value = score_text(metric, points[-1][1])
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
    """Return the phases as shares of the total time, the longest first."""
    totals: dict[str, float] = {}
    for line in lines:
        for name, seconds in _mapping(line, "seconds").items():
            totals[name] = totals.get(name, 0.0) + (seconds if is_number(seconds) else 0.0)
    whole = sum(totals.values())
    longest = sorted(totals, key=lambda name: -totals[name])[:_MOST_NAMES]
    shares = [(plain(name, 20), totals[name] / whole) for name in longest] if whole > 0 else []
    return ", ".join(f"{name} {share:.0%}" for name, share in shares if share >= 0.005)


def _lost_updates(lines: Sequence[Metrics], kind: str) -> str:
    """Return the number of refused or missing updates, and the last of them."""
    count, last = 0, ""
    for line in lines:
        if entries := _mapping(line, kind):
            count += len(entries)
            client, reason = next(iter(entries.items()))
            last = f"client {plain(client, 20)} in round {line['round']}: {plain(reason, 120)}"
    return f"{count} in total; last: {last}" if count else ""


def _devices_of(view: RunView, running: bool) -> str:
    if not view.devices:
        is_waiting = running and view.outline.text("engine.name") == "flower"
        return "none has reported yet" if is_waiting else ""
    if not running:
        return f"{len(view.devices)} known"
    away = [device for device in view.devices if not device.is_present]
    text = f"{len(view.devices) - len(away)} of {len(view.devices)} are connected"
    if away:
        names = [d.name + (f" ({d.problem})" if d.problem else "") for d in away[:_MOST_NAMES]]
        more = f" and {len(away) - _MOST_NAMES} more" if len(away) > _MOST_NAMES else ""
        text += f"; absent: {', '.join(names)}{more}"
    return text


def experiment_screen(outline: ExperimentOutline, now: float, width: int, height: int) -> Group:
    """Return the screen of an experiment: progress of the plan, active runs, ended runs."""
    work_done, whole = outline.work
    words = f"{outline.runs_ended}/{outline.runs_planned} runs"
    rest = time_left(outline.seconds_left(now))
    lines_left = max(4, height - _OTHER_LINES_OF_EXPERIMENT)
    return Group(
        _title_line([plain(outline.path, 100)], outline.phase, width),
        _progress_line(words, work_done, whole, rest, width),
        Text(),
        _arms_table(outline, width, lines_left),
        Text(),
        _facts_table(_facts_of_experiment(outline, now), width),
    )


def _facts_of_experiment(outline: ExperimentOutline, now: float) -> list[tuple[str, Text]]:
    work_done, whole = outline.work
    progress = outline.progress
    if progress is None:
        plan = "unknown; only begun runs are counted"
    elif progress.has_estimates:
        plan = f"{work_done / 3600:.2f} of at least {whole / 3600:.2f} core-hours"
        plan += f", {progress.parallel} runs at a time"
    else:
        plan = f"{work_done:.0f} of {whole:.0f} rounds, {progress.parallel} runs at a time"
    took, traffic = duration(outline.seconds), si(outline.traffic, "B")
    last_change = ago(outline.changed_at, now)
    return [
        ("", Text(outline.reason, "red")),
        ("plan", Text(plan)),
        ("so far", Text(f"{took} of rounds, {traffic}; last change {last_change}")),
    ]


def _arms_table(outline: ExperimentOutline, width: int, most: int) -> Table:
    """Return a table of active runs with curves, then the others by arm with all seeds."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("runs", no_wrap=True, overflow="ellipsis")
    for heading, side in (("state", "left"), ("rounds", "right"), ("score", "right"), ("", "left")):
        table.add_column(heading, justify=side, no_wrap=True)  # type: ignore[arg-type]
    running = [run for run in outline.runs if run.phase == "running"]
    others = [run for run in outline.runs if run.phase != "running"]
    curve_width = max(0, min(_LONGEST_CURVE, width - 60))
    for run in running[:most]:
        name = f"{_name_in(outline, run.path.parent)} {run.path.name}"
        key = "test_accuracy" if "accuracy" in run.scores else "test_loss"
        curve = sparkline([score for _, score in _points(rounds_of(run.path), key)], curve_width)
        table.add_row(*_cells(name, "running", f"{run.rounds}/{run.rounds_planned}", [run], curve))
    groups = [(name, list(group)) for name, group in groupby(others, key=lambda r: r.path.parent)]
    groups.sort(key=lambda group: -max(run.changed_at for run in group[1]))
    lines_left = max(1, most - len(running) - 1)
    for path, group in groups[:lines_left]:
        states = {run.phase for run in group}
        state = next(s for s in ("failed", "stopped", "finished") if s in states)
        count = f"{len(group)} run{'s' if len(group) > 1 else ''}"
        table.add_row(*_cells(_name_in(outline, path), state, count, group, ""))
    if len(groups) > lines_left:
        table.add_row(Text(f"and {len(groups) - lines_left} more", "dim"))
    return table


def _cells(
    name: str, state: str, rounds: str, runs: Sequence[RunOutline], curve: str
) -> list[Text]:
    score = Text(_score(runs))
    return [Text(name), Text(state, STATE_STYLES[state]), Text(rounds), score, Text(curve, "cyan")]


def _score(runs: Sequence[RunOutline]) -> str:
    """Return the mean accuracy, or else loss, of runs."""
    for name in ("accuracy", "loss"):
        values = [run.scores[name] for run in runs if name in run.scores]
        if values:
            return score_text(name, fmean(values))
    return ""


def _name_in(outline: ExperimentOutline, path: Path) -> str:
    base = outline.path / "runs"
    return plain(path.relative_to(base) if path.is_relative_to(base) else path, 60)


@dataclass(frozen=True)
class DotCurve:
    """Points (x, y) from left to right, and their style in Rich."""

    points: Sequence[tuple[float, float]]
    style: str = ""

    def finite_points(self) -> list[tuple[float, float]]:
        """Return the finite points."""
        return [(x, y) for x, y in self.points if math.isfinite(x) and math.isfinite(y)]


def _draw_dots(curves: Sequence[DotCurve], width: int, height: int) -> list[Text]:
    """Draw curves as lines of text over their range; later curves cover earlier ones.

    >>> [line.plain for line in _draw_dots([DotCurve([(0, 0), (1, 1)])], 2, 1)]
    ['⡠⠊']
    """
    cells = [[_BLANK] * width for _ in range(height)]
    styles = [[""] * width for _ in range(height)]
    if points := _all_points(curves):
        (left, right), (low, high) = _ranges(points)
        columns, rows = 2 * width - 1, 4 * height - 1
        for curve in curves:
            dots = [
                (_dot_of(x, left, right, columns), rows - _dot_of(y, low, high, rows))
                for x, y in curve.finite_points()
            ]
            for column, row in _joined_dots(dots):
                cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
                styles[row // 4][column // 2] = curve.style
    return [
        Text.assemble(*((_character(c), style) for c, style in zip(row, its_styles, strict=True)))
        for row, its_styles in zip(cells, styles, strict=True)
    ]


def _all_points(curves: Sequence[DotCurve]) -> list[tuple[float, float]]:
    return [point for curve in curves for point in curve.finite_points()]


def _ranges(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the ranges of x and of y."""
    return [(min(values), max(values)) for values in zip(*points, strict=True)]


def _character(cell: int) -> str:
    """Return the character of a cell; a space for a blank, which some fonts draw as dots."""
    return " " if cell == _BLANK else chr(cell)


def _dot_of(value: float, low: float, high: float, most: int) -> int:
    return round((value - low) / (high - low) * most) if high > low else 0


def _joined_dots(dots: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the dots and those on the lines between them."""
    yield from dots[:1]
    for (x0, y0), (x1, y1) in pairwise(dots):
        steps = max(abs(x1 - x0), abs(y1 - y0))
        for step in range(1, steps + 1):
            yield x0 + round(step * (x1 - x0) / steps), y0 + round(step * (y1 - y0) / steps)


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw a curve in one line: a bar for every finite value, or for the last of a group.

    >>> sparkline([0.0, 1.0, 2.0, 7.0], 4)
    '▁▂▃█'
    """
    finite_values = [value for value in values if math.isfinite(value)]
    if not finite_values:
        return ""
    count = min(width, len(finite_values))
    picks = [finite_values[(place + 1) * len(finite_values) // count - 1] for place in range(count)]
    low, high = min(picks), max(picks)
    return "".join(_BARS[_dot_of(value, low, high, len(_BARS) - 1)] for value in picks)


def _plot(title: str, curves: Sequence[DotCurve], width: int, height: int, form: str) -> Group:
    """Draw curves with title and range; `form` is a format of values, such as ".1%"."""
    labels = [""] * height
    if points := _all_points(curves):
        low, high = _ranges(points)[1]
        labels[0] = format(high, form)
        labels[-1] = format(low, form) if low < high else labels[-1]
    rows = _draw_dots(curves, max(1, width - _LABEL - 1), height)
    lines = [Text(title, "bold", no_wrap=True, overflow="ellipsis")]
    for label, row in zip(labels, rows, strict=True):
        lines.append(Text(f"{label:>{_LABEL}} ", "dim").append_text(row))
    return Group(*lines)


def _title_line(names: Sequence[str], state: str, width: int) -> Table:
    """Return the names of a run or an experiment, with its state on the right."""
    grid = Table.grid(expand=True)
    grid.width = width
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    grid.add_column(justify="right", no_wrap=True)
    text = Text(names[0], "bold")
    for name in names[1:]:
        if name:
            text.append("  ").append(name)
    grid.add_row(text, Text(state, STATE_STYLES.get(state, "") or "bold"))
    return grid


def _progress_line(words: str, amount: float, whole: float, rest: str, width: int) -> Table:
    """Return a progress bar between `words` ("round 3/10") and `rest` ("2 min left")."""
    share = min(1.0, amount / whole) if whole > 0 else 0.0
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.width = width
    for ratio in (None, 1, None, None):
        grid.add_column(ratio=ratio, no_wrap=True)
    bar = ProgressBar(total=1.0, completed=share, width=None)
    grid.add_row(Text(words), bar, Text(f"{share:.0%}"), Text(rest))
    return grid


def _side_by_side(parts: Sequence[RenderableType], width: int) -> Table:
    """Arrange parts of equal width side by side."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in parts:
        grid.add_column(width=width // len(parts) - 2)
    grid.add_row(*parts)
    return grid


def _facts_table(facts: Sequence[tuple[str, Text]], width: int) -> Table:
    """Arrange names on the left and texts on the right; omit empty texts."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.width = width
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold", ratio=1)
    for name, text in facts:
        if text.plain:
            grid.add_row(Text(name), text)
    return grid


def time_left(seconds: float | None) -> str:
    """Describe the remaining time; empty if it is unknown.

    >>> time_left(None), time_left(600)
    ('', '10 min left')
    """
    return "" if seconds is None or not math.isfinite(seconds) else f"{duration(seconds)} left"


def screen_size(console: Console) -> tuple[int, int]:
    """Return characters and lines of a screen; 24 lines for a file or a pipe."""
    height = console.height if console.is_terminal else 24
    return max(40, min(console.width, 200)), max(12, height)
