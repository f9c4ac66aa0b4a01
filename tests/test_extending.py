"""The recipes of docs/extending work as they stand, and there is one for every kind."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from submodel.config.reading import section_class
from submodel.config.sections import TRACKERS, Config
from submodel.core.registry import Registry, find
from submodel.data.builtin_data import AUGMENTATIONS, TOKENS
from submodel.tasks.builtin_tasks import METRICS

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs/extending").glob("*.md"))
PAGE = "\n".join(path.read_text("utf-8") for path in PAGES)
FILES = dict(re.findall(r"<!-- (\w+)\.py -->\n```python\n(.*?)```", PAGE, re.DOTALL))
TESTS = [name for name in FILES if name.startswith("test_")]
OFFERS = re.findall(r'\[project\.entry-points\."([\w.]+)"\]\n(\w+) = "my_package\.([\w:]+)"', PAGE)
KINDS: list[Registry[Any]] = [
    *(AUGMENTATIONS, METRICS, TOKENS, TRACKERS),
    *(kind for name in Config.model_fields
      for kind in getattr(section_class(name), "choices", {}).values()),
]  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder with the recipes' files."""
    for name, code in FILES.items():
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", TESTS)
def test_a_recipe_passes_its_own_test(name: str, tmp_path: Path) -> None:
    module = importlib.import_module(name)
    tests = [f for n, f in inspect.getmembers(module, inspect.isfunction) if n.startswith("test_")]
    assert tests
    for test in tests:
        test(*[tmp_path for _ in inspect.signature(test).parameters])


def test_every_recipe_has_its_code_its_test_and_its_registration() -> None:
    recipes = len(re.findall(r"^## An? ", PAGE, re.MULTILINE))
    assert recipes == len(TESTS) == len(OFFERS) == 13
    assert set(FILES) == {*TESTS, *(name.removeprefix("test_") for name in TESTS)}
    for name in FILES.keys() - set(TESTS):
        assert 10 <= len([line for line in FILES[name].splitlines() if line.strip()]) <= 25


@pytest.mark.parametrize(("group", "name", "path"), OFFERS)
def test_what_is_registered_is_there(group: str, name: str, path: str) -> None:
    (kind,) = [kind for kind in KINDS if kind.group == group]
    assert callable(find(path, kind.key))
    target = path.partition(":")[2]
    assert re.search(rf'`"{name}": Entry\("submodel\.[\w.]+:{target}"', PAGE)
    assert name not in kind.entries


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.noun)
def test_the_table_says_where_each_kind_is_registered(kind: Registry[Any]) -> None:
    row = rf"\| {kind.noun} \| `{kind.key}` \| `([\w./]+)` \| `{re.escape(kind.group)}` \|"
    (file,) = re.findall(row, PAGE)
    assert f'key="{kind.key}"' in (ROOT / file).read_text() or kind is TRACKERS
    assert "entries={" in (ROOT / file).read_text()


def test_the_entry_points_are_toml() -> None:
    for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL):
        assert tomllib.loads(block)["project"]["entry-points"]


def test_the_commands_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make ([\w-]+)`", (ROOT / "CONTRIBUTING.md").read_text("utf-8")):
        assert f"\n{target}:" in makefile
