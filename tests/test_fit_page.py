"""The tables of docs/fit.md agree with the records in results/fit."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.docs
@pytest.mark.parametrize("name", sorted(p.name for p in (ROOT / "results/fit").iterdir()))
def test_the_tables_follow_from_the_records(name: str) -> None:
    tables = runpy.run_path(str(ROOT / "benchmarks/fitting.py"))["table_of"](
        ROOT / "results/fit" / name
    )
    page = (ROOT / "docs/fit.md").read_text("utf-8")
    assert "\n".join(tables) in page
