"""The plain installation, for devices: missing features and their messages.

Every import of the source is declared, and the wheel contains everything that the command needs to
start.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn", "mlflow": "mlflow-skinny"}
"""Distributions whose name differs from their import."""

HEAVY = ("scipy", "sklearn", "matplotlib")
COMMANDS = f"""
import json, sys
for name in {HEAVY!r}:
    sys.modules[name] = None  # as if it was not installed: importing it fails
from submodel.cli import main
import submodel.federation.device, submodel.federation.own_data, submodel.tasks.training
import submodel.federation.flower.client_app
for words in json.loads(sys.argv[1]):
    sys.argv = ["submodel", *words]
    try:
        main()
    except SystemExit as end:
        print(f"\\nexit {{end.code or 0}}", flush=True)
"""
SETTINGS = (
    *("model.name=mlp", "model.width=4", "data.size=8", "data.partition=iid", "train.rounds=1"),
    *("clients.count=2", "clients.per_round=1", "engine.name=local"),
)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    for part, count in (("train", 6), ("test", 2)):
        for label in ("cat", "dog"):
            folder = tmp_path / "pictures" / part / label
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "pictures"


def test_a_device_needs_none_of_what_only_servers_have(tmp_path: Path, pictures: Path) -> None:
    """Everything for a device is there, a run works without curves, and other features name the
    extra.
    """
    given = [f"--set={text}" for text in (*SETTINGS, f"data.name=folder:{pictures}")]
    out = {name: str(tmp_path / name) for name in ("digits", "run", "compared", "study")}
    commands = [
        ["join", "--help"],
        ["train", *given, "--out", out["run"]],
        ["train", "--out", out["digits"]],
        ["compare", "static,full", *given, "--out", out["compared"]],
        ["study", "convergence", "--out", out["study"]],
    ]
    run = [sys.executable, "-c", COMMANDS, json.dumps(commands)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    ends = [line for line in done.stdout.splitlines() if line.startswith("exit ")]
    assert ends == ["exit 0", "exit 0", "exit 2", "exit 2", "exit 2"]
    assert "--credentials" in done.stdout
    printed = [
        x for x in done.stderr.splitlines() if x.endswith(": pip install 'submodel[server]'")
    ]
    packages = re.findall(r"'(matplotlib|sklearn|scipy)'", "\n".join(printed))
    assert sorted(packages) == ["matplotlib", "matplotlib", "scipy", "sklearn"]
    assert sum(line.startswith("error: ") for line in printed) == 3
    assert (tmp_path / "run/summary.json").is_file()
    assert not (tmp_path / "run/curves.png").exists()
    assert "curves:" not in done.stdout
    assert not (tmp_path / "compared/runs").exists()  # reported before anything runs


Imported = tuple[str, str]
"""Imports with the extra that a module may need: empty for none, "*" for any."""


def _imports(tree: ast.AST, extra: str) -> Iterator[Imported]:
    """Yield all imports below a node; inside a function, the user may have requested an extra."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((name.name, extra) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or "", extra
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.import_module":
            yield from ((str(a.value), extra) for a in node.args if isinstance(a, ast.Constant))
        inner = extra
        if isinstance(node, ast.With):
            asked = re.match(r"needs_extra\('(\w+)'", ast.unparse(node.items[0]))
            inner = asked[1] if asked else extra
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (
            isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        ):
            inner = extra or "*"
        yield from _imports(node, inner)


@pytest.mark.parametrize("package", ["src/submodel", "lab/submodel_lab"])
def test_every_import_is_declared(package: str) -> None:
    """By the project, or by the extra of its module, not by the requirements of another
    distribution.
    """
    folder = ROOT / package
    settings = ROOT / "pyproject.toml" if "src" in package else folder.parent / "pyproject.toml"
    project = tomllib.loads(settings.read_text("utf-8"))["project"]
    extras = {n: _names(needs) for n, needs in project.get("optional-dependencies", {}).items()}
    always = _names(project["dependencies"])
    offered = {"": set(), **extras}
    offered["*"] = set().union(*(extras[name] for name in extras.keys() - {"dev", "docs"}))
    undeclared = []
    for path in sorted(folder.rglob("*.py")):
        place = path.relative_to(folder).as_posix()
        extra = "flower" if place.startswith("federation/flower/") else ""
        for module, needed in _imports(ast.parse(path.read_text("utf-8")), extra):
            top = module.partition(".")[0]
            name = DISTRIBUTIONS.get(top, top).replace("_", "-")
            ours = top in sys.stdlib_module_names or top == folder.name or place == "theory.py"
            if not ours and name not in always | offered.get(needed, set()):
                undeclared.append(f"{place}: {module} ({needed or 'without an extra'})")
    assert undeclared == []


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w-]", text)[0] for text in requirements}


def _python(words: list[str], folder: Path, **variables: str) -> str:
    command = [sys.executable, *words]
    environment = os.environ | variables
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_wheel_starts(tmp_path: Path) -> None:
    """It is built without a network, and uses the packages of this environment."""
    build = f"import hatchling.build; hatchling.build.build_wheel({str(tmp_path)!r})"
    _python(["-c", build], ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    site = str(tmp_path / "site")
    quick = ["--quiet", "--no-compile", "--disable-pip-version-check", "--no-deps", "--no-index"]
    _python(["-m", "pip", "install", *quick, "--target", site, str(wheel)], tmp_path)
    code = "import submodel; from submodel.cli import main; print(submodel.__file__); main()"
    for words, expected in ((["--help"], "Usage: submodel"), (["config"], "[model]")):
        printed = _python(["-c", code, *words], tmp_path, PYTHONPATH=site)
        assert printed.startswith(site)
        assert expected in printed
