"""Score every scheme and merge rule on the default run, for the table of docs/schemes.md.

    python benchmarks/schemes_on_digits.py [--seeds 3]

It prints test accuracy after the default number of rounds, with mean and range over seeds, and
writes JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from submodel.config import parse
from submodel.config.setup import prepare
from submodel.runs.loop import run_rounds
from submodel.runs.training import Training

CASES: dict[str, dict[str, Any]] = {
    "full": {"scheme": {"name": "full"}},
    "static": {"scheme": {"name": "static"}},
    "rolling, shuffled": {"scheme": {"name": "rolling"}},
    "rolling, sequential": {"scheme": {"name": "rolling", "order": "sequential"}},
    "random, bernoulli": {"scheme": {"name": "random"}},
    "random, fixed": {"scheme": {"name": "random", "sampling": "fixed"}},
    "random, coordinates": {"scheme": {"name": "random", "granularity": "coordinate"}},
    "rolling, coordinates": {"scheme": {"name": "rolling", "granularity": "coordinate"}},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    results: dict[str, dict[str, Any]] = {}
    for case, sections in CASES.items():
        for rule in ("selective", "fill_in"):
            if case == "full" and rule == "fill_in":
                continue  # all clients hold everything, so the rules coincide
            accuracies, traffic = [], 0
            for seed in range(seeds):
                config = parse(
                    {**sections, "seed": seed, "merge": {"rule": rule},
                     "train": {"evaluate_every": 1000}, "engine": {"batching": "never"}}
                )  # fmt: skip
                _, history = run_rounds(Training(config, prepare(config)))
                accuracies.append(history[-1]["test_accuracy"])
                traffic = sum(line["bytes_down"] + line["bytes_up"] for line in history)
            results[f"{case}, {rule}"] = {"test_accuracy": accuracies, "bytes": traffic}
            mean = statistics.mean(accuracies)
            print(
                f"| {case} | {rule} | {mean:.1%} | {min(accuracies):.1%} to {max(accuracies):.1%} "
                f"| {traffic / 1e6:.0f} MB |",
                flush=True,
            )
    path = Path(__file__).parent / "results" / "schemes_on_digits.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
