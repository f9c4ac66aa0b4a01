"""The gallery: every scheme has a section and pictures that show its cuts."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from tools.gallery.__main__ import FOLDER
from tools.gallery.nets import draw_nets
from tools.gallery.scenes import ANIMATIONS, ROUNDS, SCENES, UNITS, play
from tools.gallery.strips import draw_strips
from tools.packages import ROOT

from submodel.schemes.builtin_schemes import SCHEMES

PAGE = (ROOT / "docs/gallery.md").read_text("utf-8")
TRAINED = {"importance", "pruned"}  # from a run


def test_every_scheme_has_its_section_and_its_picture() -> None:
    assert {scene.name for scene in SCENES.values()} == set(SCHEMES.entries)
    sections = re.findall(r"^## `([\w-]+)`$", PAGE, flags=re.MULTILINE)
    assert sorted(sections) == sorted(SCHEMES.entries)
    for name in sections:
        text = PAGE.split(f"## `{name}`\n")[1].split("\n## ")[0]
        assert f"](images/gallery/{name}.svg)" in text


@pytest.mark.docs
def test_every_picture_is_shown_and_small() -> None:
    names = {*(f"{name}.svg" for name in SCENES), *(f"{name}-nets.svg" for name in ANIMATIONS)}
    assert {path.name for path in FOLDER.iterdir()} == names
    assert set(re.findall(r"\(images/gallery/([\w.-]+)\)", PAGE)) == names
    for name in names:
        markup = (FOLDER / name).read_text("utf-8")
        ElementTree.fromstring(markup)
        assert len(markup) < 150_000


@pytest.mark.parametrize("name", [name for name in SCENES if SCENES[name].name not in TRAINED])
def test_pictures_are_those_of_the_schemes(name: str) -> None:
    played = play(SCENES[name])
    assert (FOLDER / f"{name}.svg").read_text("utf-8") == draw_strips(played), "run make gallery"
    if name in ANIMATIONS:
        moving = (FOLDER / f"{name}-nets.svg").read_text("utf-8")
        assert moving == draw_nets(played), "run make gallery"


def test_scenes_show_what_the_page_says() -> None:
    rolling = play(SCENES["rolling"]).levels["first"]
    assert [set(levels.sum(0).tolist()) for levels in rolling] == [{24}, {12}, {6}, {3}]
    deal = play(SCENES["partition"]).levels["first"]
    assert np.array_equal(np.sum(deal, axis=0), np.ones((ROUNDS, UNITS)))
    one, two, three, four = play(SCENES["hierarchical"]).levels["first"]
    assert np.array_equal(one, three)
    assert np.array_equal(two, 1 - one)
    assert np.array_equal(two, four)
    nested = play(SCENES["ordered"]).levels["first"]
    assert all((np.diff(levels, axis=1) <= 1e-12).all() for levels in nested)
    dropout = play(SCENES["dropout"]).levels["first"]
    assert [set(levels.sum(1).tolist()) for levels in dropout] == [{18}, {12}, {6}, {3}]
