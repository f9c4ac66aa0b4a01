"""Nothing of the public interface is missing, and the page of its modules agrees with the code."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from tests.interface import FILE, documented_modules, former_modules, offered_names, read_interface
from tests.support.commands import Command

Things = dict[str, list[str]]
KEPT: dict[str, Things] = json.loads(FILE.read_text("utf-8"))
MODULES = dict(documented_modules())
FORMER = dict(former_modules())
TINY = ("data.examples=40", "data.test_examples=20", "clients.count=4", "clients.per_round=2",
        "model.name=mlp", "model.width=4", "train.rounds=1", "engine.name=local")  # fmt: skip


def _missing(things: Things, others: Things) -> Things:
    """List the entries that the others lack."""
    missing = {t: [o for o in names if o not in others.get(t, [])] for t, names in things.items()}
    return {t: names for t, names in missing.items() if names or t not in others}


@pytest.mark.parametrize("part", KEPT)
def test_nothing_that_users_may_rely_on_is_gone(part: str) -> None:
    assert not _missing(KEPT[part], read_interface()[part])


@pytest.mark.parametrize("part", KEPT)
def test_new_parts_are_kept_from_now_on(part: str) -> None:
    assert not _missing(read_interface()[part], KEPT[part]), "run python -m tests.interface"


@pytest.mark.parametrize("module", [m for m in MODULES if m not in FORMER])
def test_the_page_of_modules_lists_what_each_offers(module: str) -> None:
    assert sorted(MODULES[module]) == sorted(offered_names(module))


@pytest.mark.parametrize("path", FORMER)
def test_former_paths_lead_to_the_same_objects(path: str) -> None:
    today = importlib.import_module(FORMER[path])
    former = importlib.import_module(path)
    for name in MODULES[path]:
        assert getattr(former, name) is getattr(today, name)


def test_the_theory_is_found_by_its_former_name() -> None:
    former = importlib.import_module("submodel.theory")
    assert former is importlib.import_module("submodel_lab.theory")


def test_a_run_has_the_files_and_entries_of_the_page(submodel: Command, tmp_path: Path) -> None:
    words = [word for text in TINY for word in ("--set", text)]
    assert submodel("train", *words, "--out", tmp_path / "run").returncode == 0
    files = {path.name for path in (tmp_path / "run").iterdir() if path.is_file()}
    listed = set(KEPT["pages"]["files of a run"])
    at_the_end = {"config.toml", "metrics.jsonl", "coverage.jsonl", "layers.json", "begun-in.txt",
                  "data.json", "model.safetensors", "summary.json", "curves.png"}  # fmt: skip
    assert at_the_end <= files
    assert files - {".lock"} <= listed
    line = json.loads((tmp_path / "run/metrics.jsonl").read_text("utf-8"))
    named = {entry.split("_")[0] for entry in KEPT["pages"]["metrics"]}
    assert {"round", "clients", "train_loss", "coverage", "bytes_down", "bytes_up"} <= line.keys()
    assert {key.split("_")[0] for key in line} <= named


def test_exit_codes_are_those_of_the_page(submodel: Command, tmp_path: Path) -> None:
    assert KEPT["pages"]["exit codes"] == ["0", "1", "2", "130"]
    assert submodel("config", cwd=tmp_path).returncode == 0
    assert submodel("plan", "--set", "model.name=mlp", "--memory", "1B").returncode == 1
    wrong = submodel("train", "--set", "train.rounds=none", cwd=tmp_path)
    assert (wrong.returncode, wrong.stderr.split(":")[0]) == (2, "error")
