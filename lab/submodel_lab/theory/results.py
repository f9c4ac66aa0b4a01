"""Results of a study: rows, statements and panels, for the terminal, CSV, JSON and PNG."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.table import Table

from submodel_lab.theory.drawing import Panel, draw_panels
from submodel_lab.theory.measures import Measure, Statement, Verdict

_CONDITION = "condition"  # the fact whether a theorem's conditions are met
_SETTING = "setting"  # the column of parameters with unusual values
_MOST_QUANTITIES = 6  # per table
_RATES = ("R", "K", "N", "1/p", "zeta", "noise")
REGISTER: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "convergence": {
        "Theorem 1": (*_RATES, "kappa", "value", "floor"),
        "Theorem 3": (*_RATES, "kappa", "floor"),
        "Algorithm 1": ("output",),
        "Theorem A": ("R",),
    },
    "residual": {"Lemma 2": ("value", "1-p", "d"), "Theorem 1": ("residual", "1-p")},
    "lemmas": {
        "Proposition 1": ("p",),
        "Proposition 2": ("p",),
        "Lemma 4": ("p",),
        "Lemma 5": ("K",),
        "Lemma 6": ("K",),
        "Lemma 10": ("epoch",),
        "Lemma 11": ("K",),
        "Lemma 12": ("K",),
    },
    "nonconvex": {"Theorem 2": (*_RATES, "residual"), "Theorem 4": (*_RATES, "residual")},
    "stability": {
        "Theorem 5": ("n", "N", "R", "K", "p", "p, control", "D_max", "noise"),
        "Theorem 6": ("n", "N", "R", "K", "p", "p, control", "D_max", "noise"),
        "Corollary": ("gap",),
        "Lemma 1": ("gap",),
    },
    "generalization": {"Remark 3": ("p", "p, pays", "p, control")},
    "beyond": {"Section 3": ("order",)},
}
"""Parameters along which each statement is measured, by study and statement."""
_MOST_ERRORS = 5.0  # accepted distance of trials from an exact value, in standard errors
_LEAST_TRIALS = 30  # trials for a usable standard error


def number_tables(rows: Sequence[ResultRow], title: str) -> list[Table]:
    """Tabulate the measures with one setting per line and a few quantities per table.

    Values that all rows share are in the caption of the last table. So is the usual value of a
    parameter, one that more than half of the rows have; rows name only other values.
    """
    parameters = [  # the held share is shown only if it differs from p
        {n: v for n, v in row.parameters.items() if n != "share" or v != row.parameters.get("p")}
        for row in rows
    ]
    facts = [{n: v for n, v in row.facts.items() if n != _CONDITION} for row in rows]
    shared = _shared_values(parameters) | _shared_values(facts)
    usual = {n: v for n, v in _usual_values(parameters).items() if n not in shared}
    settings, numbers = [], []
    for row, own_parameters, own_facts in zip(rows, parameters, facts, strict=True):
        settings.append({_SETTING: _name_setting(row, own_parameters, usual)} | {
            n: _format_cell(v) for n, v in own_parameters.items()
            if n not in shared and n not in usual
        })  # fmt: skip
        numbers.append(_measure_cells(row) | {
            n: _format_cell(v) for n, v in own_facts.items() if n not in shared
        })  # fmt: skip
    if not any(line[_SETTING] for line in settings):
        settings = [{n: v for n, v in line.items() if n != _SETTING} for line in settings]
    names, quantities = _all_names(settings), _all_names(numbers)
    tables = []
    for start in range(0, max(1, len(quantities)), _MOST_QUANTITIES):
        part = [*names, *quantities[start : start + _MOST_QUANTITIES]]
        tables.append(Table(title=title if not start else None))
        for name in part:
            tables[-1].add_column(name, overflow="fold")
        for line, own_numbers in zip(settings, numbers, strict=True):
            tables[-1].add_row(*((line | own_numbers).get(name, "") for name in part))
    tables[-1].caption, tables[-1].caption_justify = _caption(shared, usual), "left"
    return tables


def statement_table(statements: Iterable[Statement], title: str) -> Table:
    """Tabulate statements, one per line."""
    table = Table(title=title)
    for name in ("of", "in", "case", "quantity", "measured", "exact", "stated", "holds"):
        table.add_column(name, overflow="fold")
    for statement in statements:
        m = statement.measure
        measured_text = format_number(m.mean)
        if m.low != m.high:
            measured_text += f" [{format_number(m.low)}, {format_number(m.high)}]"
        limit_text = (
            ""
            if statement.limit is None
            else f"{statement.relation} {format_number(statement.limit)}"
        )
        verdict = str(statement.verdict) + ("" if statement.conditions == "met" else " *")
        table.add_row(
            statement.source,
            statement.parameter,
            statement.case,
            statement.quantity,
            measured_text,
            "" if m.exact is None else format_number(m.exact),
            limit_text,
            verdict,
        )
    return table


def format_number(number: float) -> str:
    """Format a number with four significant digits.

    >>> format_number(0.123456), format_number(-1.0)
    ('0.1235', '-1')
    """
    return f"{number:.4g}"


def _name_setting(row: ResultRow, parameters: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    """Name the first parameter and unusual ones; a star marks unmet conditions."""
    first = next(iter(parameters), "")
    words = [
        value if isinstance(value, str) else f"{name} = {_format_cell(value)}"
        for name, value in parameters.items()
        if name in usual and (name == first or value != usual[name])
    ]
    star = "*" if str(row.facts.get(_CONDITION, "")).startswith("not met") else ""
    return f"{', '.join(word for word in words if word)} {star}".strip()


def _all_names(lines: Iterable[Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(name for line in lines for name in line))


def _measure_cells(row: ResultRow) -> dict[str, str]:
    cells = {}
    for name, measure in row.measures.items():
        cells[name] = format_number(measure.mean)
        if measure.high > measure.low:
            cells[name] += f" [{format_number(measure.low)}, {format_number(measure.high)}]"
            if measure.exact is not None:
                cells[name] += f" ({format_number(measure.exact)})"
    return cells


def _shared_values(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the values that all of several rows have in common."""
    if len(rows) < 2:
        return {}
    first, others = rows[0], rows[1:]
    return {n: v for n, v in first.items() if all(n in row and row[n] == v for row in others)}


