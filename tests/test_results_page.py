"""The pages in docs/results agree with the records in results/."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tools import results as page
from tools.packages import ROOT
from tools.pages import part

from submodel_lab.converged.agenda import read_available
from submodel_lab.converged.contrasts import (
    CITED_SOURCES,
    NOT_RUN,
    PUBLISHED_FIGURES,
    published_differences,
)
from submodel_lab.converged.questions import QUESTIONS
from submodel_lab.converged.report import results_of
from submodel_lab.paper.gpu_time import PEAKS, UTILISATION, forward_flops, gpu_rows
from tests.support.records import record, score_line

DOCS = ROOT / "docs"


@pytest.mark.slow
def test_every_part_of_the_page_follows_from_the_records() -> None:
    for name, text in page.parts().items():
        assert part(page.page_of(name), name) == text, "run make results"


def test_every_question_with_records_has_its_figure() -> None:
    results, _ = read_available(list(QUESTIONS.values()), page.RECORDS / "converged")
    for question in QUESTIONS.values():
        has_results = bool(results_of(question, results))
        assert (DOCS / page.figure(question.name)).is_file() == has_results


def _keep(folder: Path, slug: str, accuracies: Sequence[float]) -> None:
    lines = [[score_line(value, 440)] for value in accuracies]
    record(slug, lines, 36.0, is_flat=True).write(folder / f"converged/{slug}.json")


def test_records_that_arrive_fill_their_rows_and_no_others(tmp_path: Path) -> None:
    _keep(tmp_path, "fashion-rolling", [0.80, 0.82, 0.81])
    before = page.parts(tmp_path)
    assert (
        "| Fashion-MNIST, L = 5 | rolling | 440 | 3/3 | 2 GB | 3 T | 81.0 (1.0)" in before["arms"]
    )
    assert before["contrasts"].count(NOT_RUN) == before["contrasts"].count("\n| ") - 2  # headings
    _keep(tmp_path, "fashion-static", [0.70, 0.71, 0.72])
    parts = page.parts(tmp_path)
    assert "Fashion-MNIST, L = 5; rolling - static:" in parts["static"]
    assert "| holds: +10.0 [+7.5, +12.5], p = 0." in parts["static"]
    assert "Fashion-MNIST, L = 5: rolling 3 of 10, static 3 of 10." in parts["static"]
    assert (
        " contrasts 0 hold, 0 are reversed, 0 are undecided, 3 lack seeds, and"  # three measures
        in parts["contrasts"]
    )
    assert (
        "`submodel reproduce static --scale converged`: 6 runs, 0.06 hours of rounds"
        in parts["static"]
    )
    assert "`submodel reproduce gap --scale converged`: not run yet." in parts["gap"]


def test_published_differences_are_those_of_the_figures_behind_them() -> None:
    contrasts = {(c.setting, (c.better, c.worse), c.measure)
                 for q in QUESTIONS.values() for c in q.contrasts}  # fmt: skip
    assert PUBLISHED_FIGURES.keys() <= contrasts
    count = 0
    for figures in PUBLISHED_FIGURES.values():
        assert figures.keys() <= set(CITED_SOURCES)
        for text in figures.values():
            shown = published_differences(text)
            pairs = text.partition("(")[2].rstrip(")").split(", ") if shown else []
            for value, pair in zip(shown, pairs, strict=True):
                first, second = map(float, pair.split(" - "))
                assert value == pytest.approx(first - second, abs=0.051)
                count += 1
    assert count == 12


def test_gpu_hours_follow_from_counted_flops() -> None:
    assert forward_flops(10, 64, 1.0) == pytest.approx(2 * 0.5554e9, rel=1e-3)  # ResNet18's MACs
    rows = {row[0]: row[1:] for row in gpu_rows()}
    runs, flops, *hours = rows["cifar10, capacity 1, one run"]
    assert runs == "1"
    counted = 2500 * 1110845440 * (3 * 5000 + 60_000 / 25)
    assert float(flops) == pytest.approx(counted / 1e15, abs=0.5)
    peaks = [peak * share for peak in PEAKS.values() for share in UTILISATION]
    assert [float(h) for h in hours] == pytest.approx([counted / p / 3600 for p in peaks], abs=0.05)
