"""A run as a notebook shows it: what it is, how far it came, how its score went."""

from __future__ import annotations

from collections.abc import Sequence

from submodel.amounts import si
from submodel.config import Config
from submodel.presentation.notebook import card, cell, curve, grid_of_cells, line_of_text
from submodel.runs.metrics import Metrics


def run_html(title: str, config: Config, history: Sequence[Metrics]) -> str:
    """A run as HTML.

    Args:
        title: what stands above.
        config: of the run.
        history: the lines of its rounds.
    """
    capacities = ", ".join(f"{capacity:g}" for capacity in config.clients.capacities)
    rows = [
        ("scheme", f"{config.scheme.name}, by {config.scheme.granularity}"),
        ("model, data", f"{config.model.name}, {config.data.name}"),
        ("clients", f"{config.clients.sample_size} a round, of capacities {capacities}"),
        ("rounds", f"{len(history)} of {config.train.rounds}"),
    ]
    if history:
        traffic = sum(line["bytes_down"] + line["bytes_up"] for line in history)
        seconds = sum(sum(line["seconds"].values()) for line in history)
        rows.append(("traffic, time", f"{si(traffic, 'B')} down and up, {seconds:,.1f} s"))
        units = sum(line["coverage"]["units"] for line in history) / len(history)
        rows.append(("units held by somebody", f"{units:.1%} in a round, the mean"))
    scored_lines = [line for line in history if "test_loss" in line]
    parts = [grid_of_cells((), [[cell(name), cell(text)] for name, text in rows])]
    if scored_lines:
        parts += _scores(scored_lines)
    return card(title, *parts)


def _scores(lines: Sequence[Metrics]) -> list[str]:
    """The last score by capacity, and the curve of all."""
    last = lines[-1]
    has_accuracy = "test_accuracy" in last
    name, form = ("accuracy", ".1%") if has_accuracy else ("loss", ".4f")
    text = f"test {name} {last[f'test_{name}']:{form}}"
    if has_accuracy:
        text += f", test loss {last['test_loss']:.4f}"
    by_capacity = [
        f"{value:{form}} at {capacity}"
        for capacity, value in last.get(f"capacity_{name}", {}).items()
        if float(capacity) < 1
    ]
    points = [(float(line["round"]), float(line[f"test_{name}"])) for line in lines]
    label = f"test {name} over rounds {lines[0]['round']} to {last['round']}"
    parts = [curve(points, label), line_of_text(f"{label}: {text}")]
    if by_capacity:
        parts.append(line_of_text(f"sub-models: {', '.join(by_capacity)}"))
    return parts
