"""What a study found: rows of numbers, statements, panels; written as CSV, JSON and PNG."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.table import Table

from submodel_lab.theory.drawing import Panel, draw_panels
from submodel_lab.theory.measures import Measure
from submodel_lab.theory.terminal import number_tables, statement_table
from submodel_lab.theory.verdicts import Statement

OnProgress = Callable[[int, int], None]
"""Hears of every step of a study: how many are behind it, and how many there are."""
_MOST_ERRORS = 5.0  # standard errors that trials may be away from an exact value
_LEAST_TRIALS = 30  # of which a standard error is worth something


def report_nothing(steps: int, total: int) -> None:
    """Let a study take its steps unheard.

    Args:
        steps: How many are behind it.
        total: How many there are.
    """


@dataclass(frozen=True)
class ResultRow:
    """One setting of a study and what was measured there."""

    parameters: Mapping[str, Any]  # a column each
    measures: Mapping[str, Measure]
    facts: Mapping[str, float | str] = field(default_factory=dict)  # constants, conditions

    def as_dict(self) -> dict[str, Any]:
        """Parameters, then every measure with its interval and its exact value, then facts."""
        cells = dict(self.parameters)
        for name, measure in self.measures.items():
            cells[name] = measure.mean
            cells[f"{name} low"], cells[f"{name} high"] = measure.low, measure.high
            if measure.exact is not None:
                cells[f"{name} exact"] = measure.exact
        return {**cells, **self.facts}

    def disagreements(self) -> list[str]:
        """Where trials are further from an exact value than chance allows."""
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
    """All that a study found."""

    name: str
    title: str
    settings: Mapping[str, Any]
    rows: Sequence[ResultRow]
    panels: Sequence[Panel]
    claims: Sequence[Statement]
    notes: Sequence[str] = ()

    def failures(self) -> list[str]:
        """Trials that disagree with the exact values: then the lab is wrong, not a theorem."""
        return [line for row in self.rows for line in row.disagreements()]

    def as_dict(self) -> dict[str, Any]:
        """All but the figure and single trials, as plain values."""
        return {
            "study": self.name,
            "title": self.title,
            "version": metadata.version("submodel"),
            "settings": dict(self.settings),
            "claims": [claim.as_dict() for claim in self.claims],
            "notes": list(self.notes),
            "failures": self.failures(),
            "rows": [row.as_dict() for row in self.rows],
        }

    def write(self, folder: Path, trial_values: bool = False) -> list[Path]:
        """Write CSV of the rows and of the claims, JSON with settings and version too, and PNG.

        Args:
            folder: Where; it is made.
            trial_values: Whether to write the value of every trial too.
        """
        folder.mkdir(parents=True, exist_ok=True)
        version = {"version": metadata.version("submodel")}
        rows = [{**row.as_dict(), **version} for row in self.rows]
        claims = [{**claim.as_dict(), **version} for claim in self.claims]
        endings = [".csv", "-claims.csv", ".json", ".png"]
        table, claim_table, record, picture = (folder / (self.name + ending) for ending in endings)
        _write_csv(table, rows)
        _write_csv(claim_table, claims)
        record.write_text(json.dumps(self.as_dict(), indent=1) + "\n", "utf-8")
        draw_panels(self.panels, self.title, picture)
        paths = [table, claim_table, record, picture]
        if trial_values:
            paths.append(folder / f"{self.name}-trials.csv")
            _write_csv(paths[-1], self._trial_rows())
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
        """For the terminal: the numbers, then the claims."""
        return [
            *number_tables(self.rows, self.title),
            statement_table(self.claims, f"{self.name}: claims"),
        ]


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
