"""The generated parts of docs/ match the code: import graph, packages, keys; named files exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools import commands, components, graph
from tools.packages import ROOT, Packages, read_packages
from tools.pages import ARCHITECTURE, COMMANDS, CONFIGURATION, PICTURE, part
from tools.picture import PLACES, drawn_edges

from submodel.config import parse
from submodel.core.errors import ConfigError

PACKAGES = read_packages()


def test_the_import_graph_is_that_of_the_code() -> None:
    assert part(ARCHITECTURE, "import graph") == graph.section(PACKAGES), "run make graph"


def test_the_picture_has_the_arrows_of_the_code() -> None:
    assert drawn_edges(PICTURE) == PACKAGES.edges, "run make graph"


@pytest.mark.slow
def test_the_keys_are_those_of_the_code() -> None:
    assert part(CONFIGURATION, "keys") == components.page(), "run make graph"


def test_the_commands_are_those_of_the_application() -> None:
    assert part(COMMANDS, "commands") == commands.page(), "run make graph"


def test_every_kind_of_component_is_on_the_page_of_the_configuration() -> None:
    source = [path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py")]
    groups = re.findall(r'(?:group=|GROUP = )"(submodel\.\w+)"', "\n".join(source))
    assert len(groups) == len(set(groups)) >= 12
    page = CONFIGURATION.read_text("utf-8")
    assert not [group for group in groups if f"entry points: `{group}`" not in page]


def test_arrows_that_follow_from_others_are_left_out_and_all_go_down() -> None:
    imports = {("a", "b"): 1, ("b", "c"): 2, ("a", "c"): 3, ("c", "core"): 1, ("a", "core"): 5}
    packages = Packages(("a", "b", "c", "core"), imports)
    assert packages.edges == [("a", "b"), ("b", "c"), ("c", "core")]
    assert packages.below("a") == {"core": 5, "c": 3, "b": 1}
    assert set(PLACES) == set(PACKAGES.names)
    assert all(PLACES[by] < PLACES[to] for by, to in PACKAGES.imports)  # down, or to the right


@pytest.mark.docs
def test_the_list_of_packages_is_that_of_the_layers() -> None:
    block = _packages_block()
    listed = re.findall(r"^(\w+)(?:/|\.py) ", block, re.MULTILINE)
    assert listed == list(PACKAGES.names)


@pytest.mark.docs
def test_every_file_in_the_list_of_packages_is_there() -> None:
    room = ""
    for line in _packages_block().splitlines():
        room = line.split("/")[0] if re.match(r"\w+/", line) else room
        for name in re.findall(r"\b[\w/]+\.py\b|\b\w+/(?=[ :,;]|$)", line):
            places = ROOT / "src/submodel", ROOT / "src/submodel" / room
            found = [p for p in places if (p / name).exists() or [*p.glob(f"*/{name}")]]
            assert found, f"{room}: {name}"


def _packages_block() -> str:
    return ARCHITECTURE.read_text("utf-8").split("## Packages")[1].split("```")[1].strip("\n")


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if page.parent.name != "extending"]  # whose files are examples
NOT_OURS = {"my_schemes.py", "mine.py", "nets.py", "pull.py", "checkpoints/"}  # a reader's, a run's


@pytest.mark.docs
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text("utf-8")
    names = set(re.findall(r"`([\w./-]+(?:\.py|/))`", text)) - NOT_OURS
    names |= set(re.findall(r"\]\(([^)#:]+)[^):]*\)", text))  # links
    places = ROOT, page.parent, ROOT / "src/submodel", ROOT / "tests", ROOT / "examples"
    assert not [name for name in sorted(names) if not any((p / name).exists() for p in places)]


def test_the_mistakes_that_the_page_shows_are_answered_so() -> None:
    wrong = {
        "data": {"partition": "iid", "alpha": 0.1},
        "scheme": {"name": "static", "windows": 8},
        "local": {"momentun": 0.5},
    }
    shown = CONFIGURATION.read_text("utf-8").split("tests/test_graph.py -->\n```\n")[1]
    with pytest.raises(ConfigError) as error:
        parse(wrong)
    assert list(error.value.problems) == shown.split("\n```")[0].splitlines()
