"""The data of figures: ways to train, each with its runs by seed; and the partition of data."""

from __future__ import annotations

import logging
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from submodel.comparison.records import ArmRecord
from submodel.comparison.results import ComparisonResult
from submodel.config.reading import MOST_BYTES
from submodel.core.errors import SubmodelError
from submodel.core.files import UnreadableError, read_text
from submodel.drawing.bands import Curve
from submodel.drawing.labels import short_label
from submodel.report.grouping import (
    WayKey,
    describe_repeats,
    find_results,
    group_equal,
    spell_settings,
    way_of,
)
from submodel.runs.folder import RunFolder
from submodel.runs.metrics import Metrics, flat, is_number

Rounds = Sequence[Mapping[str, Any]]
"""The rows of one run: the flat lines of its metrics, each with the costs until then."""
MOST_CLIENTS = 1000
"""The rows of the largest picture of a partition."""
_UNSET = "null"
_LARGEST = 1e100  # beyond that, matplotlib cannot place it
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Series:
    """One way to train, by seeds."""

    label: str
    runs: Sequence[Rounds]

    def curves(self, cost: str, measure: str) -> list[Curve]:
        """Of every run: the cost (as bytes) and the measure in the rounds that have both."""
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
        """Whether a round of every run has the measure."""
        return all(any(measure in row for row in rows) for rows in self.runs)

    def finals(self, measure: str) -> list[float]:
        """The last value of the measure in every run."""
        return [float(values[-1]) for _, values in self.curves("round", measure)]


def is_drawable(value: object) -> bool:
    """Whether it is a number, and not one so large that nothing can be drawn beside it."""
    return is_number(value) and not _LARGEST < abs(cast(float, value)) < math.inf


def read_series(paths: Sequence[Path]) -> list[Series]:
    """All that some folders hold, by way to train; the seeds of one way together.

    Args:
        paths: runs, folders of runs, comparisons and reproductions.
    """
    series: list[Series] = []
    folders: list[RunFolder] = []
    for path in paths:
        found = find_results(path)
        if found is None:
            raise SubmodelError(f"{path}: neither a run, nor a comparison, nor a reproduction")
        kind, places = found
        if kind == "comparison":
            for way in ComparisonResult.read(places[0]).ways:
                runs = [run.lines for run in way.record.runs]
                series.append(Series(short_label(way.title), runs))
        elif kind == "records":
            for record in map(ArmRecord.read, places):
                series.append(Series(record.slug, [run.lines for run in record.runs]))
        else:
            folders += map(RunFolder, places)
    return [*series, *_series_of_runs(folders)]


def _series_of_runs(folders: Sequence[RunFolder]) -> list[Series]:
    settings = [spell_settings(_values(folder)) for folder in folders]
    rows = [_rows(folder) for folder in folders]
    ways = [way_of(own) for own in settings]
    seeds = [(way, own.get("seed")) for way, own in zip(ways, settings, strict=True)]
    names = [str(folder.path) for folder in folders]
    for repeat in describe_repeats(zip(names, seeds, strict=True)):
        _log.warning(repeat)
    groups = group_equal(ways)
    labels = labels_of([ways[places[0]] for places in groups])
    return [
        Series(label, [rows[place] for place in places])
        for label, places in zip(labels, groups, strict=True)
    ]


def _values(folder: RunFolder) -> dict[str, Any]:
    """The file as it is: this is fast, and own components that it names may be missing."""
    try:
        return tomllib.loads(read_text(folder.config_file, MOST_BYTES))
    except (UnreadableError, tomllib.TOMLDecodeError) as error:
        raise SubmodelError(f"{folder.config_file}: not a configuration ({error})") from None


def _rows(folder: RunFolder) -> Rounds:
    rows = rows_of_run(folder.metrics())
    if not rows:
        raise SubmodelError(f"{folder.path}: the run has no round yet")
    return rows


def rows_of_run(history: Sequence[Metrics]) -> list[dict[str, Any]]:
    """The lines of a run as rows with the bytes, FLOPs and seconds of all rounds until then.

    >>> line = {"bytes_down": 1, "bytes_up": 2, "flops": 5, "seconds": {"train": 1.5}}
    >>> rows = rows_of_run([{"round": 1, **line}, {"round": 2, **line}])
    >>> rows[1]["bytes"], rows[1]["flops"], rows[1]["elapsed"], rows[1]["seconds.train"]
    (6, 10, 3.0, 1.5)
    """
    traffic = accumulate(line["bytes_down"] + line["bytes_up"] for line in history)
    work = accumulate(line["flops"] for line in history)
    seconds = accumulate(sum(line["seconds"].values()) for line in history)
    return [
        {**flat(line), "bytes": bytes_, "flops": flops, "elapsed": time}
        for line, bytes_, flops, time in zip(history, traffic, work, seconds, strict=True)
    ]


def labels_of(ways: Sequence[WayKey]) -> list[str]:
    """Names for ways to train, from what differs between them; one way needs none.

    >>> schemes = ({"name": "rolling", "order": "shuffled"}, {"name": "static"})
    >>> labels_of([tuple((f"scheme.{k}", v) for k, v in scheme.items()) for scheme in schemes])
    ['rolling', 'static']
    """
    tables = [dict(way) for way in ways]
    keys = dict.fromkeys(key for table in tables for key in table)
    values = {key: {table.get(key, _UNSET) for table in tables} for key in keys}
    every = sorted((k for k in keys if len(values[k]) > 1), key=lambda k: k != "scheme.name")
    labels = [
        _label(table, [k for k in every if len(values[k] - {_UNSET}) > 1]) for table in tables
    ]
    if len(set(labels)) == len(labels):  # without keys that only some have, as a scheme's own
        return labels
    return [_label(table, every) for table in tables]


def _label(table: Mapping[str, str], keys: Sequence[str]) -> str:
    words = [
        table[key] if key == "scheme.name" else f"{key} = {table[key]}".replace('"', "")
        for key in keys
        if table.get(key, _UNSET) != _UNSET
    ]
    if words and " = " in words[0]:
        return short_label(f"_, {', '.join(words)}").removeprefix("_, ")
    return short_label(", ".join(words))


@dataclass(frozen=True)
class LabelShares:
    """A table of examples: a row for each client, a column for each label."""

    title: str
    counts: NDArray[np.int64]


def read_partition(paths: Sequence[Path]) -> LabelShares:
    """Load the data of the one run and share it out as the run did."""
    if len(paths) != 1:
        raise SubmodelError(f"partition: shows one run, not {len(paths)}")
    from submodel.report.partition import data_of_run, share_out

    folder = RunFolder(paths[0])
    config = folder.config()
    shares = share_out(config, data_of_run(folder, config))
    counts = shares.label_counts
    if counts is None:
        raise SubmodelError(f"{paths[0]}: its data has no labels to tell clients apart by")
    return LabelShares(f"{config.data.name}: {config.data.partition}", counts)
