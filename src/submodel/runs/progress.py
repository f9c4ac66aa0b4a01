"""Progress of a run: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from submodel.runs.loop import OnRound


def scores(line: dict[str, Any]) -> str:
    """What a round's line says of the model.

    >>> scores({"train_loss": 1.25, "test_loss": 1.5, "test_accuracy": 0.5})
    'train loss 1.2500, test loss 1.5000, test accuracy 50.0%'
    """
    text = f"train loss {line['train_loss']:.4f}"
    if "test_loss" in line:
        text += f", test loss {line['test_loss']:.4f}"
    if "test_accuracy" in line:
        text += f", test accuracy {line['test_accuracy']:.1%}"
    return text


@contextmanager
def show_progress(rounds: int, console: Console) -> Iterator[OnRound]:
    """Yield the function that is told of every completed round."""
    if not console.is_terminal:

        def say(line: dict[str, Any]) -> None:
            if "test_loss" in line:
                console.print(f"round {line['round']}/{rounds}: {scores(line)}")

        yield say
        return
    columns = (
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=rounds)
        shown = ""

        def advance(line: dict[str, Any]) -> None:
            nonlocal shown
            if "test_loss" in line:
                shown = scores(line)
            progress.update(task, completed=line["round"], description=shown)

        yield advance
