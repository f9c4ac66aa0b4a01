"""A study on the terminal can be read, and settings that it cannot use are refused in words."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table

from submodel.cli import main
from submodel_lab.theory import TheoryError
from submodel_lab.theory.measures import Measure, slope
from submodel_lab.theory.results import ResultRow, number_tables, report_nothing
from submodel_lab.theory.studies import STUDIES


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
        ("stability", {"clients": (0, 4)}, "clients = 0: 1 or more is needed"),
        ("convergence", {"noise": math.nan}, "noise = nan: a finite number is needed"),
        ("convergence", {"noise": 0.0}, "noise = 0"),
        ("beyond", {"trials": 1}, "at least 2 are needed"),
        ("beyond", {"mu": 0.0}, "mu = 0: a strongly convex problem"),
        ("residual", {"dimensions": (1, 5)}, "at least 2 coordinates"),
        ("residual", {"capacities": ()}, "capacities: at least one"),
        ("nonconvex", {"capacities": (1.0, 2.0)}, r"not in \(0, 1\]"),
        ("lemmas", {"mu": 3.0}, "mu = 3 is above smoothness = 2"),
    ],
)
def test_settings_no_study_can_use(study: str, change: dict[str, Any], words: str) -> None:
    offer = STUDIES[study]
    with pytest.raises(TheoryError, match=words):
        offer.run(replace(offer.default_settings(), **change), report_nothing)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["residual", "--set", "problems=2.5"], "'2.5' is not a whole number"),
        (["residual", "--problem", "x.npz"], "submodel study problem"),
        (["problem", "--problem", "nothing.npz"], "nothing.npz: there is no such file"),
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
