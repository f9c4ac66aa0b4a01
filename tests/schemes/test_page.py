"""The page of schemes is complete, its scheme works, and packages can offer theirs by name."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from submodel.config import SchemeSection, parse
from submodel.errors import ConfigError
from submodel.prepare.setup import prepare
from submodel.schemes.registry import GROUP, SCHEMES
from submodel.testing import check_scheme

PAGE = (Path(__file__).parents[2] / "docs/schemes.md").read_text("utf-8")
RUN_HERE = r"tests/schemes/test_page.py -->\n```python\n(.*?)```"
CODE, WITH_MEMORY = re.findall(RUN_HERE, PAGE, re.DOTALL)

SHOWN = re.sub(r"<!--.*?-->", "", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize("name", SCHEMES.offers)
def test_every_scheme_has_its_line(name: str) -> None:
    assert f"\n| `{name}` |" in SHOWN


KEYS = {key for name in SCHEMES.offers for key in SCHEMES.find(name).options.model_fields}
KEYS |= SchemeSection.model_fields.keys()


@pytest.mark.parametrize("key", sorted(KEYS - {"name"}))
def test_every_key_is_explained(key: str) -> None:
    assert re.search(rf"`{key}\b", SHOWN)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with the page's scheme, as an installer leaves it."""
    (tmp_path / "schemes_of_the_page.py").write_text(CODE)
    info = tmp_path / "schemes_of_the_page-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: schemes-of-the-page\nVersion: 1.0\n")
    offer = "both-ends = schemes_of_the_page:FromBothEnds"
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{offer}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "schemes_of_the_page", raising=False)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["schemes_of_the_page:FromBothEnds", "both-ends"])
def test_the_pages_scheme_works_by_path_and_by_the_name_its_package_offers(name: str) -> None:
    choice = {"name": name, "options": {"period": 3}, "granularity": "unit"}
    assert len(check_scheme(choice)) == 8
    scheme = prepare(parse({"scheme": choice, "model": {"name": "mlp", "width": 8}})).scheme
    assert repr(scheme) == "FromBothEnds(period=3)"
    assert "both-ends" in SCHEMES.names()


def test_the_pages_scheme_with_a_memory_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memories_of_the_page.py").write_text(WITH_MEMORY)
    monkeypatch.syspath_prepend(tmp_path)
    checked = check_scheme("memories_of_the_page:MostChanged")
    assert len(checked) == 8
    assert all(what.startswith("coordinate: ") for what in checked)


@pytest.mark.usefixtures("installed")
def test_what_is_wrong_with_a_name_or_its_options_is_said() -> None:
    wrong = {
        "schemes_of_the_page:FromNowhere": "has no 'FromNowhere'",
        "schemes_of_this_page:FromBothEnds": "cannot import 'schemes_of_this_page'",
        "schemes_of_the_page:units_held": "cannot be made",
        "builtins:dict": "which is not a scheme: an object with select",
    }
    for name, reason in wrong.items():
        with pytest.raises(ConfigError, match=reason):
            prepare(parse({"scheme": {"name": name}, "model": {"name": "mlp"}}))
    with pytest.raises(ConfigError, match=r"scheme\.options: 'both-ends' does not take them"):
        prepare(parse({"scheme": {"name": "both-ends", "options": {"perid": 3}}}))
