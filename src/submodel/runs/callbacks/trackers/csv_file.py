"""The metrics as a table that any program reads."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from submodel.algorithm.types import State
from submodel.files import write_text
from submodel.runs.callbacks.base import Callback
from submodel.runs.metrics import Metrics, flat

if TYPE_CHECKING:
    from submodel.options import Section
    from submodel.runs.callbacks.trackers import TrackerContext
    from submodel.runs.training import Training


class CsvFile(Callback):
    """``metrics.csv``: a row per round, with the columns of ``submodel.open(...).metrics``.

    It follows from the lines of the rounds alone, so a resumed run has the file of one that was
    never stopped.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    @classmethod
    def configured(cls, options: Section, context: TrackerContext) -> Self:
        """In the run's folder."""
        return cls(context.needed_folder("csv") / "metrics.csv")

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        """The rounds that are done."""
        self._write(history)

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        """One more row; a round that has new entries gives all rows new columns."""
        row = flat(line)
        self._rows.append(row)
        if row.keys() <= set(self._columns):
            with self._file.open("a", encoding="utf-8", newline="") as file:
                file.write(_text([_cells(row, self._columns)]))
        else:
            self._write_rows()

    def stop(self, state: State, history: Sequence[Metrics]) -> None:
        """All rows anew: the last may be missing, or be one too many."""
        self._write([line for line in history if line["round"] <= state.round])

    def _write(self, history: Iterable[Metrics]) -> None:
        self._rows = [flat(line) for line in history]
        self._write_rows()

    def _write_rows(self) -> None:
        self._columns = list(dict.fromkeys(key for row in self._rows for key in row))
        rows = [_cells(row, self._columns) for row in self._rows]
        write_text(self._file, _text([self._columns, *rows] if rows else []))


def _cells(row: Metrics, columns: Sequence[str]) -> list[Any]:
    """The row's values; empty where it has none, lists as JSON."""
    values = (row.get(column) for column in columns)
    return [json.dumps(value) if isinstance(value, list) else value for value in values]


def _text(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
