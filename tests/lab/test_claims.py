"""Claims: what was published, what came out, early looks that are called so, and one picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from submodel.experiments.records import SeedRun, VariantRecord
from submodel.presentation.style import FRAME, LINES
from submodel_lab.converged.candidates import Candidate
from submodel_lab.converged.claims import ContrastClaim, claims_of, draw_claims, write_claims
from submodel_lab.converged.questions import QUESTIONS


def record(way: str, accuracies: list[float]) -> tuple[Candidate, VariantRecord]:
    keys = ("test_accuracy", "capacity_accuracy.1", "capacity_accuracy.0.5")
    runs = [
        SeedRun(seed, [{"round": 9, "bytes": 1, "flops": 1, "test_loss": 1.0,
                        "client_accuracy.worst_quarter": value, **dict.fromkeys(keys, value)}],
                1.0, "0" * 64)
        for seed, value in enumerate(accuracies)
    ]  # fmt: skip
    return Candidate("cifar-low", way), VariantRecord(way, {}, runs)


def claims(rolling: list[float], static: list[float]) -> list[ContrastClaim]:
    results = dict([record("rolling", rolling), record("static", static)])
    return claims_of([QUESTIONS["static"]], results)


def test_a_verdict_is_called_early_until_all_seeds_are_there() -> None:
    few, all_ = (claims([0.7, 0.71, 0.72][:n], [0.6, 0.61, 0.62][:n])[0] for n in (2, 3))
    assert (few.is_early, all_.is_early) == (True, False)
    assert few.row()[-2:] == ["2 of 3", "no verdict: 2 of 3 seeds so far"]
    assert all_.row()[-1] in ("holds", "undecided")
    assert all_.row()[3:7] == [
        "",
        "+11.3 (84.45 - 73.19)",
        "+5.3 (79.08 - 73.76)",
        "-8.8 down to 1/64, +1.2 down to 1/25 (65.09 - 73.88, 73.75 - 72.51)",
    ]


@pytest.mark.parametrize(
    ("static", "colour"),
    [([0.6, 0.6, 0.61], LINES[0]), ([0.8, 0.8, 0.81], LINES[1]), ([0.6, 0.7, 0.8], FRAME)],
)
def test_the_picture_has_every_difference_in_the_colour_of_its_verdict(
    static: list[float], colour: str
) -> None:
    rolling = [0.7, 0.705, 0.71]
    (plot,) = draw_claims(claims(rolling, static)).axes
    labels = [text.get_text() for text in plot.get_yticklabels()]
    setting = "CIFAR-10, L = 5"
    assert labels == [setting, f"{setting}; mean over sizes", f"{setting}; smallest size"]
    texts = [text.get_text() for text in plot.texts]
    assert texts[0] == "(b) rolling - static"
    mean = 100 * sum(a - b for a, b in zip(rolling, static, strict=True)) / 3
    dots = [line for line in plot.lines if line.get_marker() == "o"]
    assert [np.asarray(dot.get_xdata()).item() for dot in dots] == pytest.approx([mean] * 3)
    assert {dot.get_color() for dot in dots} == {colour}
    marks = [line for line in plot.lines if line.get_marker() in ("D", "s", "^")]
    printed = [np.asarray(mark.get_xdata()).tolist() for mark in marks]
    assert printed == [[11.3], [5.3], [-8.8, 1.2], [-0.1], [-5.6]]


def test_claims_are_one_page(tmp_path: Path) -> None:
    page = write_claims(claims([0.7, 0.71, 0.72], [0.6, 0.61, 0.62]), tmp_path)
    text = page.read_text("utf-8")
    assert "Of 9 contrasts" in text
    assert "](claims.png)" in text
    assert text.count("not run yet") == 6
    assert (tmp_path / "claims.png").stat().st_size > 5_000
