"""Runs: unfinished and finished, with all files that commands add to their folders."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

import submodel
from submodel.runs import Interruption
from submodel.runs.checkpoint import model_sha256
from tests.compatibility.case import (
    Case,
    Observation,
    command_json,
    command_output,
    page_parts,
    sha256,
    without_times,
)

Sections = dict[str, Any]
HERE: Sections = {"name": "local", "batching": "never", "device": "cpu"}
IMAGES: Sections = {
    "data": {"name": "digits", "examples": 60, "test_examples": 40},
    "clients": {"count": 6, "per_round": 3, "capacities": [1, 0.5, 0.25]},
    "engine": HERE,
}
STOPPED: Sections = {
    **IMAGES,
    "name": "stopped",
    "model": {"name": "mlp", "width": 8},
    "server": {"name": "adam", "lr": 0.01},
    "local": {"optimiser_state": "kept"},
    "train": {"rounds": 6, "evaluate_every": 2},
}
TABLE = "data/table.csv"
KILLED: Sections = {
    "name": "killed",
    "model": {"name": "mlp", "width": 8},
    "data": {"name": f"csv:{TABLE}", "target": "kind", "client": "who"},
    "clients": {"per_round": 3, "capacities": [0.5]},
    "scheme": {"name": "pruned", "granularity": "coordinate", "every": 1},
    "server": {"name": "momentum"},
    "train": {"rounds": 6, "evaluate_every": 2, "checkpoint_every": 2},
    "engine": HERE,
}
CORPUS = "corpus"
TEXT: Sections = {
    "name": "text",
    "model": {"name": "gpt", "width": 8, "layers": 1, "heads": 2},
    "data": {"name": f"text:{CORPUS}", "tokens": "characters", "length": 16},
    "clients": {"per_round": 2, "capacities": [1, 0.5]},
    "scheme": {"name": "importance"},
    "merge": {"rule": "fill_in"},
    "local": {"optimiser": "adamw", "lr": 0.01, "steps": 2},
    "train": {"rounds": 4, "evaluate_every": 2},
    "engine": HERE,
}
FINISHED: Sections = {
    **IMAGES,
    "name": "finished",
    "model": {"name": "preresnet18", "width": 2},
    "data": {"name": "digits", "examples": 60, "test_examples": 40, "held_out": 0.1},
    "server": {"name": "momentum"},
    "train": {"rounds": 4, "evaluate_every": 2, "evaluate_clients": "submodel",
              "evaluate_train": True, "trackers": ["csv"]},
}  # fmt: skip


def train(folder: Path, config: Sections, until: int, stop: Callable[[], None]) -> None:
    """Train in ``folder / "run"`` from that folder; ``stop`` is called after a round."""

    def on_round(line: Mapping[str, Any]) -> None:
        if line["round"] == until:
            stop()

    with contextlib.chdir(folder), contextlib.suppress(Interruption):
        submodel.train(config=config, out="run", on_round=on_round, progress=False)


def interrupt() -> None:
    """Interrupt the run like Ctrl-C."""
    raise KeyboardInterrupt


def resumed(folder: Path, *words: str) -> Observation:
    """Resume the run in the folder that it was moved to, and return its result."""
    run = folder / "run"
    end = command_json("resume", "run", *words, cwd=folder)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "summary": without_times(end["summary"]),
        "lines": without_times(lines),
        "memory": model_sha256(load_file(run / "memory.safetensors")),
    }


def read_unfinished(folder: Path) -> Observation:
    """Read an unfinished run; its seed may not determine the holders."""
    command_output("report", "run", cwd=folder)
    return {
        "show": command_json("show", "run", cwd=folder),
        "page": page_parts(folder / "run/report.html"),
    }


def write_stopped(folder: Path) -> None:
    train(folder, STOPPED, 3, interrupt)


def write_killed(folder: Path) -> None:
    """Write a run killed after round 3, with a partial line; round 2 was saved."""
    draw = random.Random(0)
    file = folder / TABLE
    file.parent.mkdir()
    rows = ["size,colour,kind,who"]
    for number in range(80):
        colour, noise = draw.choice(("red", "blue")), round(draw.gauss(0, 1), 2)
        kind = "tree" if noise + (colour == "red") > 0.5 else "bush"
        rows.append(f"{noise},{colour},{kind},owner{number % 4}")
    file.write_text("\n".join(rows) + "\n")
    if not (child := os.fork()):
        train(folder, KILLED, 3, lambda: os._exit(9))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    metrics = folder / "run/metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:2]) + lines[2][: len(lines[2]) // 2])


def write_text(folder: Path) -> None:
    words = ("the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "while", "birds", "sang")
    draw = random.Random(1)
    (folder / CORPUS).mkdir()
    for owner in ("ann", "bob"):
        lines = [" ".join(draw.choices(words, k=6)) for _ in range(20)]
        (folder / CORPUS / f"{owner}.txt").write_text("\n".join(lines) + "\n")
    train(folder, TEXT, 2, interrupt)


def compute_text(folder: Path) -> Observation:
    """Compute with a text that was moved beside its run, and removed before generation."""
    shutil.copytree(folder / CORPUS, folder / "moved")
    shutil.rmtree(folder / CORPUS)
    command_output("resume", "run", "--set", "data.name=text:moved", cwd=folder)
    summary = json.loads((folder / "run/summary.json").read_text())
    scores = command_json("score", "run", cwd=folder)
    shutil.rmtree(folder / "moved")
    options = ["--prompt", "the ", "--tokens", "12", "--temperature", "1"]
    return {
        "summary": without_times(summary),
        "scores": scores,
        "generated": command_json("generate", "run", *options, cwd=folder),
    }


def write_finished(folder: Path) -> None:
    """Write a finished run with a damaged line of metrics and files of commands."""
    train(folder, FINISHED, 2, interrupt)
    metrics = folder / "run/metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text(lines[0][:50] + "\n" + "".join(lines[1:]))
    command_output("resume", "run", cwd=folder)
    command_output("fit", "run", "--capacity", "1/2", "--rounds", "2", cwd=folder)
    command_output("score", "run", cwd=folder)
    command_output("export", "run", "--capacity", "1/4", cwd=folder)


def read_finished(folder: Path) -> Observation:
    """Read a finished run."""
    command_output("report", "run", cwd=folder)
    plots = {}
    for name in ("accuracy", "coverage", "capacities", "phases", "partition", "traffic"):
        command_output("plot", name, "run", "--out", f"{name}.svg", cwd=folder)
        # matplotlib writes the texts of an SVG in comments
        plots[name] = re.findall(r"<!-- (.*?) -->", (folder / f"{name}.svg").read_text())
    return {
        "show": command_json("show", "run", cwd=folder),
        "runs": without_times(command_json("runs", ".", cwd=folder)),
        "watch": without_times(command_json("watch", "run", cwd=folder)),
        "page": page_parts(folder / "run/report.html"),
        "plots": plots,
        "kept scores": command_json("score", "run", cwd=folder),
        "kept fit": command_json("fit", "run", "--capacity", "1/2", "--rounds", "2", cwd=folder),
    }


def compute_finished(folder: Path) -> Observation:
    """Compute exports, scores, and further rounds."""
    run = submodel.open(folder / "run")
    python = {
        "repr": repr(run),
        "config": run.config.model_dump(mode="json", exclude_none=True),
        "metrics": run.metrics,
        "model": model_sha256(run.model.state_dict()),
        "submodel": model_sha256(run.submodel("1/4").state_dict()),
        "fitted": model_sha256(run.submodel("1/2").state_dict()),
        "is fitted": [run.is_fitted(capacity) for capacity in ("1/4", "1/2")],
        "clients": run.client_scores(),
    }
    exported = {}
    for capacity in ("1", "1/2", "1/4"):
        out = folder / f"out-{capacity[-1]}"
        shown = command_json("export", "run", "--capacity", capacity, "--out", out, cwd=folder)
        about = json.loads((out / "model.json").read_text())
        bytes_ = sha256((out / "model.safetensors").read_bytes())
        exported[capacity] = {"said": shown, "about": about, "sha256": bytes_}
    copy = folder / "without data"
    shutil.copytree(folder / "run", copy / "run")
    (folder / "run/scores.json").unlink()
    scores = command_json("score", "run", cwd=folder)
    extended = resumed(folder, "--set", "train.rounds=5")
    return {
        "python": python,
        "exported": exported,
        "without data": compute_without_data(copy),
        "scores": scores,
        "extended": extended,
    }


def compute_without_data(folder: Path) -> Observation:
    """Compute exports without the data, from the run's folder."""
    file = folder / "run/config.toml"
    text = file.read_text()
    assert text.count('name = "digits"') == 1
    file.write_text(text.replace('name = "digits"', 'name = "folder:gone"'))
    shown = command_json("export", "run", "--capacity", "1/4", "--out", "out", cwd=folder)
    return {"said": shown, "sha256": sha256((folder / "out/model.safetensors").read_bytes())}


CASES = (
    Case("stopped-run", write_stopped, read_unfinished, resumed),
    Case("killed-run", write_killed, read_unfinished, resumed),
    Case("text-run", write_text, read_unfinished, compute_text),
    Case("finished-run", write_finished, read_finished, compute_finished),
)
