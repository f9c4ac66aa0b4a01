"""Which tests run and in what order: some cases of large products, and slow tests first."""

from __future__ import annotations

from collections import defaultdict

import pytest


def thin_out(items: list[pytest.Item]) -> None:
    """Mark as `deep` all cases but each n-th of every test that is marked ``every(n)``."""
    counts: dict[str, int] = defaultdict(int)
    for item in items:
        if mark := item.get_closest_marker("every"):
            name = item.nodeid.partition("[")[0]
            index, every = counts[name], mark.args[0]
            if (index + index // every) % every:  # no value of an inner parameter is left out
                item.add_marker("deep")
            counts[name] += 1


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