def _usual_values(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the values that more than half of the rows have ("" for missing ones)."""
    counts = {name: Counter(row.get(name, "") for row in rows) for row in rows for name in row}
    most = {name: counter.most_common(1)[0] for name, counter in counts.items()}
    return {name: value for name, (value, count) in most.items() if 2 * count > len(rows)}


def _caption(shared: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    parts = []
    if shared:
        parts.append("all rows: " + ", ".join(_name_all(shared)))
    if usual_words := _name_all(usual):
        parts.append("where nothing else is said: " + ", ".join(usual_words))
    parts.append("95 % intervals are in [ ], exact values in ( )")
    return "; ".join(parts)


def _name_all(values: Mapping[str, Any]) -> list[str]:
    return [f"{name} = {_format_cell(value)}" for name, value in values.items() if value != ""]


def _format_cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format_number(value) if isinstance(value, float) else str(value)


def empty_rows(study: str, statements: Iterable[Statement]) -> list[tuple[str, str]]:
    """List the statements and parameters of `REGISTER` that a study did not measure.

    >>> empty_rows("beyond", [])
    [('Section 3', 'order')]
    """
    contrast_rows = {(statement.source, statement.parameter) for statement in statements}
    return [
        (source, parameter)
        for source, parameters in REGISTER[study].items()
        for parameter in parameters
        if (source, parameter) not in contrast_rows
    ]


def summarise(statements: Iterable[Statement]) -> dict[tuple[str, str], dict[Verdict, int]]:
    """Count verdicts by statement and parameter."""
    table: dict[tuple[str, str], dict[Verdict, int]] = {}
    for statement in statements:
        if statement.source and statement.verdict is not Verdict.NUMBER:
            counts = table.setdefault((statement.source, statement.parameter), {})
            counts[statement.verdict] = counts.get(statement.verdict, 0) + 1
    return table


OnProgress = Callable[[int, int], None]
"""Callback with the number of finished steps and of all steps."""


def report_nothing(steps: int, total: int) -> None:
    """Ignore the progress of a study."""


@dataclass(frozen=True)
class ResultRow:
    """A setting of a study with its measures."""

    parameters: Mapping[str, Any]  # by column
    measures: Mapping[str, Measure]
    facts: Mapping[str, float | str] = field(default_factory=dict)  # constants, conditions

    def as_dict(self) -> dict[str, Any]:
        """Return parameters, measures with intervals and exact values, then facts."""
        cells = dict(self.parameters)
        for name, measure in self.measures.items():
            cells[name] = measure.mean
            cells[f"{name} low"], cells[f"{name} high"] = measure.low, measure.high
            if measure.exact is not None:
                cells[f"{name} exact"] = measure.exact
        return {**cells, **self.facts}

    def disagreements(self) -> list[str]:
        """Describe measures whose trials disagree with the exact value beyond chance."""
        words = ", ".join(f"{name} = {value}" for name, value in self.parameters.items())
        return [
            f"{name} at {words}: {m.mean:.5g}, exactly {m.exact:.5g}, {m.errors_off:.1f} standard "
            "errors away"
            for name, m in self.measures.items()
            if m.errors_off > _MOST_ERRORS
            and (m.values is None or len(m.values) >= _LEAST_TRIALS or m.low == m.high)
        ]


@dataclass(frozen=True)
class Study:
    """All results of a study."""

    name: str
    title: str
    settings: Mapping[str, Any]
    rows: Sequence[ResultRow]
    panels: Sequence[Panel]
    statements: Sequence[Statement]
    notes: Sequence[str] = ()

    def failures(self) -> list[str]:
        """Describe disagreements of trials with exact values, which are errors of the lab."""
        return [line for row in self.rows for line in row.disagreements()]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values of everything but the figure and single trials."""
        return {
            "study": self.name,
            "title": self.title,
            "version": metadata.version("submodel"),
            "settings": dict(self.settings),
            "claims": [statement.as_dict() for statement in self.statements],
            "notes": list(self.notes),
            "failures": self.failures(),
            "rows": [row.as_dict() for row in self.rows],
        }

    def write(self, folder: Path, trial_values: bool = False) -> list[Path]:
        """Write CSV of rows and statements, JSON with settings and version, and PNG."""
        folder.mkdir(parents=True, exist_ok=True)
        version = {"version": metadata.version("submodel")}
        rows = [{**row.as_dict(), **version} for row in self.rows]
        statements = [{**statement.as_dict(), **version} for statement in self.statements]
        endings = [".csv", "-claims.csv", ".json", ".png"]
        table, statement_table_path, record, picture = (
            folder / (self.name + ending) for ending in endings
        )
        write_csv(table, rows)
        write_csv(statement_table_path, statements)
        record.write_text(json.dumps(self.as_dict(), indent=1) + "\n", "utf-8")
        draw_panels(self.panels, self.title, picture)
        paths = [table, statement_table_path, record, picture]
        if trial_values:
            paths.append(folder / f"{self.name}-trials.csv")
            write_csv(paths[-1], self._trial_rows())
        return paths

    def _trial_rows(self) -> list[dict[str, Any]]:
        return [
            {**row.parameters, "quantity": name, "trial": trial, "value": float(value)}
            for row in self.rows
            for name, measure in row.measures.items()
            if measure.values is not None
            for trial, value in enumerate(measure.values)
        ]

    def tables(self) -> list[Table]:
        """Return the tables of numbers and statements for the terminal."""
        return [
            *number_tables(self.rows, self.title),
            statement_table(self.statements, f"{self.name}: statements"),
        ]


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows, whose columns may differ, as CSV."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
