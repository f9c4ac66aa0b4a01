"""The site has every page, and its reference every public name."""

from __future__ import annotations

import re

import submodel
from tests.docs.blocks import ROOT, TUTORIAL

SITE = (ROOT / "mkdocs.yml").read_text("utf-8")


def test_every_page_is_in_the_navigation_once() -> None:
    listed = re.findall(r"^ +- (?:[^:\n]+: )?([\w/-]+\.md)$", SITE, re.MULTILINE)
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert sorted(listed) == sorted({*pages, "contributing.md", "changelog.md"})


def test_the_steps_of_the_tutorial_are_tried_in_the_order_of_the_site() -> None:
    steps = re.findall(r"- tutorial/([\w-]+)\.md", SITE)
    assert steps == ["index", *TUTORIAL, "devices"]


def test_the_reference_has_every_public_name_once() -> None:
    page = (ROOT / "docs/reference/python.md").read_text("utf-8")
    assert sorted(re.findall(r"^::: submodel\.(\w+)$", page, re.MULTILINE)) == submodel.__all__


def test_nothing_is_fetched_from_elsewhere() -> None:
    assert "font: false" in SITE
    assert "allow_inspection: false" in SITE  # nor is the code imported
    assert "https://" not in SITE
