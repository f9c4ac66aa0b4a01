"""The words of the code: names that are bare participles, and names that two modules define.

python -m tools.words    # counts both, and lists where
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "submodel"
_IRREGULAR = {
    *("own", "found", "given", "kept", "held", "hands", "made", "seen", "said", "told", "left"),
    *("gone", "sent", "known", "shown", "drawn", "taken", "begun", "done", "lost", "met", "built"),
    *("bound", "chosen", "fed", "grown", "hidden", "laid", "led", "lent", "paid", "sold", "spent"),
    *("stood", "taught", "thought", "thrown", "torn", "won", "worn", "written", "wound"),
}
_NO_PARTICIPLES = {"seed", "need", "speed", "feed", "embed", "shared", "bed"}


def participles(source: Path = SOURCE) -> dict[str, Counter[str]]:
    """Names of a single word that is a participle, and in which files they are bound, how often."""
    places: dict[str, Counter[str]] = defaultdict(Counter)
    for file, tree in _trees(source):
        for name in _bound_names(tree):
            if _is_participle(name.strip("_")):
                places[name][file] += 1
    return dict(places)


def doubled_names(source: Path = SOURCE) -> dict[str, list[str]]:
    """Public names that are defined at the top of more than one module, and where."""
    modules: dict[str, set[str]] = defaultdict(set)
    for file, tree in _trees(source):
        for name in _top_names(tree.body):
            if not name.startswith("_"):
                modules[name].add(file)
    return {name: sorted(files) for name, files in modules.items() if len(files) > 1}


def _trees(source: Path) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(source.rglob("*.py")):
        yield str(path.relative_to(source)), ast.parse(path.read_text("utf-8"))


def _is_participle(word: str) -> bool:
    regular = word.lower().endswith("ed") and "_" not in word
    return word.lower() in _IRREGULAR or (regular and word.lower() not in _NO_PARTICIPLES)


def _bound_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def _top_names(body: Iterable[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))


def _show(title: str, lines: Mapping[str, object]) -> None:
    print(f"{len(lines)} {title}")
    for name, where in sorted(lines.items()):
        print(f"  {name}: {where}")


if __name__ == "__main__":
    _show("doubled names", doubled_names())
    _show("bare participles", {n: dict(places) for n, places in participles().items()})
