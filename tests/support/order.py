"""The order of tests: slow ones first, so that none is left for the end."""

from __future__ import annotations

from collections import defaultdict

import pytest


def slow_first(items: list[pytest.Item], workers: int = 1) -> list[pytest.Item]:
    """Sort tests for workers that start with equally long runs of tests.

    The tests of a file stay together and in order, as they share expensive fixtures.
    """
    files: dict[str, list[pytest.Item]] = defaultdict(list)
    slow: dict[str, int] = defaultdict(int)
    for item in items:
        name = item.nodeid.partition("::")[0]
        files[name].append(item)
        slow[name] += item.get_closest_marker("slow") is not None
    rows: list[list[pytest.Item]] = [[] for _ in range(workers)]
    loads = [0] * workers
    for name in sorted(files, key=lambda name: -slow[name]):
        lengths = loads if slow[name] else [len(row) for row in rows]
        row = min(range(workers), key=lengths.__getitem__)
        rows[row] += files[name]
        loads[row] += slow[name]
    return [item for row in rows for item in row]
