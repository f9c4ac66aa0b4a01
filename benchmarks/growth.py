"""Cost grows with the work: the digits CNN with more clients per round, and with more epochs.

    python -m benchmarks.growth [--repeats 9]

One process, one thread. All variants are warmed up first; then they take turns, one round each.
Memory is the most that a process of its own ever held, one for every variant.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.speed.local import Ours
from benchmarks.speed.report import summary, table
from benchmarks.speed.workloads import WORKLOADS, make_config, make_data

from submodel.prepare.setup import prepare

WARM_UP = 2  # rounds
ROUNDS_FOR_MEMORY = 3


@dataclass(frozen=True)
class Variant:
    """Workload A with other numbers."""

    per_round: int = 100
    epochs: int = 1

    @property
    def steps(self) -> int:
        """Of all clients in a round."""
        return self.per_round * self.epochs * WORKLOADS["A"].steps_at(1.0)

    def start(self) -> Ours:
        """A run that is ready for its first round."""
        workload = replace(WORKLOADS["A"], per_round=self.per_round)
        config = make_config(workload, 1.0)
        local = config.local.model_copy(update={"epochs": self.epochs})
        config = config.model_copy(update={"local": local})
        return Ours(config, prepare(config, data=make_data(workload, 1.0)))


CLIENTS = [Variant(per_round=n) for n in (50, 100, 200, 400)]
EPOCHS = [Variant(epochs=n) for n in (1, 2, 4, 8)]


def _held() -> float:
    """The most megabytes that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _memory(variant: Variant) -> dict[str, float]:
    """Megabytes before the first round and after some."""
    ours = variant.start()
    before = _held()
    for _ in range(ROUNDS_FOR_MEMORY):
        ours.round()
    return {"megabytes_before": before, "megabytes": _held()}


def measure_memory(variants: Sequence[Variant]) -> dict[Variant, dict[str, float]]:
    """Every variant in a fresh process, one after another."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh, max_tasks_per_child=1) as pool:
        return dict(zip(variants, pool.map(_memory, variants), strict=True))


def measure_seconds(variants: Sequence[Variant], repeats: int) -> dict[Variant, list[float]]:
    """Rounds of all variants, taking turns."""
    runs = {variant: variant.start() for variant in variants}
    for ours in runs.values():
        for _ in range(WARM_UP):
            ours.round()
    seconds: dict[Variant, list[float]] = {variant: [] for variant in variants}
    for _ in range(repeats):
        for variant, ours in runs.items():
            seconds[variant].append(ours.round()["seconds"])
    return seconds


def compare(
    variants: Sequence[Variant],
    seconds: Mapping[Variant, list[float]],
    memory: Mapping[Variant, dict[str, float]],
) -> list[dict[str, Any]]:
    """Every variant, and beside it the first."""
    first = variants[0]
    unit = statistics.median(seconds[first]) / first.steps
    rows = []
    for variant in variants:
        median = statistics.median(seconds[variant])
        rows.append(
            {
                "clients": variant.per_round,
                "epochs": variant.epochs,
                "seconds": summary(seconds[variant]),
                "seconds_per_client": median / variant.per_round,
                "seconds_per_step": median / variant.steps,
                "work / first": variant.steps / first.steps,
                "time per step / first": median / variant.steps / unit,
                "memory / first": memory[variant]["megabytes"] / memory[first]["megabytes"],
                **memory[variant],
            }
        )
    return rows


def growth_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per variant."""
    lines = [
        [
            *("clients", "epochs", "seconds per round", "ms per client", "ms per step"),
            *("work", "time per step", "peak memory", "memory"),
        ]
    ]
    for row in rows:
        spread = row["seconds"]
        lines.append(
            [
                str(row["clients"]),
                str(row["epochs"]),
                f"{spread['median']:.3f} ({spread['least']:.3f} to {spread['most']:.3f})",
                f"{1e3 * row['seconds_per_client']:.2f}",
                f"{1e3 * row['seconds_per_step']:.3f}",
                f"x {row['work / first']:g}",
                f"x {row['time per step / first']:.2f}",
                f"{row['megabytes']:.0f} MB ({row['megabytes_before']:.0f} before)",
                f"x {row['memory / first']:.2f}",
            ]
        )
    return table(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.growth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repeats", type=int, default=9)
    default = Path(__file__).parent / "results" / "growth.json"
    parser.add_argument("--out", type=Path, default=default)
    given = parser.parse_args()
    if given.repeats < 1:
        parser.error("--repeats must be positive")
    begin = time.perf_counter()
    variants = list(dict.fromkeys(CLIENTS + EPOCHS))
    # first, while this process is small: Linux lets a new process inherit the peak of its parent
    memory = measure_memory(variants)
    seconds = measure_seconds(variants, given.repeats)
    results = {
        "clients": compare(CLIENTS, seconds, memory),
        "epochs": compare(EPOCHS, seconds, memory),
    }
    for name, rows in results.items():
        print(f"more {name}\n{growth_table(rows)}\n")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({"repeats": given.repeats, **results}, indent=1) + "\n")
    print(f"{given.out}, after {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
