"""The site has every page, and its reference every public name."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import submodel
from tests.docs.blocks import ROOT, TUTORIAL
from tests.support.browser import Browser

SITE = (ROOT / "mkdocs.yml").read_text("utf-8")


@pytest.mark.docs
def test_every_page_is_in_the_navigation_once() -> None:
    listed = re.findall(r"^ +- (?:[^:\n]+: )?([\w/-]+\.md)$", SITE, re.MULTILINE)
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert sorted(listed) == sorted({*pages, "contributing.md", "changelog.md"})


@pytest.mark.docs
def test_the_steps_of_the_tutorial_are_tried_in_the_order_of_the_site() -> None:
    steps = re.findall(r"- tutorial/([\w-]+)\.md", SITE)
    assert steps == ["index", *TUTORIAL, "devices"]


def test_the_reference_has_every_public_name_once() -> None:
    page = (ROOT / "docs/reference/python.md").read_text("utf-8")
    assert sorted(re.findall(r"^::: submodel\.(\w+)$", page, re.MULTILINE)) == submodel.__all__


@pytest.mark.docs
def test_nothing_is_fetched_from_elsewhere() -> None:
    assert "font: false" in SITE
    assert "allow_inspection: false" in SITE  # nor is the code imported
    assert "https://" not in SITE


def test_search_has_a_worker_where_the_site_is_opened_as_files(
    tmp_path: Path, browser: Browser
) -> None:
    """Browsers give local files no workers; the worker of mkdocs.yml replaces them."""
    (script,) = re.findall(r"polyfills: \[(assets/[\w.-]+)\]", SITE)
    shutil.copy(ROOT / "docs" / script, tmp_path / "polyfill.js")
    (tmp_path / "worker.js").write_text(
        'importScripts("part.js").then(() => addEventListener("message", (event) => '
        "postMessage(event.data + part)));",
        "utf-8",
    )
    (tmp_path / "part.js").write_text("window.part = 1;", "utf-8")
    page = tmp_path / "index.html"
    page.write_text(
        '<!doctype html><body><p id="sentence"></p><script src="polyfill.js"></script><script>'
        'const worker = new Worker("worker.js");'
        'worker.addEventListener("message", (event) => { document.title = event.data; });'
        "const ask = () => { worker.postMessage(20); setTimeout(ask, 50); }; ask();</script>",
        "utf-8",
    )
    browser.open(page)
    browser.wait("return document.title === '21'")
    assert browser.problems() == []
