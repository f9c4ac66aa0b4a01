"""The data of a page, as plain typed values that become JSON; columns of many rounds are packed."""

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
"""More points of one curve cannot be told apart on a page."""
NAN = float("nan")
PackedColumn = str | float
"""Base64 of little-endian 32-bit floats; of equal values, that value."""
PackedTable = Mapping[str, PackedColumn | int]
"""Columns by name, and ``rows``, how many they have."""


def pack_column(values: Sequence[float]) -> PackedColumn:
    """A column for a page; unknown values are NaN.

    >>> pack_column([1.0, 2.0]), pack_column([3, 3])
    ('AACAPwAAAEA=', 3.0)
    """
    with np.errstate(over="ignore"):  # what is too large for them is infinite, and not drawn
        table = np.asarray(values, "<f4")
    if len(table) and math.isfinite(table[0]) and bool((table == table[0]).all()):
        return float(table[0])
    return base64.b64encode(table.tobytes()).decode("ascii")


def pack_table(columns: Mapping[str, Sequence[float]]) -> dict[str, PackedColumn | int]:
    """Columns of equal length as one table; of too many rows, evenly spread ones.

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
    """A number that JSON can hold; None for anything else.

    Args:
        value: any content of a file.

    >>> finite(2), finite(math.nan), finite("7"), finite(10**400)
    (2, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # a whole number that no float can hold
        return None


def finite_or_nan(value: object) -> float:
    """A number for a column; NaN for anything that JSON cannot hold as one."""
    return number if (number := finite(value)) is not None else NAN


@dataclass(frozen=True)
class Trouble:
    """Updates that were refused, or devices that did not answer, for one reason."""

    kind: str  # refused, missing
    reason: str
    count: int
    clients: Sequence[str]  # some of them
    first_round: int
    last_round: int


@dataclass(frozen=True)
class PageFit:
    """The sub-model of one capacity: its scores before and after `submodel fit` trained it."""

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
    sizes: Mapping[str, int]  # of every axis that it cuts
    units: Mapping[str, str]  # those that it has, packed as those of clients


@dataclass(frozen=True)
class PageRun:
    """One run, or what a record holds of it."""

    name: str
    path: str
    seed: int
    rounds: int
    planned_rounds: int
    state: str  # running, stopped, finished, failed
    settings: Mapping[str, str]  # every key of the configuration, spelt
    toml: str
    model_sha256: str
    every: PackedTable  # a row for every round: costs so far, training loss, coverage
    scores: PackedTable  # a row for every evaluated round
    final: Mapping[str, float | None]  # the measures after the last evaluated round
    totals: Mapping[str, float | None]  # bytes_down, bytes_up, flops, seconds
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds in all
    troubles: Sequence[Trouble] = ()
    warnings: Sequence[str] = ()
    title: str = ""  # of the group, where a comparison has one for it
    fits: Sequence[PageFit] = ()  # what `submodel fit` made of the result


@dataclass(frozen=True)
class MeasureInfo:
    """A measure that can be drawn: its key in tables, its name and form, and what is better."""

    key: str
    label: str
    form: str  # percent, number, count
    better: str  # more, less, or empty
    table: str  # every, scores


@dataclass(frozen=True)
class PageGroup:
    """Runs that differ in nothing but their seeds."""

    label: str
    settings: Mapping[str, str]  # what tells it from other groups
    runs: Sequence[int]  # their places


@dataclass(frozen=True)
class StandingRow:
    """A group by one measure: its mean, and the test against the best."""

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
    """Groups by one measure, the paired tests against the best, and how to read them."""

    measure: str
    data: str  # whose test part they share; empty where all of a page do
    best: int
    rows: Sequence[StandingRow]
    note: str


@dataclass(frozen=True)
class PageTable:
    """A table of words, such as the claims of a reproduction."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    verdicts: str = ""  # the heading of the column with verdicts


@dataclass(frozen=True)
class PageStudy:
    """A study of the theory lab."""

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
    """The examples that clients have."""

    title: str
    runs: Sequence[int]  # whose data it is
    words: Sequence[str]
    clients: int
    labels: Sequence[str]  # of the columns; empty: examples alone
    counts: str = ""  # base64 of 32-bit floats, client by client


class PageSection(Protocol):
    """A section that another package adds: a module or an object with these three functions."""

    def titles(self, records: Mapping[str, ArmRecord]) -> Mapping[str, str]:
        """Return names of records for tables and legends, by slug."""

    def tables(self, folder: Path, records: Mapping[str, ArmRecord]) -> Sequence[PageTable]:
        """Return tables that the records of a folder give rise to."""

    def studies(self, folder: Path) -> Sequence[PageStudy]:
        """Return the studies that a folder holds; none where it holds something else."""
