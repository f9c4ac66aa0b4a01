"""The example of docs/report.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.report.page.folders import make_run

PAGE = Path(__file__).parents[3] / "docs" / "report.md"


def test_the_example_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "runs" / "digits")
    make_run(tmp_path / "runs" / "other", scheme="static")
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    exec(compile(example, PAGE.name, "exec"), {})
    page = (tmp_path / "runs" / "digits" / "report.html").read_text("utf-8")
    assert "A cnn on digits was trained" in page
    assert "2 ways to train a cnn on digits" in (tmp_path / "both.html").read_text("utf-8")
