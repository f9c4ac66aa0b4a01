"""Packages add commands, page sections and scales; without the laboratory, its parts are named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from submodel.comparison.plan import find_scale
from submodel.core.errors import ConfigError, SubmodelError
from submodel.report.page import document

# Run commands one after another; with "alone" as if no other package was installed.
COMMANDS = """
import importlib.metadata as metadata, json, sys
if sys.argv[2] == "alone":
    every = metadata.entry_points
    metadata.entry_points = lambda **given: (
        () if given.get("group", "").startswith("submodel.") else every(**given))
    sys.modules["submodel_lab"] = None
from submodel.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["submodel", *words]
    try:
        main()
    except SystemExit as end:
        print(f"exit {end.code or 0}", flush=True)
"""


def _run(
    commands: list[list[str]], folder: Path, *words: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    code = [sys.executable, "-c", COMMANDS, json.dumps(commands), *words]
    environment = os.environ | variables
    return subprocess.run(code, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_without_the_laboratory_its_parts_name_the_package(tmp_path: Path) -> None:
    commands = [
        ["study", "residual", "--trials", "3"],
        ["advise", "--fleet", "1:0.2,1/4:0.8"],
        ["reproduce", "all", "--scale", "small"],
        ["compare", "rolling,static", "--scale", "small"],
        ["study", "--help"],
        ["--help"],
    ]
    done = _run(commands, tmp_path, "alone")
    assert done.returncode == 0, done.stderr
    ends = [line for line in done.stdout.splitlines() if line.startswith("exit ")]
    assert ends == ["exit 2"] * 4 + ["exit 0"] * 2
    keys = ["submodel study: ", "submodel advise: ", "submodel reproduce: ", "--scale: 'small' "]
    for key, line in zip(keys, done.stderr.splitlines(), strict=True):
        assert line.startswith(f"error: {key}")
        assert line.endswith(": pip install submodel-lab")
    shown = " ".join(done.stdout.split())
    assert shown.count("(needs submodel-lab)") == 4  # in its own help and in the help of all
    assert not [*tmp_path.iterdir()]


def test_without_the_laboratory_records_keep_their_names_and_studies_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Path(__file__).parent.parent / "results/small"
    named = {run.title for run in document.read_folders([results]).runs}
    monkeypatch.setattr(document, "extensions", lambda _: {})
    contents = document.read_folders([results])
    slugs = {file.stem for file in results.glob("*.json")}
    assert {run.title for run in contents.runs} <= slugs
    assert not named & slugs
    assert not contents.tables
    with pytest.raises(SubmodelError, match="submodel-lab"):
        document.read_folders([tmp_path])


@pytest.mark.slow
def test_another_package_adds_a_command_and_one_that_fails_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "greeting.py").write_text(
        'def greet(name: str) -> None:\n    """Greet somebody."""\n    print(f"hello {name}")\n'
    )
    metadata = tmp_path / "greeting-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[submodel.commands]\ngreet = greeting:greet\nbroken = greeting:missing\n"
    )
    commands = [["greet", "you"], ["broken", "--at", "all"], ["--help"]]
    done = _run(commands, tmp_path, "together", PYTHONPATH=str(tmp_path))
    assert "hello you\nexit 0\nexit 2\n" in done.stdout, done.stderr
    assert "submodel.commands: 'broken' (greeting:missing) " in done.stderr
    assert "Traceback" not in done.stderr
    assert "Greet somebody." in done.stdout


def test_scales_are_found_by_name() -> None:
    assert find_scale("small").has_budget
    assert not find_scale("converged").has_budget
    with pytest.raises(ConfigError) as error:
        find_scale("huge")
    assert [problem.split(":")[0] for problem in error.value.problems] == ["--scale"]
