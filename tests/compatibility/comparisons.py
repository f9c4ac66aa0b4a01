"""Comparisons: finished, stopped between two runs, and the records in results/."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.compatibility.case import (
    Case,
    Observation,
    command_json,
    command_output,
    digest,
    page_parts,
    without_times,
)

RESULTS = Path(__file__).parents[2] / "results"
SETTINGS = (
    "model.name=mlp", "model.width=8", "data.examples=60", "data.test_examples=40",
    "clients.count=6", "clients.per_round=3", "train.rounds=4", "train.evaluate_every=2",
    "engine.name=local", "engine.batching=never", "engine.device=cpu",
)  # fmt: skip


def _compare(folder: Path, seeds: int) -> list[str | Path]:
    options = [word for text in SETTINGS for word in ("--set", text)]
    out = folder / "comparison"
    return ["compare", "static,rolling:order=sequential", *options, "--seeds", str(seeds),
            "--jobs", "1", "--out", out]  # fmt: skip


def write_comparison(folder: Path) -> None:
    command_output(*_compare(folder, 2), cwd=folder)
    for picture in folder.rglob("*.png"):
        picture.unlink()


def read_comparison(folder: Path) -> Observation:
    """Read the records, with the folders of the runs and without."""
    command_output("report", "comparison", "--out", "whole.html", cwd=folder)
    command_output("plot", "comparison", "comparison", "--out", "figure.svg", cwd=folder)
    listed = command_json("runs", "comparison", cwd=folder)
    listed["runs"].sort(key=lambda run: str(run["path"]))
    records = folder / "comparison/records"
    table = without_times(command_json("compare", "--records", records, cwd=folder))
    shutil.rmtree(folder / "comparison/runs")
    command_output("report", "comparison", "--out", "records.html", cwd=folder)
    return {
        "table": table,
        "runs": without_times(listed),
        "watch": sorted(command_json("watch", "comparison", cwd=folder)),
        "page": page_parts(folder / "whole.html"),
        "page of records": page_parts(folder / "records.html"),
    }


def compute_comparison(folder: Path) -> Observation:
    """Resume by the same command, with one missing run and one more seed."""
    stopped = folder / "comparison"
    shutil.rmtree(stopped / "records")
    shutil.rmtree(next(stopped.glob("runs/rolling*/seed-1")))
    before = _hashes(stopped)
    assert len(before) == 3
    table = without_times(command_json(*_compare(folder, 3), cwd=folder))
    table.pop("page")
    after = _hashes(stopped)
    return {"table": table, "hashes": after, "kept": [name for name in after if name in before]}


def _hashes(comparison: Path) -> dict[str, str]:
    files = sorted(comparison.glob("runs/*/seed-*/summary.json"))
    return {
        file.parent.relative_to(comparison).as_posix(): json.loads(file.read_text())["model_sha256"]
        for file in files
    }


def write_results(folder: Path) -> None:
    """Write nothing: the records in results/ are read there, and later versions may add to them."""
    (folder / "README.md").write_text("The records are those of results/ in the repository.\n")


def read_results(folder: Path) -> Observation:
    """Read each folder of records as a page with tables and as output of `compare`.

    tests/test_results_page.py and tests/test_fit_page.py check the other consequences.
    """
    pages, tables = {}, {}
    for records in ("compare-bytes", "compare-rounds", "converged", "small"):
        command_output(
            "report", f"results/{records}", "--out", folder / "page.html", cwd=RESULTS.parent
        )
        pages[records] = page_parts(folder / "page.html")
    for budget in ("bytes", "rounds"):
        records = f"results/compare-{budget}"
        arms = command_json("compare", "--records", records, cwd=RESULTS.parent)["ways"]
        tables[budget] = {arm["way"]: digest(arm) for arm in arms}
    return {"pages": pages, "tables": tables}


CASES = (
    Case("comparison", write_comparison, read_comparison, compute_comparison),
    Case("results", write_results, read_results),
)
