"""Readers of pages, screens and figures: any file of a folder of results, with valid files."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from rich.console import Console

from submodel.config import parse, to_toml
from submodel.report.live.following import snapshot
from submodel.report.live.terminal import show_once
from submodel.report.page import page_data
from submodel.report.plots.figure_kinds import FIGURES
from submodel.runs.folder import FullScores, RunFolder
from tests.deep import mutate
from tests.deep.reader import Reader
from tests.support.records import make_comparison, make_study
from tests.support.run_folders import evaluated, write_run
from tests.support.runs import run

_CONFIG: dict[str, Any] = {
    "model": {"name": "mlp", "width": 4},
    "clients": {"count": 6, "per_round": 3, "capacities": [1, 0.5]},
    "train": {"rounds": 3, "evaluate_every": 1},
}
_SCHEMES: dict[str, dict[str, Any]] = {
    "units": {"name": "importance"},  # its cuts are in the file, as they depend on the model
    "weights": {"name": "random", "granularity": "coordinate"},
}
_ELSEWHERE = {"data": {"name": "own"}}  # a page does not make such a model again


@cache
def _whole_run(kind: str) -> dict[str, bytes]:
    """Make the files of a run that was trained, scored and partly fitted."""
    config = {**_CONFIG, "scheme": _SCHEMES[kind]}
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name) / "run")
        summary = run(folder.path, parse(config))
        scores = {"test_loss": 1.0, "test_accuracy": 0.5, "capacity_accuracy": {"0.5": 0.25}}
        FullScores(summary["model_sha256"], scores, [(1.0, 0.5)]).write(folder)
        files = (*folder.path.glob("*.json*"), folder.config_file)
        contents = {file.name: file.read_bytes() for file in files}
    fit = {"capacity": 0.5, "cut": "prefix", "units": {"1": [0, 1]}, "score": {"accuracy": 0.5}}
    fit |= {"score_before": {"accuracy": 0.25}, "global_score": {"accuracy": 0.75}, "rounds": 2}
    fit |= {"bytes_down": 10, "bytes_up": 20, "flops": 30, "parameters": 40, "fitted_sha256": ""}
    fit["model_sha256"] = summary["model_sha256"]
    contents["fit/capacity-0.5/fit.json"] = json.dumps(fit, indent=2).encode()
    contents["config.toml"] = to_toml(parse({**config, **_ELSEWHERE})).encode()
    return contents


def run_folder(folder: Path) -> None:
    """Make a run whose page shows everything."""
    _lay_out(folder, "units")


def run_folder_of_weights(folder: Path) -> None:
    """Make a run at coordinate granularity."""
    _lay_out(folder, "weights")


def _lay_out(folder: Path, kind: str) -> None:
    for name, content in _whole_run(kind).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def files_of_runs(name: str) -> tuple[bytes, ...]:
    """Return the files of this name of such runs."""
    return tuple(_whole_run(kind)[name] for kind in _SCHEMES)


def file_of_run(name: str, kind: str) -> tuple[bytes, ...]:
    """Return a file of a run of this kind."""
    return (_whole_run(kind)[name],)


def read_page(folder: Path) -> object:
    """Return the page of a folder in the form for a browser."""
    data = page_data([folder])
    return json.dumps(data, allow_nan=False)


def read_page_of(path: Path) -> object:
    """Read the page of the folder of a file."""
    return read_page(path.parent)


def read_page_of_fit(path: Path) -> object:
    """Read the page of the run of a fitted sub-model."""
    return read_page(path.parents[2])


def read_screen(path: Path) -> object:
    """Return the output of `submodel watch` for the folder of a file, as text and JSON."""
    show_once(path.parent, Console(file=io.StringIO(), width=100, markup=False))
    return json.dumps(snapshot(path.parent), default=str)


def read_figures(path: Path) -> list[object]:
    """Draw the figures of a run."""
    names = ("accuracy", "capacities", "phases")
    return [FIGURES[name].draw(FIGURES[name].read([path.parent]), 3.3) for name in names]


# Comparisons, studies and experiments


def comparison_folder(folder: Path) -> None:
    """Make the records of a comparison without its runs."""
    with tempfile.TemporaryDirectory() as name:
        records = make_comparison(Path(name) / "comparison", seeds=2) / "records"
        shutil.copytree(records, folder, dirs_exist_ok=True)


def file_of_comparison(name: str) -> tuple[bytes, ...]:
    """Return a file of a comparison."""
    with tempfile.TemporaryDirectory() as folder:
        comparison_folder(Path(folder))
        return ((Path(folder) / name).read_bytes(),)


def study_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    make_study(folder)


def studies() -> tuple[bytes, ...]:
    """Return the file of a study."""
    with tempfile.TemporaryDirectory() as folder:
        return ((make_study(Path(folder) / "study") / "tiny.json").read_bytes(),)


def experiment_folder(folder: Path) -> None:
    """Make an experiment with two started runs."""
    write_run(folder / "runs/way/seed-0", [evaluated(4, 0.5)], is_finished=True)
    write_run(folder / "runs/way/seed-1", [evaluated(1, 0.25), evaluated(2, 0.5)])


def plans() -> tuple[bytes, ...]:
    """Return the plan of an experiment."""
    runs = [
        {"path": f"runs/{name}", "rounds": 4, "seconds": 10.0, "has_ended": has_ended}
        for name, has_ended in (("way/seed-0", True), ("way/seed-1", False), ("b/seed-0", False))
    ]
    plan = {"began": 1000.0, "parallel": 2, "runs": runs, "work_at_begin": 40.0}
    plan |= {"work_before": 100.0, "work_beyond": 500.0, "has_estimates": True}
    return (json.dumps(plan, indent=1).encode(),)


def rosters() -> tuple[bytes, ...]:
    """Return a server's roster of devices."""
    report = {"name": "mine", "examples": 5, "labels": [0, 2], "capacity": 0.5}
    device = {"client": 0, "report": report, "present": False, "last_problem": "late"}
    return (json.dumps([device, {**device, "client": 1, "present": True}], indent=2).encode(),)


