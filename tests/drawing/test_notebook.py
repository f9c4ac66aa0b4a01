"""Notebook output: well-formed, without scripts, escaped, with the expected numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import nn

import submodel
from submodel.core.tables import card, cell, curve, grid_of_cells, line_of_text, strip
from submodel.model.cut import WHOLE, CoordinateCut, UnitCut
from tests.support.records import result_of, score_line

EVIL = "<script>alert('&')</script>"


def texts(markup: str) -> str:
    """Return all texts of the markup; fail if it is malformed or active."""
    tree = ElementTree.fromstring(markup)
    for element in tree.iter():
        tag = element.tag.rpartition("}")[2]
        assert tag in {
            *("div", "table", "tr", "th", "td", "b", "svg", "title"),
            *("rect", "polyline", "circle", "line"),
        }
        assert not any(name.startswith("on") or name == "href" for name in element.attrib)
    return " ".join(text.strip() for text in tree.itertext())


def test_all_texts_are_escaped() -> None:
    parts = [
        line_of_text(EVIL),
        grid_of_cells([EVIL], [[cell(EVIL)]]),
        strip([1, 0], EVIL),
        curve([(0, 1)], EVIL),
    ]
    assert texts(card(EVIL, *parts)).count(EVIL) == 6


def test_a_strip_fills_what_is_held() -> None:
    root = ElementTree.fromstring(strip([0, 1, 1, 0.5], "units"))
    blocks = [dict(element.attrib) for element in root if element.tag.endswith("rect")][1:]
    assert [(block["x"], block["width"]) for block in blocks] == [
        ("60.00", "120.00"),
        ("180.00", "60.00"),
    ]
    assert blocks[1]["fill-opacity"] == "0.50"


def test_a_curve_leaves_out_what_is_not_finite() -> None:
    whole = curve([(1, 0.5), (2, float("nan")), (3, 1.0)], "loss")
    assert whole == curve([(1, 0.5), (3, 1.0)], "loss")
    assert curve([(1, float("inf"))], "loss") == ""


class Odd(nn.Module):
    """A model whose names need escaping."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"a<b": nn.Linear(64, 12), "c&d": nn.Linear(12, 10)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.layers.values()
        return second(first(x.flatten(1)).relu())  # type: ignore[no-any-return]


def test_axes_and_cuts() -> None:
    axes = submodel.trace(Odd(), torch.randn(2, 64))
    (name,) = axes.cut_by_capacity
    shown = texts(axes._repr_html_())
    assert "Axes: 1, of which capacities cut 1" in shown
    assert "layers.a<b.weight[0]" in shown
    assert "12" in shown.split()
    cut = UnitCut(axes, {name: np.array([0, 1, 2])})
    assert "Cut: 3 of 12 units on 1 axes" in texts(cut._repr_html_())
    assert "3 of 12" in texts(cut._repr_html_())
    masks = CoordinateCut({"w<": torch.tensor([True, False, True, True])})
    assert "3 of 4 (75.0%)" in texts(masks._repr_html_())
    assert isinstance(WHOLE, CoordinateCut)
    assert "the whole model" in texts(WHOLE._repr_html_())


def test_a_cut_of_a_wide_axis_stays_small() -> None:
    axes = submodel.Axes({"wide": 100_000}, {})
    cut = UnitCut(axes, {"wide": np.arange(0, 100_000, 3)})
    assert "33,334 of 100,000" in texts(cut._repr_html_())
    assert len(cut._repr_html_()) < 100_000


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuple[submodel.Result, Path]:
    folder = tmp_path_factory.mktemp("runs") / "a&b"
    config = {"train": {"rounds": 3, "evaluate_every": 1}}
    return submodel.train(Odd(), submodel.digits(), config, out=folder, progress=False), folder


def test_a_result_and_its_run(result: tuple[submodel.Result, Path]) -> None:
    trained, folder = result
    last = trained.history[-1]
    run = submodel.open(folder)
    for shown in (texts(trained._repr_html_()), texts(run._repr_html_())):
        assert f"test accuracy {last['test_accuracy']:.1%}" in shown
        assert f"test loss {last['test_loss']:.4f}" in shown
        assert "3 of 3" in shown
        assert "rolling, by unit" in shown
        assert f"{last['capacity_accuracy']['0.25']:.1%} at 0.25" in shown
    assert f"Run {folder}: finished" in texts(run._repr_html_())
    assert "Result: a trained Odd" in texts(trained._repr_html_())
    empty = replace(trained, history=[])
    assert "0 of 3" in texts(empty._repr_html_())


def test_a_comparison_names_the_best() -> None:
    lines = {"rolling <1>": score_line(0.75, 7), "static": score_line(0.5, 7)}
    result = result_of({name: [[line]] for name, line in lines.items()})
    markup = result._repr_html_()
    shown = texts(markup)
    assert "Comparison: one seed, some budget" in shown
    assert "75.0" in shown
    bold = [b.text for b in ElementTree.fromstring(markup).iter("b")]
    assert bold[0] == "rolling <1>"
    assert "static" not in bold
