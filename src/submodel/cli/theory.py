"""The theory lab's studies."""

from __future__ import annotations

from dataclasses import fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from submodel.cli.base import console, make_folder
from submodel.errors import ConfigError
from submodel.theory.studies import STUDIES, StudyOffer

if TYPE_CHECKING:
    from submodel.theory.results import Study

StudyName = StrEnum("StudyName", list(STUDIES))  # type: ignore[misc]


def study_command(
    name: Annotated[StudyName, typer.Argument(help="Which theorems to look at.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting, as p=0.5; repeatable."),
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Short for --set trials=...")] = None,
    seed: Annotated[int | None, typer.Option(help="Short for --set seed=...")] = None,
    capacities: Annotated[
        str | None, typer.Option(help="As 1,0.5; short for --set capacities=...")
    ] = None,
    problem: Annotated[
        str | None,
        typer.Option(help="For the study problem: file.py:make, or .npz with A, b or x, y."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where CSV, JSON and PNG go.")] = None,
) -> None:
    """Measure what a theorem says: a table, a figure with the theorem's slope, CSV and JSON."""
    offer = STUDIES[name.value]
    short = {"trials": trials, "seed": seed, "capacities": capacities, "problem": problem}
    short_settings = [f"{key}={value}" for key, value in short.items() if value is not None]
    values = _replace_settings(offer.default_settings(), [*short_settings, *(settings or [])])
    folder = make_folder(out or Path("runs") / f"study-{name.value}")
    study = _run(offer, values)
    for table in study.tables():
        console.print(table)
    for note in study.notes:
        console.print(f"note: {note}")
    for path in study.write(folder):
        print(path)


def _run(offer: StudyOffer, settings: Any) -> Study:
    columns = (TextColumn("measuring"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)

        def on_progress(steps: int, total: int) -> None:
            progress.update(task, completed=steps, total=total)

        return offer.run(settings, on_progress)


def _replace_settings(defaults: Any, texts: list[str]) -> Any:
    """The defaults with KEY=VALUE replaced, each read as its default's kind."""
    default_values = {f.name: getattr(defaults, f.name) for f in fields(defaults)}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or key not in default_values:
            raise ConfigError([f"{text!r}: settings are {', '.join(default_values)}, as KEY=VALUE"])
        default = default_values[key]
        try:
            if isinstance(default, tuple):
                read: Any = tuple(type(default[0])(part) for part in value.split(","))
            else:
                read = (float if default is None else type(default))(value)
        except ValueError:
            kind = "numbers separated by commas" if isinstance(default, tuple) else "a number"
            raise ConfigError([f"{key}: {value!r} is not {kind}"]) from None
        defaults = replace(defaults, **{key: read})
    return defaults
