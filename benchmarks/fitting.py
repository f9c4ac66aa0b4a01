"""Compare fitted sub-models with other methods to get sub-models that devices can keep.

    python benchmarks/fitting.py [CONFIG.toml] [--set KEY=VALUE] [--seeds 5] --out results/fit/NAME
    python benchmarks/fitting.py --out results/fit/digits --table     # from the records alone

Every arm trains the same model on the same clients and seeds, for the rounds of the configuration.
`fit` adds its own rounds to the run of the configuration's scheme, `finish` uses the last quarter
of the rounds, and `exclusive` trains a separate model for every capacity, by the clients that can
hold it. There is a record (JSON) for each arm and seed; arms with a record are not run again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from submodel.comparison.records import portable
from submodel.comparison.statistics import confidence, spread
from submodel.config import Config, read
from submodel.config.setup import prepare
from submodel.core.tables import markdown_table
from submodel.runs.folder import RunFolder
from submodel.runs.loop import run_rounds
from submodel.runs.open import Run
from submodel.runs.training import Training

Record = dict[str, Any]
ARMS: dict[str, list[str]] = {
    "static": ["scheme.name=static"],
    "importance": ["scheme.name=importance"],
    "ordered, distilled": ["scheme.name=ordered", "scheme.distill=1.0"],
}
FIRST, FIT, FINISH, EXCLUSIVE = "as it is", "fit", "finish", "exclusive"


def trained_run(config: Config, folder: Path) -> Run:
    """Train a run in a new folder."""
    files = RunFolder(folder)
    files.create(config)
    with files.lock():
        run_rounds(Training(config, prepare(config), takes_module=True), files)
    return Run(folder)


def record_of(run: Run) -> Record:
    """Return the scores of a run by capacity, and its cost."""
    summary = run.summary or {}
    name = "accuracy" if "test_accuracy" in summary else "loss"
    last = [line for line in run.history if f"capacity_{name}" in line][-1]
    return {
        "metric": name,
        "global": summary[f"test_{name}"],
        "capacities": last[f"capacity_{name}"],
        **{key: summary[key] for key in ("bytes_down", "bytes_up", "flops")},
    }


def first_and_fit(settings: Sequence[str], file: Path | None, folder: Path) -> dict[str, Record]:
    """Run the configuration and fit its sub-models; return both records."""
    run = trained_run(read(file, settings), folder)
    before = record_of(run)
    small = sorted({float(c) for c in before["capacities"]} - {1.0}, reverse=True)
    results = run.fit(small, progress=False)
    fit = {
        **before,
        "capacities": {f"{r['capacity']:g}": r["score"][before["metric"]] for r in results},
        "cuts": {f"{r['capacity']:g}": r["cut"] for r in results},
        **{key: before[key] + sum(r[key] for r in results)
           for key in ("bytes_down", "bytes_up", "flops")},
    }  # fmt: skip
    fit["capacities"]["1"] = before["global"]
    return {FIRST: before, FIT: fit}


def exclusive(settings: Sequence[str], file: Path | None, folder: Path) -> Record:
    """Train a separate model for every capacity, by the clients that can hold it."""
    capacities = read(file, settings).clients.capacities
    records = {
        f"{c:g}": record_of(
            trained_run(
                read(
                    file,
                    [*settings, "scheme.name=full", f"model.share={c}", f"clients.least={c}"],
                ),
                folder / f"{c:g}",
            )
        )
        for c in capacities
    }
    first = records["1"] if "1" in records else next(iter(records.values()))
    return {
        "metric": first["metric"],
        "global": first["global"],
        "capacities": {c: record["global"] for c, record in records.items()},
        **{key: sum(record[key] for record in records.values())
           for key in ("bytes_down", "bytes_up", "flops")},
    }  # fmt: skip


def run_seed(settings: Sequence[str], file: Path | None, seed: int, out: Path) -> None:
    """Run all arms without a record for a seed."""
    common = [*settings, f"seed={seed}", "engine.name=local"]

    def missing(arm: str) -> bool:
        return not record_file(out, arm, seed).is_file()

    def write(arm: str, record: Record) -> None:
        out.mkdir(parents=True, exist_ok=True)
        record_file(out, arm, seed).write_text(json.dumps(record, indent=2) + "\n")
        print(arm, seed, json.dumps(record["capacities"]), flush=True)

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if missing(FIRST) or missing(FIT):
            for arm, record in first_and_fit(common, file, folder / "first").items():
                write(arm, record)
        if missing(FINISH):
            config = read(file, [*common, "train.finish=1/4"])
            write(FINISH, record_of(trained_run(config, folder / "finish")))
        for arm, more in ARMS.items():
            if missing(arm):
                config = read(file, [*common, *more])
                write(arm, record_of(trained_run(config, folder / slug(arm))))
        if missing(EXCLUSIVE):
            write(EXCLUSIVE, exclusive(common, file, folder / "exclusive"))


def slug(arm: str) -> str:
    """Return the name of an arm in paths."""
    return arm.replace(", ", "-").replace(" ", "-")


def record_file(out: Path, arm: str, seed: int) -> Path:
    """Return the path of a record."""
    return out / f"{slug(arm)}-seed-{seed}.json"


def table_of(out: Path) -> list[str]:
    """Tabulate means over seeds with 95 % intervals, and differences of `fit` to every arm."""
    arms = [FIRST, FIT, FINISH, *ARMS, EXCLUSIVE]
    records: dict[str, dict[int, Record]] = {
        arm: {
            int(path.stem.rpartition("-")[2]): json.loads(path.read_text("utf-8"))
            for path in sorted(out.glob(f"{slug(arm)}-seed-*.json"))
        }
        for arm in arms
    }
    records = {arm: by_seed for arm, by_seed in records.items() if by_seed}
    capacities = sorted({c for r in records[FIRST].values() for c in r["capacities"]}, key=float)
    capacities.reverse()
    headings = ["arm", "seeds", *capacities, "GFLOPs", "MB"]
    rows = []
    for arm, by_seed in records.items():
        cells = [_cell([r["capacities"][c] for r in by_seed.values()]) for c in capacities]
        flops = spread([r["flops"] / 1e9 for r in by_seed.values()])[0]
        size = spread([(r["bytes_down"] + r["bytes_up"]) / 1e6 for r in by_seed.values()])[0]
        rows.append([arm, f"{len(by_seed)}", *cells, f"{flops:.1f}", f"{size:.0f}"])
    lines = [*markdown_table(headings, rows), ""]
    rows = [
        [arm, *(_difference(records[FIT], by_seed, c) for c in capacities)]
        for arm, by_seed in records.items()
        if arm != FIT
    ]
    return [*lines, *markdown_table(["`fit` minus", *headings[2:-2]], rows)]


def _cell(values: Sequence[float]) -> str:
    mean = 100 * spread(values)[0]
    if len(values) < 2:
        return f"{mean:.1f}"
    low, high = confidence(values)
    return f"{mean:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _difference(first: Mapping[int, Record], second: Mapping[int, Record], capacity: str) -> str:
    seeds = sorted(first.keys() & second.keys())
    return _cell([first[s]["capacities"][capacity] - second[s]["capacities"][capacity]
                  for s in seeds])  # fmt: skip


def main() -> None:
    """Run all arms without a record, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", nargs="?", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="only print the table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.table:
        config = portable(read(arguments.config, arguments.settings))
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            run_seed(arguments.settings, arguments.config, seed, arguments.out)
    print("\n".join(table_of(arguments.out)))


if __name__ == "__main__":
    main()
