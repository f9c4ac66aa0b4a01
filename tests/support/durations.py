"""How long tests take: the slow ones are marked, and whole files of them come first.

`tests/durations.json` has what took `SLOW` seconds or more when it was measured, by
`pytest -n auto --record-durations`. A test that is not in it counts as quick. What several tests
share is paid by the first that runs, another one without the slow tests: so measure all tests, and
then the quick ones alone (`-m "not slow and not faults and not deep"`) until nothing is added.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SLOW = 0.1
"""Seconds from which on a test is slow: all quicker ones together took 49 s on two cores."""
FILE = Path(__file__).parents[1] / "durations.json"


def measured(file: Path = FILE) -> dict[str, float]:
    """The seconds of the slow tests, by their identifiers."""
    found: dict[str, float] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return found


SHARED = "shared set-up"
"""The property of a test that set up what others use, too: what it is, and the seconds."""


def shared_key(fixture: Any) -> str:
    """What stands for a fixture that several tests share."""
    return f"{fixture.baseid}::fixture {fixture.argname}"


def _keys(item: pytest.Item) -> Iterator[str]:
    """What a test takes its time for: itself, and what it shares with others."""
    yield item.nodeid
    information = getattr(item, "_fixtureinfo", None)
    for fixtures in information.name2fixturedefs.values() if information else ():
        yield from (shared_key(fixture) for fixture in fixtures[-1:])


def arrange(items: list[pytest.Item], seconds: dict[str, float], workers: int = 1) -> None:
    """Mark what is slow, and put the files that take longest first: none is left for the end.

    Workers begin with equally many tests in a row: each is given a row of its own that takes about
    as long as the others', so that what waits for processes runs beside what computes.
    """
    files: dict[str, list[pytest.Item]] = defaultdict(list)
    times: dict[str, float] = defaultdict(float)
    for item in items:
        file = item.nodeid.partition("::")[0]
        files[file].append(item)
        if slow := [seconds[key] for key in _keys(item) if key in seconds]:
            item.add_marker("slow")
            times[file] += max(slow)
    rows: list[list[pytest.Item]] = [[] for _ in range(workers)]
    loads = [0.0] * workers
    for file in sorted(files, key=lambda file: -times[file]):
        lengths = loads if times[file] else [len(row) for row in rows]
        row = min(range(workers), key=lengths.__getitem__)
        rows[row] += files[file]
        loads[row] += times[file]
    items[:] = [item for row in rows for item in row]


class Recorder:
    """Adds up what tests take, and writes it down in the end."""

    def __init__(self, file: Path = FILE) -> None:
        self._file = file
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test was set up, has run or was torn down."""
        self._seconds[report.nodeid] += report.duration
        for name, value in report.user_properties if report.when == "setup" else ():
            if name == SHARED:
                shared: Any = value
                self._seconds[shared[0]] += shared[1]
                self._seconds[report.nodeid] -= shared[1]

    def pytest_sessionfinish(self) -> None:
        """Add what is slow to what was; to forget that, delete the file."""
        longest = measured(self._file)
        for name, seconds in self._seconds.items():
            if seconds >= SLOW:
                longest[name] = max(round(seconds, 2), longest.get(name, 0.0))
        self._file.write_text(json.dumps(longest, indent=0, sort_keys=True) + "\n", "utf-8")
