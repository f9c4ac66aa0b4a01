"""Data of figures: arms with their runs by seed, and partitions of data."""

from __future__ import annotations

import logging
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from submodel.comparison.records import ArmRecord, rows_with_costs
from submodel.comparison.results import ComparisonResult
from submodel.config.reading import MOST_BYTES
from submodel.core.errors import SubmodelError
from submodel.core.files import UnreadableError, read_text
from submodel.drawing.bands import Curve
from submodel.drawing.labels import short_label
from submodel.report.grouping import (
    describe_repeats,
    find_results,
    group_arms,
    shaping_settings,
    spell_settings,
)
from submodel.runs.folder import RunFolder
from submodel.runs.metrics import is_number

Rounds = Sequence[Mapping[str, Any]]
"""Rows of one run: flat lines of its metrics with the costs so far."""
MOST_CLIENTS = 1000
"""Maximum number of rows in a picture of a partition."""
_LARGEST = 1e100  # matplotlib cannot place larger values
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Series:
    """Runs of one arm, by seed."""

    label: str
    runs: Sequence[Rounds]

    def curves(self, cost: str, measure: str) -> list[Curve]:
        """Return for every run the cost (such as bytes) and the measure, where both exist."""
        curves: list[Curve] = []
        for rows in self.runs:
            scored_rows = [
                row for row in rows if is_drawable(row.get(cost)) and is_drawable(row.get(measure))
            ]
            if not scored_rows:
                name = f"{self.label}: " if self.label else ""
                missing = measure if any(cost in row for row in rows) else cost
                raise SubmodelError(f"{name}no round of a run has {missing!r}")
            pairs = [(float(row[cost]), float(row[measure])) for row in scored_rows]
            curves.append(([x for x, _ in pairs], [y for _, y in pairs]))
        return curves

    def has(self, measure: str) -> bool:
        """Whether every run has the measure in some round."""
        return all(any(measure in row for row in rows) for rows in self.runs)

    def finals(self, measure: str) -> list[float]:
        """Return the last value of the measure in every run."""
        return [float(values[-1]) for _, values in self.curves("round", measure)]


def is_drawable(value: object) -> bool:
    """Whether a value is a number that is not too large to draw."""
    return is_number(value) and not _LARGEST < abs(cast(float, value)) < math.inf


def read_series(paths: Sequence[Path]) -> list[Series]:
    """Read the arms in runs, folders of runs, comparisons and reproductions."""
    series: list[Series] = []
    folders: list[RunFolder] = []
    for path in paths:
        found = find_results(path)
        if found is None:
            raise SubmodelError(f"{path}: neither a run, nor a comparison, nor a reproduction")
        kind, places = found
        if kind == "comparison":
            for arm in ComparisonResult.read(places[0]).arms:
                runs = [run.lines for run in arm.record.runs]
                series.append(Series(short_label(arm.title), runs))
        elif kind == "records":
            for record in map(ArmRecord.read, places):
                series.append(Series(record.slug, [run.lines for run in record.runs]))
        else:
            folders += map(RunFolder, places)
    return [*series, *_series_of_runs(folders)]


def _series_of_runs(folders: Sequence[RunFolder]) -> list[Series]:
    settings = [spell_settings(_values(folder)) for folder in folders]
    rows = [_rows(folder) for folder in folders]
    keys = [(*shaping_settings(own).items(), own.get("seed")) for own in settings]
    names = (str(folder.path) for folder in folders)
    for repeat in describe_repeats(zip(names, keys, strict=True)):
        _log.warning(repeat)
    return [
        Series(label_of(differing), [rows[place] for place in places])
        for places, differing in group_arms(settings, [""] * len(settings))
    ]


def _values(folder: RunFolder) -> dict[str, Any]:
    """Read the file without validation: it is fast, and its own components may be missing."""
    try:
        return tomllib.loads(read_text(folder.config_file, MOST_BYTES))
    except (UnreadableError, tomllib.TOMLDecodeError) as error:
        raise SubmodelError(f"{folder.config_file}: not a configuration ({error})") from None


def _rows(folder: RunFolder) -> Rounds:
    rows = rows_with_costs(folder.metrics())
    if not rows:
        raise SubmodelError(f"{folder.path}: the run has no round yet")
    return rows


def label_of(settings: Mapping[str, str]) -> str:
    """Return a short label of an arm from its settings, the scheme first.

    >>> label_of({"local.lr": "0.1", "scheme.name": "rolling"}), label_of({"local.lr": "0.1"})
    ('rolling, lr 0.1', 'lr 0.1')
    """
    words = [f"{k} = {v}".replace('"', "") for k, v in settings.items() if k != "scheme.name"]
    scheme = settings.get("scheme.name", "")
    return short_label(", ".join([scheme, *words])).removeprefix(", ")


@dataclass(frozen=True)
class LabelShares:
    """Table of examples: a row for each client, a column for each label."""

    title: str
    counts: NDArray[np.int64]


def read_partition(paths: Sequence[Path]) -> LabelShares:
    """Load the data of one run and partition it as the run did."""
    if len(paths) != 1:
        raise SubmodelError(f"partition: shows one run, not {len(paths)}")
    from submodel.report.partition import data_of_run, share_out

    folder = RunFolder(paths[0])
    config = folder.config()
    shares = share_out(config, data_of_run(folder, config))
    counts = shares.label_counts
    if counts is None:
        raise SubmodelError(f"{paths[0]}: its data has no labels")
    return LabelShares(f"{config.data.name}: {config.data.partition}", counts)
