"""Data of a page as typed plain values for JSON, with packed columns."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from submodel.comparison.records import ArmRecord

MOST_POINTS = 2_000
"""Maximum number of points of a curve; more are indistinguishable."""
NAN = float("nan")
PackedColumn = str | float
"""Base64 of little-endian 32-bit floats; a single number if all values are equal."""
PackedTable = Mapping[str, PackedColumn | int]
"""Columns by name, and ``rows``, their length."""


def pack_column(values: Sequence[float]) -> PackedColumn:
    """Pack a column; unknown values are NaN.

    >>> pack_column([1.0, 2.0]), pack_column([3, 3])
    ('AACAPwAAAEA=', 3.0)
    """
    with np.errstate(over="ignore"):  # values beyond float32 become infinite and are not drawn
        table = np.asarray(values, "<f4")
    if len(table) and math.isfinite(table[0]) and bool((table == table[0]).all()):
        return float(table[0])
    return base64.b64encode(table.tobytes()).decode("ascii")


def pack_table(columns: Mapping[str, Sequence[float]]) -> dict[str, PackedColumn | int]:
    """Pack columns of equal length as a table; too many rows are thinned evenly.

    >>> pack_table({"round": [1, 2], "clients": [5, 5]})
    {'rows': 2, 'round': 'AACAPwAAAEA=', 'clients': 5.0}
    """
    rows = max(map(len, columns.values()), default=0)
    places: Sequence[int] = range(rows)
    if rows > MOST_POINTS:
        places = [int(place) for place in np.linspace(0, rows - 1, MOST_POINTS).round()]
    packed = {name: pack_column([values[p] for p in places]) for name, values in columns.items()}
    return {"rows": len(places), **packed}


def finite(value: object) -> float | None:
    """Return a number that JSON can represent; None for anything else.

    Args:
        value: any value from a file.

    >>> finite(2), finite(math.nan), finite("7"), finite(10**400)
    (2, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an integer beyond the range of floats
        return None


def finite_or_nan(value: object) -> float:
    """Return a number for a column; NaN for anything else."""
    return number if (number := finite(value)) is not None else NAN


@dataclass(frozen=True)
class Trouble:
    """Refused updates, or devices without an answer, for one reason."""

    kind: str  # refused, missing
    reason: str
    count: int
    clients: Sequence[str]  # some of them
    first_round: int
    last_round: int


@dataclass(frozen=True)
class PageFit:
    """Fitted sub-model of one capacity, with scores before and after `submodel fit`."""

    capacity: float
    headline: str  # accuracy or loss
    before: float | None
    score: float | None
    global_score: float | None
    parameters: float | None
    rounds: float | None
    bytes: float | None
    flops: float | None
    cut: str
    sizes: Mapping[str, int]  # of every cut axis
    units: Mapping[str, str]  # held units, packed like those of clients


@dataclass(frozen=True)
class PageRun:
    """One run, from its folder or from a record."""

    name: str
    path: str
    seed: int
    rounds: int
    planned_rounds: int
    state: str  # running, stopped, finished, failed
    settings: Mapping[str, str]  # every key of the configuration as text
    toml: str
    model_sha256: str
    every: PackedTable  # a row for every round: costs so far, training loss, coverage
    scores: PackedTable  # a row for every evaluated round
    final: Mapping[str, float | None]  # the measures after the last evaluated round
    totals: Mapping[str, float | None]  # bytes_down, bytes_up, flops, seconds
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds in all
    troubles: Sequence[Trouble] = ()
    warnings: Sequence[str] = ()
    title: str = ""  # title of the group in a comparison
    fits: Sequence[PageFit] = ()  # sub-models of `submodel fit`


@dataclass(frozen=True)
class MeasureInfo:
    """Measure that can be drawn: key in tables, name, form, and better direction."""

    key: str
    label: str
    form: str  # percent, number, count
    better: str  # more, less, or empty
    table: str  # every, scores


@dataclass(frozen=True)
class PageGroup:
    """Runs that differ only by their seeds."""

    label: str
    settings: Mapping[str, str]  # settings that differ from other groups
    runs: Sequence[int]  # indices of runs


@dataclass(frozen=True)
class StandingRow:
    """Group by one measure: mean, and test against the best."""

    group: int
    mean: float | None
    deviation: float | None
    interval: tuple[float, float] | None  # of the mean, at 95 %
    difference: float | None  # to the best
    difference_interval: tuple[float, float] | None
    p: float | None
    verdict: str


@dataclass(frozen=True)
class Standing:
    """Ranking of groups by one measure, with paired tests against the best."""

    measure: str
    data: str  # common test data; empty if the whole page has one
    best: int
    rows: Sequence[StandingRow]
    note: str


@dataclass(frozen=True)
class PageTable:
    """Table of text, such as the claims of a reproduction."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    verdicts: str = ""  # heading of the column with verdicts


@dataclass(frozen=True)
class PageStudy:
    """Study of the theory lab."""

    name: str
    title: str
    settings: Mapping[str, str]
    claims: PageTable
    headings: Sequence[str]
    rows: Sequence[Sequence[float | str | None]]
    notes: Sequence[str]
    failures: Sequence[str]
    version: str
    picture: str  # a PNG as data:, or empty


@dataclass(frozen=True)
class PagePartition:
    """Partition of examples over clients."""

    title: str
    runs: Sequence[int]  # indices of runs with this data
    words: Sequence[str]
    clients: int
    labels: Sequence[str]  # of the columns; empty: only numbers of examples
    counts: str = ""  # base64 of 32-bit floats, client by client


class PageSection(Protocol):
    """Section of another package: a module or an object with these three functions."""

    def titles(self, records: Mapping[str, ArmRecord]) -> Mapping[str, str]:
        """Return names of records for tables and legends, by slug."""

    def tables(self, folder: Path, records: Mapping[str, ArmRecord]) -> Sequence[PageTable]:
        """Return the tables of a folder's records."""

    def studies(self, folder: Path) -> Sequence[PageStudy]:
        """Return the studies in a folder; empty if there are none."""
