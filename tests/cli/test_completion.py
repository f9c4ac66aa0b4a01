"""Shell completion: names, keys, values and runs, without loading PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools import completions

from submodel.cli.completion import known_keys
from submodel.config import parse

CODE = (
    "import sys; sys.modules['torch'] = None; sys.argv = ['submodel']; "
    "from submodel.cli import main; main()"
)


def _run(instruction: str, cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the command like a shell."""
    from submodel.cli import main

    monkeypatch.setenv("_SUBMODEL_COMPLETE", instruction)
    monkeypatch.setattr("sys.argv", ["submodel"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.chdir(cwd)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0


CASES = {
    "a command": (["comp"], ["compare"]),
    "an option": (["train", "--dry"], ["--dry-run"]),
    "a key with one value": (["train", "--set", "train.rou"], ["train.rounds=200"]),
    "keys": (["train", "--set", "server.be"], ["server.beta1=", "server.beta2="]),
    "a value": (["train", "--set", "scheme.name", "=", "rol"], ["rolling"]),
    "a quoted value": (["train", "--set", "'scheme.name=rol"], ["rolling"]),
    "values": (["train", "--set", "model.name", "=", "pre"], ["preresnet18", "preresnet34"]),
    "a key of one scheme": (["cost", "--set", "scheme.wind"], ["scheme.windows="]),
    "a model": (["inspect", "gp"], ["gpt"]),
    "data": (["data", "fash"], ["fashion-mnist"]),
    "a partition": (["data", "mnist", "--partition", "dir"], ["dirichlet"]),
    "ways": (["compare", "rolling,sta"], ["rolling,static"]),
    "an engine": (["train", "--engine", "tor"], ["torchrun"]),
    "a figure": (["report", "runs/mine", "--figure", "traf"], ["traffic"]),
    "a hidden command": (["sco"], []),
    "a choice": (["export", "runs/mine", "--format", "onn"], ["onnx"]),
    "runs": (["show", ""], ["runs/", "runs/mine", "runs/yours"]),
    "a run": (["resume", "runs/m"], ["runs/mine"]),
    "a run of a federation": (["federation", "status", "runs/y"], ["runs/yours"]),
    "a configuration": (["train", "my"], ["my.toml"]),
    "nothing there": (["show", "nowhere/"], []),
}


@pytest.mark.parametrize("case", CASES)
def test_bash_is_offered_what_can_follow(
    case: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("mine", "yours"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.toml").touch()
    (tmp_path / "my.toml").touch()
    words, completions = CASES[case]
    monkeypatch.setenv("COMP_WORDS", "\n".join(["submodel", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    _run("complete_bash", tmp_path, monkeypatch)
    assert sorted(capsys.readouterr().out.split()) == completions


def test_neither_pytorch_nor_what_else_is_large_is_loaded(tmp_path: Path) -> None:
    """It runs at every tab: 0.2 seconds of processor time on a slow machine."""
    variables = {"COMP_WORDS": "submodel\ntrain\n--set\nscheme.na", "COMP_CWORD": "3"}
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", CODE],
        env=os.environ | variables | {"_SUBMODEL_COMPLETE": "complete_bash"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "scheme.name=rolling" in result.stdout
    assert not {"torch", "matplotlib", "flwr"} & loaded
    assert len(loaded) < 600  # 450 today


def test_the_file_of_keys_is_that_of_the_code() -> None:
    assert completions.KEYS.read_text("utf-8") == completions.text(), "run make graph"


def test_every_key_of_the_configuration_is_offered() -> None:
    sections = parse({}).model_dump()
    keys = {
        f"{section}.{key}" if isinstance(values, dict) else section
        for section, values in sections.items()
        for key in (values if isinstance(values, dict) else [""])
    }
    assert keys <= known_keys().keys()


def test_bash_is_told_how_to_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _run("source_bash", tmp_path, monkeypatch)
    assert "complete -o default -F _submodel_completion submodel" in capsys.readouterr().out
