"""A run's lines: read as they were written, with whatever else stands in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from submodel.runs.metrics import Lines

LINE: dict[str, Any] = {
    "round": 1, "train_loss": 2, "later": [1, {"x": None}], "bytes_down": 10, "bytes_up": 2**60,
    "flops": 1.5, "seconds": {"train": 1, "merge": 0.25}, "refused": {"3": "late"},
    "coverage": {"weights": 0.5, "units": 1, "more": 2}, "test_loss": float("nan"),
}  # fmt: skip


def test_what_is_written_again_is_what_was_read(tmp_path: Path) -> None:
    """Orders of keys, whole numbers and what a later version adds included."""
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps({**LINE, "round": n}) + "\n" for n in (1, 2)))
    assert Lines.read(file).text() == file.read_text()


WRONG: dict[str, dict[str, Any]] = {
    "round": {"round": 0},
    "round in quotes": {"round": "1"},
    "true": {"flops": True},
    "a number in quotes": {"bytes_down": "10"},
    "no table": {"seconds": [1]},
    "words for seconds": {"seconds": {"train": "long"}},
    "half of the coverage": {"coverage": {"units": 1}},
    "a score": {"test_accuracy": None},
}


@pytest.mark.parametrize("case", WRONG)
def test_a_line_that_nobody_could_use_is_told_and_left_out(case: str, tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(f"{json.dumps({**LINE, 'round': 3})}\n{json.dumps({**LINE, **WRONG[case]})}\n")
    found = Lines.read(file)
    assert [line["round"] for line in found.entries] == [3]
    assert found.damage == ["line 2 is not that of a round"]
