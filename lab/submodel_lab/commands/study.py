"""The command `submodel study`: measure the statements of theorems."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from submodel.cli import AsJson, console, make_folder, print_json, talk
from submodel.core import ConfigError
from submodel_lab.theory.studies import STUDIES, StudyEntry

if TYPE_CHECKING:
    from submodel_lab.theory.results import Study

StudyName = StrEnum("StudyName", [*STUDIES, "all"])  # type: ignore[misc]


def study_command(
    name: Annotated[StudyName, typer.Argument(help="Study to run, or all.")],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Setting of the study, such as clients=8; repeatable. A wrong name lists all.",
        ),
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Short for --set trials=...")] = None,
    seed: Annotated[int | None, typer.Option(help="Short for --set seed=...")] = None,
    capacities: Annotated[
        str | None, typer.Option(help="Such as 1,0.5; short for --set capacities=...")
    ] = None,
    problem: Annotated[
        str | None,
        typer.Option(help="For `study problem`: file.py:make, or .npz with A, b or x, y."),
    ] = None,
    trial_values: Annotated[
        bool, typer.Option("--trial-values", help="Also write the value of every trial.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Output folder for CSV, JSON and PNG.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the statements of theorems: tables, a figure, CSV and JSON.

    The exit status is 1 if trials disagree with an exact value: then the lab is wrong.

    Examples:
        submodel study residual
        submodel study convergence --trials 500 --set noise=3
        submodel study problem --problem mine.npz --out runs/mine --json
    JSON:
        studies: each with its settings, claims and verdicts, notes, failures and rows of numbers
        failures: disagreements of trials with exact values; empty if there are none
        files: the written files
    """
    short = {"trials": trials, "seed": seed, "capacities": capacities, "problem": problem}
    short_settings = {key: f"{key}={value}" for key, value in short.items() if value is not None}
    if name.value == "all" and settings:
        raise ConfigError("--set: a setting belongs to one study; name it instead of all")
    if problem is not None and name.value not in ("problem", "all"):
        raise ConfigError(f"--problem: {name.value} has its own; give it to submodel study problem")
    every = [each for each in STUDIES if each != "problem" or problem is not None]
    names = every if name.value == "all" else [name.value]
    settings_of: dict[str, Any] = {}
    for each in names:
        defaults = STUDIES[each].default_settings()
        setting_names = {field.name for field in fields(defaults)}
        texts = [
            text for key, text in short_settings.items() if len(names) == 1 or key in setting_names
        ]
        settings_of[each] = _replace_settings(defaults, [*texts, *(settings or [])])
    folder = make_folder(out or Path("runs") / f"study-{name.value}")
    studies: list[Study] = []
    files: list[Path] = []
    for each, all_settings in settings_of.items():
        studies.append(_run(STUDIES[each], all_settings, talk(as_json)))
        files += studies[-1].write(folder, trial_values)
        if not as_json:
            _show(studies[-1])
    if len(studies) > 1:
        from submodel_lab.theory.results import write_csv  # scipy and scikit-learn come with it

        files.append(folder / "statements.csv")
        write_csv(
            files[-1], [{"study": s.name, **c.as_dict()} for s in studies for c in s.statements]
        )
        if not as_json:
            console.print(_summary(studies))
    failures = [line for study in studies for line in study.failures()]
    if as_json:
        plain_studies = [study.as_dict() for study in studies]
        print_json({"studies": plain_studies, "failures": failures, "files": files})
    else:
        print("\n".join(map(str, files)))
    for line in failures:
        talk(as_json).print(f"trials disagree with the exact value: {line}")
    raise typer.Exit(bool(failures))


def _show(study: Study) -> None:
    for table in study.tables():
        console.print(table)
    for note in study.notes:
        console.print(f"note: {note}")
    console.print("*: outside the theorem's conditions")


def _summary(studies: Iterable[Study]) -> Table:
    """Build a table of verdicts with a line for each statement and parameter."""
    from submodel_lab.theory.results import summarise  # scipy and scikit-learn come with it

    table = Table("statement", "in", "study", "verdicts", title="verdicts")
    for study in studies:
        for (source, parameter), counts in summarise(study.statements).items():
            words = ", ".join(f"{count} x {verdict}" for verdict, count in counts.items())
            table.add_row(source, parameter, study.name, words)
    return table


def _run(entry: StudyEntry, settings: Any, notes: Console) -> Study:
    columns = (TextColumn("measuring"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=notes, transient=True) as progress:
        task = progress.add_task("", total=None)

        def on_progress(steps: int, total: int) -> None:
            progress.update(task, completed=steps, total=total)

        return entry.run(settings, on_progress)


def _replace_settings(defaults: Any, texts: list[str]) -> Any:
    """Replace defaults by KEY=VALUE texts, each parsed with the type of its default."""
    default_values = {f.name: getattr(defaults, f.name) for f in fields(defaults)}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or key not in default_values:
            raise ConfigError(
                f"{text!r}: settings are {', '.join(default_values)}, in the form KEY=VALUE"
            )
        default = default_values[key]
        try:
            if isinstance(default, tuple):
                read: Any = tuple(type(default[0])(part) for part in value.split(","))
            else:
                read = (float if default is None else type(default))(value)
        except ValueError:
            whole = isinstance(default[0] if isinstance(default, tuple) else default, int)
            number = "whole number" if whole else "number"
            kind = f"{number}s separated by commas" if isinstance(default, tuple) else f"a {number}"
            raise ConfigError(f"{key}: {value!r} is not {kind}") from None
        defaults = replace(defaults, **{key: read})
    return defaults
