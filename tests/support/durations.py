"""How long tests take: the slow ones are marked, and whole files of them come first.

`tests/durations.json` has what took `SLOW` seconds or more when it was measured, by
`pytest -n auto --record-durations`. A test that is not in it counts as quick. What several tests
share is paid by the first that runs, another one without the slow tests: so measure all tests, and
then the quick ones alone (`-m "not slow and not faults and not deep"`) until nothing is added.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

SLOW = 0.1
"""Seconds from which on a test is slow: all quicker ones together took 68 s on two cores."""
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
        """Add what is slow to what was; to forget that, delete the file."""
        longest = measured(self._file)
        for name, seconds in self._seconds.items():
            if seconds >= SLOW:
                longest[name] = max(round(seconds, 2), longest.get(name, 0.0))
        self._file.write_text(json.dumps(longest, indent=0, sort_keys=True) + "\n", "utf-8")
