"""The README is one screen, and its example trains as written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from submodel import Result

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
MOST_LINES = 80
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.docs
def test_it_is_short_and_names_the_two_commands() -> None:
    assert len(README.splitlines()) <= MOST_LINES
    assert "\nmake train " in README
    assert "\nmake test " in README


@pytest.mark.docs
def test_the_home_page_has_the_same_example() -> None:
    assert PYTHON.findall((ROOT / "docs/index.md").read_text("utf-8")) == PYTHON.findall(README)


@pytest.mark.slow
def test_the_example_trains() -> None:
    (code,) = PYTHON.findall(README)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    result = names["result"]
    assert isinstance(result, Result)
    assert (result.accuracy or 0) > 0.6
    small = result.submodel(capacity=0.5)
    assert [p.shape[0] for p in small.parameters()] == [64, 64, 10, 10]
    assert names["net"][1].weight.shape == (128, 64)  # the own module stays unchanged
