"""Figures: files in every format, with the same bytes again; colours that all readers can
distinguish.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from submodel.core.errors import SubmodelError
from submodel.drawing import style as palette
from submodel.drawing.style import DOUBLE, SINGLE, in_style, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
SIGHTS = {
    "full": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.95047, 1.0, 1.08883])


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
    with pytest.raises(SubmodelError, match=r"a\.gif: .*png, svg, pdf"):
        save_figure(small_figure(), tmp_path / "a.gif")


def test_the_settings_of_a_caller_stay_his(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    save_figure(small_figure(), tmp_path / "a.png")
    assert dict(mpl.rcParams) == before


def linear(colour: str) -> NDArray[np.float64]:
    values = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    return float(XYZ[1] @ linear(colour))


def contrast(colour: str, ground: str) -> float:
    dark, light = sorted((luminance(colour), luminance(ground)))
    return (light + 0.05) / (dark + 0.05)


def lab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    x, y, z = np.cbrt(XYZ @ np.clip(rgb, 0.0, 1.0) / WHITE)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize(
    "colours", [(*palette.LINES, palette.INK), (*palette.LINES_ON_DARK, palette.INK_ON_DARK)]
)
def test_lines_are_told_apart(colours: tuple[str, ...], sight: str) -> None:
    seen = {colour: lab(SIGHTS[sight] @ linear(colour)) for colour in colours}
    distance, *pair = min(
        (np.linalg.norm(seen[a] - seen[b]), a, b) for a, b in combinations(seen, 2)
    )
    assert distance >= 20, pair


def test_all_that_is_drawn_stands_out_from_its_ground() -> None:
    on_white = [*palette.LINES, palette.INK, *palette.capacity_colours(5)]
    assert min(contrast(colour, palette.GROUND) for colour in on_white) >= 3
    on_dark = [*palette.LINES_ON_DARK, palette.INK_ON_DARK]
    assert min(contrast(colour, palette.DARK_GROUND) for colour in on_dark) >= 3
    for ink, ground in (
        (palette.INK, palette.GROUND),
        (palette.INK_ON_DARK, palette.DARK_GROUND),
    ):
        assert contrast(ink, ground) >= 7


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_smaller_capacities_are_lighter(count: int) -> None:
    lights = [luminance(colour) for colour in palette.capacity_colours(count)]
    assert all(larger < smaller for larger, smaller in pairwise(lights))


def test_more_examples_are_darker() -> None:
    lights = [
        luminance(palette.shade(palette.NONE_TO_MANY, share)) for share in np.linspace(0, 1, 20)
    ]
    assert all(few > many for few, many in pairwise(lights))


def test_no_two_of_many_lines_look_alike() -> None:
    count = len(palette.LINES) * len(palette.DASHES)
    assert len({palette.line_style(place) for place in range(count)}) == count
