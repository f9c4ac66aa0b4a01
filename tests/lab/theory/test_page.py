"""Every measured number of docs/theory.md is in the records of the run that it tells of."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
NUMBER = r"-?\d+\.?\d*(?:e-?\d+)?"
PAGE = (DOCS / "theory.md").read_text("utf-8")


def read_claims() -> list[dict[str, str]]:
    return list(csv.DictReader((DOCS / "theory/statements.csv").read_text("utf-8").splitlines()))


def agrees(text: str, number: float) -> bool:
    """Whether a printed number is this one, rounded; "by 0.01" may tell of -0.01."""
    digits, _, power = text.partition("e")
    places = len(digits.partition(".")[2])
    return abs(abs(float(text)) - abs(number)) <= 0.5001 * 10.0 ** (int(power or 0) - places)


INTERVALS = re.findall(rf"({NUMBER}) \[({NUMBER}), ({NUMBER})\]", PAGE)


@pytest.fixture(scope="module")
def measured() -> list[tuple[float, ...]]:
    return [
        (float(c["estimate"]), *sorted((abs(float(c["low"])), abs(float(c["high"])))))
        for c in read_claims() if c["low"]
    ]  # fmt: skip


def test_intervals_are_those_of_the_record(measured: list[tuple[float, ...]]) -> None:
    assert len(INTERVALS) > 60
    wrong = []
    for middle, *ends in INTERVALS:
        low, high = sorted(ends, key=lambda text: abs(float(text)))
        if not any(agrees(middle, m) and agrees(low, a) and agrees(high, b)
                   for m, a, b in measured):  # fmt: skip
            wrong.append((middle, *ends))
    assert wrong == []


def test_no_theorem_of_the_record_was_left_out_or_failed() -> None:
    claims = read_claims()
    assert {f"Theorem {number}" for number in range(1, 7)} <= {c["source"] for c in claims}
    for claim in claims:  # trials and exact values belong together
        if claim["exact"] and claim["low"] != claim["high"]:
            half = (float(claim["high"]) - float(claim["low"])) / 2
            assert abs(float(claim["exact"]) - float(claim["estimate"])) < 2.6 * half


def test_tables_of_the_sharper_theorems_are_what_the_example_printed() -> None:
    printed = [float(x) for x in re.findall(NUMBER, (DOCS / "theory/sharper.txt").read_text())]
    section = PAGE.partition("## Sharper than the paper")[2].partition("\n## ")[0]
    decimals = re.findall(r"(?<![\w.,/])\d+\.\d{3,}", section)
    assert len(decimals) > 60
    assert [text for text in decimals if not any(agrees(text, x) for x in printed)] == []
