"""Measure the error of `submodel train --dry-run` for five configurations.

    python -m benchmarks.dry_run [--only default,images,text,table,processes]

Each is forecast twice, before and after the run, by separate commands; the run is a command as
well. Time is the wall-clock time of the command, phases are read from its metrics, memory is the
peak of one of its processes, traffic and disk are counted. It takes about three minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.speed.report import table

_ROOT = Path(__file__).resolve().parents[1]
CONFIGURATIONS: dict[str, list[str]] = {
    "default": [],
    "images": [
        *("model.name=preresnet18", "model.width=16", "clients.per_round=10", "local.epochs=2"),
        *('clients.capacities=["1", "1/2", "1/4"]', "train.rounds=12"),
    ],
    "text": [
        *("data.name=text:text.txt", "data.length=64", "data.partition=iid", "model.name=gpt"),
        *("model.width=64", "model.layers=2", "model.heads=4", "clients.count=20"),
        *("clients.per_round=4", "local.steps=5", "local.batch_size=8", "local.optimiser=adamw"),
        *("local.lr=0.001", "train.rounds=40"),
    ],
    "table": [
        *("data.name=csv:table.csv", "data.target=y", "data.partition=iid", "model.name=mlp"),
        *("model.width=64", "clients.count=100", "clients.per_round=20", "train.rounds=100"),
    ],
    "processes": [
        *("model.name=preresnet18", "model.width=16", "clients.per_round=16", "local.epochs=2"),
        *('clients.capacities=["1/2"]', "train.rounds=12", "engine.name=torchrun"),
        "engine.processes=2",
    ],
}
"""Overridden keys of each configuration, by name."""


def write_data(folder: Path) -> None:
    """Write a text and a table for training.

    Args:
        folder: output folder.
    """
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 8))) for _ in range(500)]
    lines = (" ".join(rng.choices(words, k=12)) for _ in range(4000))
    (folder / "text.txt").write_text("\n".join(lines), "utf-8")
    rows = ["a,b,c,d,y"]
    for _ in range(8000):
        numbers = [rng.gauss(0, 1) for _ in range(4)]
        label = "high" if sum(numbers) > 0 else "low"
        rows.append(",".join([*(f"{number:.4f}" for number in numbers), label]))
    (folder / "table.csv").write_text("\n".join(rows) + "\n", "utf-8")


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "submodel", "train", *arguments]


def _forecast(settings: Sequence[str], folder: Path) -> Any:
    command = _command("--dry-run", "--json", *settings)
    return json.loads(subprocess.check_output(command, cwd=folder, text=True))


_MEASURE = """
import json, resource, subprocess, sys, time
start = time.perf_counter()
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
seconds = time.perf_counter() - start
print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024]))
"""  # a separate process, whose only children are those of the run


def _run(settings: Sequence[str], folder: Path) -> dict[str, Any]:
    path = folder / "run"
    command = _command("--out", str(path), *settings)
    text = subprocess.check_output(
        [sys.executable, "-c", _MEASURE, *command], cwd=folder, text=True
    )
    seconds, memory = json.loads(text.splitlines()[-1])
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text("utf-8").splitlines()]
    phases: dict[str, float] = {}
    for line in lines:
        for phase, spent in line["seconds"].items():
            phases[phase] = phases.get(phase, 0.0) + spent
    return {
        "seconds": seconds,
        "phases": phases,
        "memory": memory,
        "traffic": sum(line["bytes_down"] + line["bytes_up"] for line in lines),
        "disk": sum(file.stat().st_size for file in path.rglob("*") if file.is_file()),
    }


def measure(name: str) -> dict[str, Any]:
    """Forecast and run a configuration, and compute the relative errors of the forecasts.

    Args:
        name: one of `CONFIGURATIONS`.
    """
    settings = [part for value in CONFIGURATIONS[name] for part in ("--set", value)]
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base)
        write_data(folder)
        print(f"  {name}", file=sys.stderr, flush=True)
        before = _forecast(settings, folder)
        run = _run(settings, folder)
        forecasts = [before, _forecast(settings, folder)]

    def off(amounts: Sequence[float], truth: float) -> float:
        return fmean(amounts) / truth - 1

    sizes = [f["quantities"] for f in forecasts]
    phases = [{p["name"]: p["seconds"] for p in f["phases"]} for f in forecasts]
    names = {"training": "train", "merging": "merge", "gathering": "gather"}
    names |= {"evaluation": "evaluate"}
    return {
        "settings": CONFIGURATIONS[name],
        "run": run,
        "forecast_seconds": [f["seconds"] for f in forecasts],
        "trial_seconds": [f["trial_seconds"] for f in forecasts],
        "forecast_phases": phases,
        "off": {
            "time": off([f["seconds"] for f in forecasts], run["seconds"]),
            "memory": off([s["memory"] for s in sizes], run["memory"]),
            "traffic": off([s["bytes_down"] + s["bytes_up"] for s in sizes], run["traffic"]),
            "disk": off([s["disk"] for s in sizes], run["disk"]),
        },
        "off_phases": {
            name: off([p[name] for p in phases], run["phases"][phase])
            for name, phase in names.items()
            if run["phases"].get(phase)
        },
    }


def report(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Tabulate the run and the errors of the forecasts for every configuration."""
    lines = [["configuration", "forecast, s", "run, s", "time", "training", "merging",
              "evaluation", "memory", "traffic", "disk", "trials, s"]]  # fmt: skip
    for name, result in results.items():
        off, phases = result["off"], result["off_phases"]
        lines.append(
            [
                name,
                ", ".join(f"{seconds:.1f}" for seconds in result["forecast_seconds"]),
                f"{result['run']['seconds']:.1f}",
                f"{off['time']:+.0%}",
                *(f"{phases[p]:+.0%}" for p in ("training", "merging", "evaluation")),
                *(f"{off[what]:+.0%}" for what in ("memory", "traffic", "disk")),
                f"{fmean(result['trial_seconds']):.1f}",
            ]
        )
    return table(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dry_run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default=",".join(CONFIGURATIONS), help="comma-separated names")
    parser.add_argument("--out", type=Path, default=_ROOT / "benchmarks/results/dry-run.json")
    given = parser.parse_args()
    names = given.only.split(",")
    if unknown := [name for name in names if name not in CONFIGURATIONS]:
        parser.error(f"--only: {unknown[0]!r} is not one of {', '.join(CONFIGURATIONS)}")
    begin, load = time.perf_counter(), os.getloadavg()[0]
    results = {name: measure(name) for name in names}
    print(report(results))
    given.out.write_text(json.dumps({"load_before": load, **results}, indent=1) + "\n")
    print(f"{given.out}, after {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
