"""Display of a run's progress: a bar with the time left, plain lines, or a card in a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from submodel.algorithm.types import State
from submodel.config import Config
from submodel.core.amounts import si
from submodel.core.tables import card, cell, curve, grid_of_cells, line_of_text
from submodel.runs.callbacks.callback import Callback, OnRound
from submodel.runs.metrics import Metrics

if TYPE_CHECKING:
    from submodel.runs.training import Training


class Progress(Callback):
    """Callback that shows the progress of a run on a console."""

    def __init__(self, console: Console) -> None:
        self._console, self._open_bars = console, ExitStack()

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        """Show the finished rounds."""
        bar = show_progress(training.rounds, self._console)
        self._show = self._open_bars.enter_context(bar)
        for line in history:
            self._show(line)

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        """Show one more round."""
        self._show(line)

    def close(self) -> None:
        """Close the bar in its last state."""
        self._open_bars.close()


def describe_scores(line: dict[str, Any]) -> str:
    """Describe the scores in the line of a round.

    >>> describe_scores({"train_loss": 1.25, "test_loss": 1.5, "test_accuracy": 0.5})
    'train loss 1.2500, test loss 1.5000, test accuracy 50.0%'
    """
    return ", ".join([f"train loss {line['train_loss']:.4f}", *describe_test(line)])


def describe_test(entries: Mapping[str, Any]) -> list[str]:
    """Describe the test scores of a line or a summary: loss, accuracy, other metrics.

    >>> describe_test({"test_loss": 1.5, "test_bits_per_byte": 2.25})
    ['test loss 1.5000', 'test bits per byte 2.2500']
    """
    return [
        f"{key.replace('_', ' ')} {value:.1%}"
        if key == "test_accuracy"
        else f"{key.replace('_', ' ')} {value:.4f}"
        for key, value in entries.items()
        if key.startswith("test_") and isinstance(value, float)
    ]


def describe_end(summary: Mapping[str, Any]) -> str:
    """Describe the test scores of a finished run, the accuracy first.

    >>> describe_end({"rounds": 9, "test_loss": 1.5, "test_accuracy": 0.5})
    'test accuracy 50.0%, test loss 1.5000 after 9 rounds'
    """
    scores = sorted(describe_test(summary), key=lambda text: not text.startswith("test accuracy"))
    return f"{', '.join(scores)} after {summary['rounds']} rounds"


@contextmanager
def show_progress(rounds: int, console: Console) -> Iterator[OnRound]:
    """Yield a function to call with the line of every completed round."""
    if not _has_bars(console):

        def print_line(line: dict[str, Any]) -> None:
            if "test_loss" in line:
                console.print(f"round {line['round']}/{rounds}: {describe_scores(line)}")

        yield print_line
        return
    columns = (
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Bar(*columns, console=console) as progress:
        task = progress.add_task("", total=rounds)
        description = ""

        def advance(line: dict[str, Any]) -> None:
            nonlocal description
            if "test_loss" in line:
                description = describe_scores(line)
            progress.update(task, completed=line["round"], description=description)

        yield advance


def _has_bars(console: Console) -> bool:
    """Whether the console can redraw a bar: a terminal, or a notebook with widgets."""
    in_notebook = console.is_jupyter and find_spec("ipywidgets") is not None
    return console.is_terminal or in_notebook


def run_html(title: str, config: Config, history: Sequence[Metrics]) -> str:
    """Render a run as HTML for a notebook.

    Args:
        title: heading.
        config: configuration of the run.
        history: lines of its rounds.
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
        rows.append(("coverage", f"{units:.1%} of the units are held in a round, on average"))
    scored_lines = [line for line in history if "test_loss" in line]
    parts = [grid_of_cells((), [[cell(name), cell(text)] for name, text in rows])]
    if scored_lines:
        parts += _scores(scored_lines)
    return card(title, *parts)


def _scores(lines: Sequence[Metrics]) -> list[str]:
    """Render the last scores, also by capacity, and the curve of all scores."""
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
