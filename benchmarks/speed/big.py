"""Workload E: time of a round and memory for a big model of which every client holds 1/16.

    python -m benchmarks.speed.big --scheme rolling [--width 768 --layers 12 --rounds 3]

The command trains a run with evaluation and a checkpoint in every round, and prints a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from submodel.algorithm import round_statistics
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.data.examples import Dataset, Examples
from submodel.data.facts import TextFacts
from submodel.runs.callbacks import standard
from submodel.runs.folder import RunFolder
from submodel.runs.loop import run_rounds
from submodel.runs.training import Training

SCHEMES = {"rolling": 10.0, "static": 10.0, "random": 16.0, "dropout": 16.0}
"""Most bytes per parameter, by scheme; clients of the first two share a cut."""
MERGING = 0.10
"""Largest allowed share of merging in a round."""
_ROOT = Path(__file__).resolve().parents[2]


def _examples(count: int, vocabulary: int, length: int) -> Examples:
    tokens = torch.randint(vocabulary, (count, length + 1))
    return Examples(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def _peak() -> int:
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def train(scheme: str, width: int, layers: int, vocabulary: int, length: int, rounds: int) -> Any:
    """Train in this process; return parameters, peak, and processor time by round and phase."""
    clock = SimpleNamespace(perf_counter=time.process_time)  # ignores other load of the machine
    for module in (round_statistics, standard):
        vars(module)["time"] = clock
    torch.manual_seed(0)
    training_part, test_part = (_examples(count, vocabulary, length) for count in (32, 4))
    facts = TextFacts(vocabulary, 1.0, "")
    data = Dataset(training_part, test_part, classes=None, text=facts)
    config = parse(
        {
            "model": {"name": "gpt", "width": width, "layers": layers, "heads": width // 64},
            "scheme": {"name": scheme},
            "data": {"partition": "iid"},
            "clients": {"count": 8, "per_round": 4, "capacities": [0.25]},
            "local": {"batch_size": 2, "steps": 2, "lr": 0.01},
            "train": {"rounds": rounds, "evaluate_every": 1, "checkpoint_every": 1},
            "engine": {"threads": 1},
        }
    )
    torch.set_num_threads(1)
    setup = prepare(config, data=data)
    count = sum(parameter.numel() for parameter in setup.module.parameters())
    with tempfile.TemporaryDirectory() as base:
        folder = RunFolder(Path(base) / "run")
        folder.create(config)
        _, history = run_rounds(Training(config, setup, takes_module=True), folder)
    return {
        "parameters": count,
        "peak": _peak(),
        "phases": [line["seconds"] for line in history],
    }


def _child(root: Path, scheme: str, *sizes: str) -> dict[str, Any]:
    """Call `train` of a checkout in a separate process: its own script, for its own package."""
    paths = os.pathsep.join([str(root / "src"), str(root)])
    command = [sys.executable, "-m", "benchmarks.speed.big", "--scheme", scheme, *sizes]
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    text = subprocess.check_output(command, cwd=root, env=environment, text=True)
    answer: dict[str, Any] = json.loads(text.splitlines()[-1])
    return answer


def measure(against: Path | None = None, sizes: tuple[str, ...] = ()) -> dict[str, Any]:
    """Measure every scheme, here and in another checkout, one after another.

    Args:
        against: the other checkout.
        sizes: size options of the model; empty: about 98 M parameters.
    """
    roots = {"now": _ROOT} | ({} if against is None else {"before": against})
    results: dict[str, Any] = {}
    for scheme, goal in SCHEMES.items():
        for label, root in roots.items():
            print(f"  E: {scheme}, {label}", file=sys.stderr, flush=True)
            alone = _child(root, scheme, "--width", "64", "--layers", "1", "--vocabulary", "256")
            big = _child(root, scheme, *sizes)
            bytes_each = (big["peak"] - alone["peak"]) / (big["parameters"] - alone["parameters"])
            later = big["phases"][1:] or big["phases"]
            results[f"{scheme}, {label}"] = {
                "goal": goal,
                "parameters": big["parameters"],
                "bytes_per_parameter": bytes_each,
                "peak_mb": big["peak"] / 1e6,
                "merging": sum(p["merge"] for p in later) / sum(sum(p.values()) for p in later),
                "phases": big["phases"],
            }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.big")
    parser.add_argument("--scheme", choices=SCHEMES, required=True)
    for name, size in (("width", 768), ("layers", 12), ("vocabulary", 8192)):
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    print(json.dumps(train(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
