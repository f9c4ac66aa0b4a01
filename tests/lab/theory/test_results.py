"""Studies on the terminal and in figures, and their numbers in docs/theory."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Annotation
from rich.console import Console
from rich.table import Table

from submodel.cli import main
from submodel.drawing.style import in_style
from submodel_lab.theory import TheoryError
from submodel_lab.theory.drawing import Panel, PlotLine, panels_figure
from submodel_lab.theory.measures import Measure, slope
from submodel_lab.theory.results import ResultRow, number_tables, report_nothing
from submodel_lab.theory.studies import STUDIES

NUMBER = r"-?\d+\.?\d*(?:e-?\d+)?"


def test_a_panel_of_many_lines_is_high_enough_for_their_names() -> None:
    lines = [
        PlotLine(f"parameter {n} from 0.5, p=0.5, no noise", [1.0, 2.0], [2.0, 1.0])
        for n in range(9)
    ]
    few = Panel("two lines", "x", "y", lines[:2])
    many = Panel("a long title that reaches over the names", "x", "y", lines)
    figure = panels_figure([few, few, many, few], "A study")
    low, high = (panels_figure(panels, "").get_figheight() for panels in ([few], [many]))
    assert low < high
    assert abs(figure.get_figheight() - (low + high)) < 0.3
    with in_style():
        figure.draw_without_rendering()
        plot = figure.axes[2]
        names = [text for text in plot.texts if isinstance(text, Annotation)]
        boxes = [name.get_window_extent() for name in names]
        frame = plot.get_window_extent()
    assert len(boxes) == 9
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert all(box.y1 <= frame.y1 + 3 for box in boxes)  # the title is above the frame


def texts(tables: list[Table]) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        for table in tables:
            console.print(table)
    return capture.get()


def test_what_rows_share_stands_below_and_what_differs_is_named() -> None:
    measure = Measure.of(np.array([1.0, 2.0, 3.0]), 2.125)
    base = {"scheme": "random", "p": 0.5, "share": 0.5, "R": 80, "K": 5, "seed": 0}
    changes: list[dict[str, Any]] = [
        {}, {"R": 160}, {"R": 320}, {"scheme": "rolling", "K": 10, "share": 0.6}]  # fmt: skip
    rows = [ResultRow(base | change, {"error": measure}, {"condition": "met", "bound": 7.0})
            for change in changes]  # fmt: skip
    rows[1] = replace(rows[1], facts={"condition": "not met: R >= 500", "bound": 7.0})
    (table,) = number_tables(rows, "x")
    assert [str(column.header) for column in table.columns] == ["setting", "R", "error"]
    assert list(table.columns[0].cells) == [
        "random", "random *", "random", "rolling, share = 0.6, K = 10"]  # fmt: skip
    assert next(iter(table.columns[2].cells)) == "2 [0.8684, 3.132] (2.125)"
    for words in ("p = 0.5", "seed = 0", "bound = 7", "K = 5"):
        assert words in str(table.caption)


def test_no_digit_is_lost_however_many_quantities_there_are() -> None:
    names = [f"quantity {number}" for number in range(16)]
    rows = [ResultRow({"p": p}, {name: Measure(0.12345678, 0.1, 0.2) for name in names})
            for p in (0.1, 0.2)]  # fmt: skip
    text = texts(number_tables(rows, "x"))
    assert text.count("0.1235") == 2 * len(names)
    assert "…" not in text


@pytest.mark.parametrize(
    ("study", "change", "words"),
    [
        ("stability", {"clients": (0, 4)}, "clients = 0: "),
        ("convergence", {"noise": math.nan}, "noise = nan: "),
        ("convergence", {"noise": 0.0}, "noise = 0: "),
        ("beyond", {"trials": 1}, "trials = 1: "),
        ("beyond", {"mu": 0.0}, "mu = 0: "),
        ("residual", {"dimensions": (1, 5)}, "dimensions = 1: .*2"),
        ("residual", {"capacities": ()}, "capacities: "),
        ("nonconvex", {"capacities": (1.0, 2.0)}, r"capacities: p = 2 .*\(0, 1\]"),
        ("lemmas", {"mu": 3.0}, "mu = 3 .*smoothness = 2"),
    ],
)
def test_settings_no_study_can_use(study: str, change: dict[str, Any], words: str) -> None:
    entry = STUDIES[study]
    with pytest.raises(TheoryError, match=words):
        entry.run(replace(entry.default_settings(), **change), report_nothing)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["residual", "--set", "problems=2.5"], "'2.5'"),
        (["residual", "--problem", "x.npz"], "submodel study problem"),
        (["problem", "--problem", "nothing.npz"], "nothing.npz: "),
    ],
)
def test_wrong_words(
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["submodel", "study", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_one_point_has_no_slope() -> None:
    assert math.isnan(slope([2.0], [1.0]))
    assert math.isnan(slope([2.0, 2.0], [1.0, 3.0]))


DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "theory.md").read_text("utf-8")


def read_statements() -> list[dict[str, str]]:
    return list(csv.DictReader((DOCS / "theory/statements.csv").read_text("utf-8").splitlines()))


def agrees(text: str, number: float) -> bool:
    """Return whether a printed number is this one, rounded; "by 0.01" may stand for -0.01."""
    digits, _, power = text.partition("e")
    places = len(digits.partition(".")[2])
    return abs(abs(float(text)) - abs(number)) <= 0.5001 * 10.0 ** (int(power or 0) - places)


INTERVALS = re.findall(rf"({NUMBER}) \[({NUMBER}), ({NUMBER})\]", PAGE)


@pytest.fixture(scope="module")
def measured() -> list[tuple[float, ...]]:
    return [
        (float(c["estimate"]), *sorted((abs(float(c["low"])), abs(float(c["high"])))))
        for c in read_statements() if c["low"]
    ]  # fmt: skip


@pytest.mark.docs
def test_intervals_are_those_of_the_record(measured: list[tuple[float, ...]]) -> None:
    assert len(INTERVALS) > 60
    wrong = []
    for middle, *ends in INTERVALS:
        low, high = sorted(ends, key=lambda text: abs(float(text)))
        if not any(agrees(middle, m) and agrees(low, a) and agrees(high, b)
                   for m, a, b in measured):  # fmt: skip
            wrong.append((middle, *ends))
    assert wrong == []


@pytest.mark.docs
def test_no_theorem_of_the_record_was_left_out_or_failed() -> None:
    statements = read_statements()
    assert {f"Theorem {number}" for number in range(1, 7)} <= {c["source"] for c in statements}
    for statement in statements:  # trials and exact values belong together
        if statement["exact"] and statement["low"] != statement["high"]:
            half = (float(statement["high"]) - float(statement["low"])) / 2
            assert abs(float(statement["exact"]) - float(statement["estimate"])) < 2.6 * half


@pytest.mark.docs
def test_tables_of_the_sharper_theorems_are_what_the_example_printed() -> None:
    printed = [float(x) for x in re.findall(NUMBER, (DOCS / "theory/sharper.txt").read_text())]
    page = (DOCS / "theory/sharper.md").read_text("utf-8")
    decimals = re.findall(r"(?<![\w.,/])\d+\.\d{3,}", page)
    assert len(decimals) > 40
    assert [text for text in decimals if not any(agrees(text, x) for x in printed)] == []
