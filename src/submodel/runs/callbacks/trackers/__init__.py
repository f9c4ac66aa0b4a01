"""Trackers: callbacks that a configuration can name and that export the metrics of a run.

Their names are in `submodel.config.sections`, so that a configuration can be read without the code
of runs.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

from pydantic import ValidationError

from submodel.algorithm.types import State
from submodel.config import Config
from submodel.config.sections import TRACKERS
from submodel.core.errors import ConfigError, refuse
from submodel.core.files import write_text
from submodel.core.options import Section
from submodel.runs.callbacks.callback import Callback, CallbackGuard
from submodel.runs.metrics import Metrics, flat, is_number
from submodel.runs.training import Training

__all__ = ["TRACKERS", "TrackerContext", "trackers_of"]


@dataclass(frozen=True)
class TrackerContext:
    """The run that a tracker belongs to.

    Args:
        config: configuration of the run.
        folder: folder of the run; None: a run in Python that writes nothing.
    """

    config: Config
    folder: Path | None

    def needed_folder(self, tracker: str) -> Path:
        """Return the folder, for trackers that write into it; raise `ConfigError` without one.

        Args:
            tracker: name of the tracker, for the error.
        """
        if self.folder is None:
            raise ConfigError(
                f"{TRACKERS.key}: {tracker!r} writes into the run's folder; give out="
            )
        return self.folder


def trackers_of(config: Config, folder: Path | None) -> list[Callback]:
    """Make the trackers of a configuration, guarded like a user's callbacks."""
    trackers: list[Callback] = []
    problems: list[str] = []
    for name in config.train.trackers:
        try:
            trackers.append(CallbackGuard(_make_tracker(name, TrackerContext(config, folder))))
        except ConfigError as error:
            problems += error.problems
    refuse(problems)
    return trackers


def _make_tracker(name: str, context: TrackerContext) -> Callback:
    """Make one tracker; it is configured by name only, so all of its keys must have defaults."""
    component = TRACKERS.find(name)
    try:
        options = component.options()
    except ValidationError as error:
        keys = ", ".join(str(part) for problem in error.errors() for part in problem["loc"])
        raise ConfigError(
            f"{TRACKERS.key}: {name!r} cannot be made: {keys} is missing and has no default"
        ) from None
    return cast(Callback, component.make(options, context))


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """Extract the finite numbers of a line, those of tables as ``table/entry``; count the refused.

    >>> scalars({"round": 3, "test_loss": 0.5, "seconds": {"train": 2.0}, "refused": {"7": "late"}})
    {'test_loss': 0.5, 'seconds/train': 2.0, 'refused': 1.0}
    """
    return {
        key: float(value)
        for key, value in flat(line, "/").items()
        if key.rpartition("/")[2] != "round" and is_number(value) and math.isfinite(value)
    }


def times(history: Sequence[Metrics], now: float) -> list[float]:
    """Compute the end times of rounds without the pauses of stops, if the last one ends now.

    >>> times([{"seconds": {"train": 2.0}}, {"seconds": {"train": 3.0, "merge": 1.0}}], 100.0)
    [96.0, 100.0]
    """
    moments = [now]
    for line in reversed(history[1:]):
        moments.append(moments[-1] - sum(line["seconds"].values()))
    return moments[::-1][: len(history)]


class CsvFile(Callback):
    """Tracker that writes ``metrics.csv``, with the columns of ``submodel.open(...).metrics``.

    The file has a row per round and follows from the lines of the rounds alone, so a resumed run
    has the same file as an uninterrupted one.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    @classmethod
    def configured(cls, options: Section, context: TrackerContext) -> Self:
        """Make the tracker for a run's folder."""
        return cls(context.needed_folder("csv") / "metrics.csv")

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        """Write the finished rounds."""
        self._write(history)

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        """Append a row; new entries of a round add columns to all rows."""
        row = flat(line)
        self._rows.append(row)
        if row.keys() <= set(self._columns):
            with self._file.open("a", encoding="utf-8", newline="") as file:
                file.write(_text([_cells(row, self._columns)]))
        else:
            self._write_rows()

    def stop(self, state: State, history: Sequence[Metrics]) -> None:
        """Rewrite all rows: the last may be missing or superfluous."""
        self._write(history)

    def _write(self, history: Iterable[Metrics]) -> None:
        self._rows = [flat(line) for line in history]
        self._write_rows()

    def _write_rows(self) -> None:
        self._columns = list(dict.fromkeys(key for row in self._rows for key in row))
        rows = [_cells(row, self._columns) for row in self._rows]
        write_text(self._file, _text([self._columns, *rows] if rows else []))


def _cells(row: Metrics, columns: Sequence[str]) -> list[Any]:
    """List the values of a row by column; missing values are empty, lists are JSON."""
    values = (row.get(column) for column in columns)
    return [json.dumps(value) if isinstance(value, list) else value for value in values]


def _text(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
