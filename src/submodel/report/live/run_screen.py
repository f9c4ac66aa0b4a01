"""A run as one screen of text: how far, its curves, its last round, its devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from submodel.amounts import duration, si
from submodel.errors import plain
from submodel.report.list_table import ago
from submodel.report.live.braille import DotCurve
from submodel.report.live.following import RunView
from submodel.report.live.parts import (
    COLOURS,
    facts_table,
    plot,
    progress_line,
    side_by_side,
    time_left,
    title_line,
)
from submodel.runs.metrics import Metrics
from submodel.runs.outline import is_number, sum_of

_RECENT = 20  # rounds that tell how long the next ones take
_MOST_NAMES = 6
_OTHER_LINES = 13  # of the screen, beside the drawing
_TALLEST = 14


def run_screen(view: RunView, now: float, width: int, height: int) -> Group:
    """All there is to see of a run.

    Args:
        view: the run.
        now: seconds since 1970.
        width: characters.
        height: lines.
    """
    outline, lines = view.outline, view.lines
    names = [plain(outline.path, 60), *(outline.text(f"{n}.name") for n in _SECTIONS)]
    rounds = f"round {outline.rounds}/{outline.rounds_planned or '?'}"
    parts: list[Any] = [title_line(names, outline.phase, width)]
    rest = time_left(run_seconds_left(view)) if outline.phase == "running" else ""
    parts.append(progress_line(rounds, outline.rounds, outline.rounds_planned, rest, width))
    parts.append(Text())
    tallest = max(3, min(_TALLEST, height - _OTHER_LINES))
    if lines:
        parts += [_plots(view, width, tallest), Text()]
    parts.append(facts_table(_facts(view, now), width))
    return Group(*parts)


_SECTIONS = ("scheme", "data", "model")


def run_seconds_left(view: RunView) -> float | None:
    """What the rounds to come take at the pace of the last ones; None: nobody can tell.

    Args:
        view: the run.
    """
    recent_lines = view.lines[-_RECENT:]
    if not recent_lines or not view.outline.rounds_planned:
        return None
    seconds = sum(_seconds(line) for line in recent_lines) / len(recent_lines)
    return max(0, view.outline.rounds_planned - view.outline.rounds) * seconds


def _seconds(line: Metrics) -> float:
    phases = line.get("seconds")
    return float(sum_of(phases, *phases)) if isinstance(phases, Mapping) else 0.0


def _points(lines: Sequence[Metrics], key: str) -> list[tuple[float, float]]:
    return [(line["round"], line[key]) for line in lines if is_number(line.get(key))]


def _capacity_points(lines: Sequence[Metrics], table: str) -> dict[str, list[tuple[float, float]]]:
    curves: dict[str, list[tuple[float, float]]] = {}
    for line in lines:
        entries = line.get(table)
        for capacity, value in entries.items() if isinstance(entries, Mapping) else ():
            if is_number(value):
                curves.setdefault(capacity, []).append((line["round"], value))
    return curves


def _plots(view: RunView, width: int, height: int) -> Any:
    """The accuracy beside the losses; of tasks without accuracy, their own metric."""
    lines = view.evaluated_lines
    losses = [
        DotCurve(_points(view.lines, "train_loss"), "dim"),
        DotCurve(_points(lines, "test_loss"), COLOURS[0]),
    ]
    last = f" {losses[1].points[-1][1]:.4f}" if losses[1].points else ""
    loss_title = f"test loss{last} (training: grey)"
    metric = next((n for n in view.outline.scores if n != "loss"), None)
    metric = "accuracy" if "accuracy" in view.outline.scores else metric
    if metric is None:
        return plot(loss_title, losses, width, height, ".3f")
    form = ".1%" if metric == "accuracy" else ".4g"
    score = view.outline.scores[metric]
    curves = [
        DotCurve(points, COLOURS[(place + 1) % len(COLOURS)])
        for place, (_, points) in enumerate(_capacity_points(lines, f"capacity_{metric}").items())
    ]
    curves.append(DotCurve(_points(lines, f"test_{metric}"), COLOURS[0]))
    title = f"test {plain(metric, 30).replace('_', ' ')} {score:{form}}"
    half = width // 2 - 2 if width >= 70 else width
    both = [
        plot(title, curves, half, height, form),
        plot(loss_title, losses, half, height, ".3f"),
    ]
    return side_by_side(both, width) if width >= 70 else Group(*both)


def _facts(view: RunView, now: float) -> list[tuple[str, Text]]:
    line: Metrics = dict(view.lines[-1]) if view.lines else {}
    running = view.outline.phase == "running"
    when = ago(view.outline.changed_at, now)
    return [
        ("", Text(view.outline.reason, "red" if view.outline.phase == "failed" else "yellow")),
        ("capacity", _by_capacity(view)),
        ("last round", Text(_last_round(line, when)) if line else _beginning(view)),
        ("so far", Text(_totals(view)) if line else Text()),
        ("time", Text(_phases(view.lines))),
        ("refused", Text(_troubles(view.lines, "refused"), "red")),
        ("missing", Text(_troubles(view.lines, "missing"), "yellow")),
        ("devices", Text(_devices_of(view, running))),
        ("warnings", Text("\n".join(view.warnings), "yellow")),
        ("", Text(_advice(view))),
    ]


def _beginning(view: RunView) -> Text:
    return Text("no round is done yet" if view.outline.phase == "running" else "")


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
    coverage = line.get("coverage")
    covered_share = coverage.get("units") if isinstance(coverage, Mapping) else None
    parts = [
        f"{line['clients']} clients" if is_number(line.get("clients")) else "",
        f"{duration(_seconds(line))}",
        f"{si(sum_of(line, 'bytes_down', 'bytes_up'), 'B')}",
        f"{covered_share:.0%} of units" if is_number(covered_share) else "",
        f"training loss {line['train_loss']:.4f}" if is_number(line.get("train_loss")) else "",
        when,
    ]
    return ", ".join(part for part in parts if part)


def _totals(view: RunView) -> str:
    return f"{duration(view.outline.seconds)}, {si(view.outline.traffic, 'B')}"


def _phases(lines: Sequence[Metrics]) -> str:
    """What takes the time, in shares of all of it, the longest first."""
    totals: dict[str, float] = {}
    for line in lines:
        phases = line.get("seconds")
        for name, seconds in phases.items() if isinstance(phases, Mapping) else ():
            totals[name] = totals.get(name, 0.0) + (seconds if is_number(seconds) else 0.0)
    whole = sum(totals.values())
    longest = sorted(totals, key=lambda name: -totals[name])[:_MOST_NAMES]
    shares = [(plain(name, 20), totals[name] / whole) for name in longest] if whole > 0 else []
    return ", ".join(f"{name} {share:.0%}" for name, share in shares if share >= 0.005)


def _troubles(lines: Sequence[Metrics], kind: str) -> str:
    """How many updates there were of a kind, and the last of them."""
    count, last = 0, ""
    for line in lines:
        entries = line.get(kind)
        if isinstance(entries, Mapping) and entries:
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


def _advice(view: RunView) -> str:
    if view.outline.phase in ("stopped", "failed"):
        return f"'submodel resume {plain(view.outline.path, 200)}' goes on"
    return ""
