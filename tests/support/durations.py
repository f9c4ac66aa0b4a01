"""How long tests take: the slow ones are marked, and whole files of them come first.

`tests/durations.json` has what took `SLOW` seconds or more when it was last measured, by
`pytest -n auto --record-durations`. A test that is not in it counts as quick.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

SLOW = 0.2
"""Seconds from which on a test is slow: all quicker ones together took 72 s on two cores."""
FILE = Path(__file__).parents[1] / "durations.json"


def measured(file: Path = FILE) -> dict[str, float]:
    """The seconds of the slow tests, by their identifiers."""
    found: dict[str, float] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return found


def arrange(items: list[pytest.Item], seconds: dict[str, float]) -> None:
    """Mark what is slow, and put the files that take longest first: none is left for the end."""
    files: dict[str, float] = defaultdict(float)
    for item in items:
        if item.nodeid in seconds:
            item.add_marker("slow")
            files[item.nodeid.partition("::")[0]] += seconds[item.nodeid]
    items.sort(key=lambda item: -files[item.nodeid.partition("::")[0]])


class Recorder:
    """Adds up what tests take, and writes it down in the end."""

    def __init__(self, file: Path = FILE) -> None:
        self._file = file
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test was set up, has run or was torn down."""
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Exchange what is known of the tests that ran."""
        before = {n: s for n, s in measured(self._file).items() if n not in self._seconds}
        slow = {n: round(s, 1) for n, s in self._seconds.items() if s >= SLOW}
        both = dict(sorted((before | slow).items()))
        self._file.write_text(json.dumps(both, indent=0) + "\n", "utf-8")