def _of_run(read: Callable[[Path], object], file: str, kind: str | None = None) -> Reader:
    """Reader of a file of a run of either kind."""
    seeds = partial(files_of_runs, file) if kind is None else partial(file_of_run, file, kind)
    before = run_folder_of_weights if kind == "weights" else run_folder
    return replace(_of(read, file, seeds, before), takes_what_it_can=True)


def _of(
    read: Callable[[Path], object],
    file: str,
    seeds: Callable[[], tuple[bytes, ...]],
    before: Callable[[Path], None],
) -> Reader:
    return Reader(read, file, seeds, mutate.text, before, cases=2_000)


def of_comparison(read: Callable[[Path], object], file: str) -> Reader:
    """Reader of a file among the records of a comparison."""
    return _of(read, file, partial(file_of_comparison, file), comparison_folder)


def _refusing(reader: Reader) -> Reader:
    return replace(reader, takes_what_it_can=False)


PAGE_READERS = {
    "page coverage": _of_run(read_page_of, "coverage.jsonl", "units"),
    "page weights": _of_run(read_page_of, "coverage.jsonl", "weights"),
    "page layers": _of_run(read_page_of, "layers.json"),
    "page metrics": _of_run(read_page_of, "metrics.jsonl"),
    "page summary": _of_run(read_page_of, "summary.json"),
    "page scores": _of_run(read_page_of, "scores.json"),
    "page configuration": _refusing(_of_run(read_page_of, "config.toml")),
    "page fit": _of_run(read_page_of_fit, "fit/capacity-0.5/fit.json"),
    "page record": of_comparison(read_page_of, "rolling.json"),
    "page comparison": of_comparison(read_page_of, "comparison.json"),
    "page study": _of(read_page_of, "tiny.json", studies, study_folder),
    "screen metrics": _of_run(read_screen, "metrics.jsonl"),
    "screen configuration": _of_run(read_screen, "config.toml"),
    "screen devices": replace(
        _of(read_screen, "devices.json", rosters, run_folder), takes_what_it_can=True
    ),
    "screen plan": replace(
        _of(read_screen, "progress.json", plans, experiment_folder), takes_what_it_can=True
    ),
    "figures": _refusing(_of_run(read_figures, "metrics.jsonl")),
}
