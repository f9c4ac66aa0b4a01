"""Files of figures: every format, whole, the same bytes again, with text that stays text."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import pytest
from PIL import Image

from submodel.errors import SubmodelError
from submodel.presentation.style import DOUBLE, SINGLE, in_style, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def small_figure(width: float = SINGLE) -> Figure:
    figure = new_figure(width, 2)
    with in_style():
        plot = figure.subplots()
        plot.plot([0, 1], [0, 1])
        plot.set_xlabel("a cost of $5 and $7")
    return figure


def test_a_png_has_the_width_of_a_column(tmp_path: Path) -> None:
    for width in (SINGLE, DOUBLE):
        save_figure(small_figure(width), tmp_path / "a.png", dpi=100)
        with Image.open(tmp_path / "a.png") as image:
            assert image.size == (round(100 * width), 200)


def test_the_text_of_an_svg_is_text(tmp_path: Path) -> None:
    save_figure(small_figure(), tmp_path / "a.svg")
    tree = ElementTree.parse(tmp_path / "a.svg")
    texts = [element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert "a cost of $5 and $7" in texts


def test_a_pdf_embeds_its_fonts_as_truetype(tmp_path: Path) -> None:
    with mpl.rc_context({"pdf.compression": 0}):
        save_figure(small_figure(), tmp_path / "a.pdf")
    content = (tmp_path / "a.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    assert content.rstrip().endswith(b"%%EOF")
    assert b"/FontFile2" in content  # TrueType, embedded
    assert b"/Type3" not in content


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_same_figure_is_the_same_bytes(tmp_path: Path, ending: str) -> None:
    for name in ("a", "b"):
        save_figure(small_figure(), tmp_path / f"{name}.{ending}")
    assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"a.{ending}", f"b.{ending}"]


def test_other_formats_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SubmodelError, match=r"a\.gif: figures are written as png, svg, pdf"):
        save_figure(small_figure(), tmp_path / "a.gif")


def test_the_settings_of_a_caller_stay_his(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    save_figure(small_figure(), tmp_path / "a.png")
    assert dict(mpl.rcParams) == before
