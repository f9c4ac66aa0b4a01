"""What a page is made of, as plain typed values that become JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from submodel.report.page.columns import PackedColumn
from submodel.report.page.fitted import PageFit

PackedTable = Mapping[str, PackedColumn | int]
"""Columns by name, and ``rows``, how many they have."""


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
    """What can be drawn: its key in tables, its name, how it is written, what is better."""

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
    """How one group stands by one measure."""

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
    """Who has what of the data."""

    title: str
    runs: Sequence[int]  # whose data it is
    words: Sequence[str]
    clients: int
    labels: Sequence[str]  # of the columns; empty: examples alone
    counts: str = ""  # base64 of 32-bit floats, client by client
