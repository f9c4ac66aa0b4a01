"""What is slow is written down, marked and run first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.durations import SHARED, SLOW, Recorder, arrange, measured, shared_key


class Item:
    """As much of a test as is looked at."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid, self.marks = nodeid, list[str]()

    def add_marker(self, mark: str) -> None:
        self.marks.append(mark)


def test_files_of_slow_tests_come_first_and_stay_together() -> None:
    items: list[Any] = [Item(name) for name in ("a::1", "b::1", "a::2", "c::1", "b::2")]
    arrange(items, {"b::2": 3.0, "c::1": 1.0})
    assert [item.nodeid for item in items] == ["b::1", "b::2", "c::1", "a::1", "a::2"]
    assert [item.nodeid for item in items if item.marks] == ["b::2", "c::1"]


def test_every_worker_begins_with_slow_files_and_has_as_much_to_do() -> None:
    names = ("a::1", "a::2", "b::1", "c::1", "d::1", "e::1", "e::2", "f::1")
    items: list[Any] = [Item(name) for name in names]
    arrange(items, {"a::1": 2.0, "b::1": 3.0, "c::1": 4.0}, 2)
    halves = [[item.nodeid for item in half] for half in (items[:4], items[4:])]
    assert halves == [["c::1", "d::1", "e::1", "e::2"], ["b::1", "a::1", "a::2", "f::1"]]


def test_the_longest_time_of_every_slow_test_is_written_down(tmp_path: Path) -> None:
    file = tmp_path / "durations.json"
    for seconds, longest in (
        (SLOW / 4, None),
        (SLOW, SLOW),
        (2 * SLOW, 2 * SLOW),
        (SLOW, 2 * SLOW),
    ):
        recorder = Recorder(file)
        for name, part in (("a::1", seconds / 2), ("a::1", seconds / 2), (f"a::{seconds}", 1.0)):
            report: Any = SimpleNamespace(
                nodeid=name, duration=part, when="call", user_properties=[]
            )
            recorder.pytest_runtest_logreport(report)
        recorder.pytest_sessionfinish()
        assert measured(file).get("a::1") == longest
    assert len(measured(file)) == 4  # one other test of every time


def test_what_tests_share_counts_to_all_who_use_it_and_not_to_the_first(tmp_path: Path) -> None:
    file = tmp_path / "durations.json"
    fixture = SimpleNamespace(baseid="a", argname="run")
    recorder = Recorder(file)
    for when in ("setup", "call", "teardown"):  # each tells all that is known of the test
        properties = [(SHARED, (shared_key(fixture), 5.0))]
        duration = 5.01 if when == "setup" else 0.01
        report: Any = SimpleNamespace(
            nodeid="a::1", duration=duration, when=when, user_properties=properties
        )
        recorder.pytest_runtest_logreport(report)
    recorder.pytest_sessionfinish()
    assert measured(file) == {"a::fixture run": 5.0}
    items: list[Any] = [Item("b::1"), Item("a::1"), Item("a::2")]
    for item in items[1:]:
        item._fixtureinfo = SimpleNamespace(name2fixturedefs={"run": (fixture,)})
    arrange(items, measured(file))
    assert [item.nodeid for item in items if item.marks] == ["a::1", "a::2"]
