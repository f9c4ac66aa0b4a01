"""The counts of tools/size.py: exact on a small package, and plausible on ours."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from tools.size import SCENARIOS, Counts, Reached, Recorder, count_lines, lines_by_package, measure

FIRST = """
from functools import partial
from small_second import Twice, helper, numbers

SET_UP = helper(0)


def start():
    total = sum(helper(n) for n in range(3))
    total += sum([apply(partial(helper, 1)), apply(lambda: helper(2))])
    total += sum(n for n in numbers(2))
    return total + Twice(4).value


def apply(function):
    return function()
"""
SECOND = """
from dataclasses import dataclass


def helper(n):
    return inner(n)


def inner(n):
    return n


def numbers(count):
    for n in range(count):
        yield helper(n)


@dataclass
class Twice:
    value: int

    def __post_init__(self):
        self.value *= 2
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("small_first", FIRST), ("small_second", SECOND)):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_calls_and_jumps_are_exact(small: Path) -> None:
    with Recorder([small]) as recorder:
        total = importlib.import_module("small_first").start()
    assert total == 3 + 3 + 1 + 8
    # start, 2 apply, helper: 1 on import, 3 + 1 + 1 from the first file, 2 from the generator
    assert {function.name: n for function, n in recorder.calls.items()} == {
        "start": 1, "apply": 2, "helper": 8, "inner": 8, "numbers": 1, "Twice.__post_init__": 1,
    }  # fmt: skip
    # the lambda is a part of start, and partial is passed over
    assert {(by.name, to.name): n for (by, to), n in recorder.jumps.items()} == {
        ("start", "helper"): 4,
        ("apply", "helper"): 1,
        ("start", "numbers"): 1,
        ("start", "Twice.__post_init__"): 1,
    }
    # from helper(0) on import to start: 1; then there and back: 3 calls of helper for the sum, 2 in
    # apply, 2 values and the end of the generator, __post_init__
    assert recorder.counts == Counts(2, 2, 6, 21, 7, 4, 19)


def test_a_recording_ends_where_it_is_told_to(small: Path) -> None:
    module = importlib.import_module("small_first")
    with pytest.raises(Reached), Recorder([small], ("small_second.py", "helper")) as recorder:
        module.start()
    assert [function.name for function in recorder.calls] == ["start"]


def test_lines_are_counted(tmp_path: Path) -> None:
    for name, text in {
        "a/one.py": "import x\n" * 70,
        "a/two.py": "from x import (\n  y,\n)\n",
    }.items():
        (tmp_path / "src/submodel" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src/submodel" / name).write_text(text)
    (tmp_path / "src/submodel/single.py").write_text("x = 1\n")
    found = lines_by_package(tmp_path)
    assert list(found) == ["src", "src: a", "src: single files"]
    assert found["src: a"] == count_lines([*(tmp_path / "src/submodel/a").iterdir()])
    whole = found["src"]
    assert (whole.files, whole.lines, whole.small, whole.median) == (3, 74, 2, 3)
    assert (whole.longest, whole.longest_file, whole.import_lines) == (70, "one.py", 73)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["round", "cut"])
def test_a_scenario_is_recorded(name: str) -> None:
    counts = SCENARIOS[name]().counts
    assert counts.calls > counts.jumps > counts.distinct_jumps > counts.files > 1


@pytest.mark.docs
@pytest.mark.slow
def test_the_page_of_a_run_is_recorded() -> None:
    counts = measure("page")
    assert counts.files > counts.imported
    assert counts.calls > counts.jumps > counts.distinct_jumps > counts.files


@pytest.mark.docs
@pytest.mark.slow
def test_training_is_recorded_until_its_first_round() -> None:
    counts = measure("train")
    assert counts.imported > counts.files > 1
