"""Compare stacks of clients with one client after another, for many shapes.

    python benchmarks/stacking.py [--repeats 3] [--only cnn]

Every line trains the same tasks with three engines, alternating in one process on one thread, in
processor time: the serial engine, one wide stack, and one stack under vmap. The ratio is serial /
stacked, so the stack is faster above 1. `STACKED_BYTES` of the batched engine follows from this
table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from submodel.algorithm.dispatch import Dispatcher
from submodel.algorithm.execution import Engine
from submodel.algorithm.rounds import initial_state, plan
from submodel.algorithm.types import Setup, Task
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.data import dataset
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.serial import SerialEngine

SHAPES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    # name: model, inputs, widths, clients
    "mlp, 8 x 8": ("mlp", (1, 8, 8), (128, 32, 8), (2, 8, 20)),
    "cnn, 8 x 8": ("cnn", (1, 8, 8), (32, 16, 8, 4, 2), (2, 8, 20)),
    "preresnet18, 32 x 32": ("preresnet18", (3, 32, 32), (16, 8, 4, 2, 1), (2, 4, 8, 16)),
}
STEPS = {"mlp": 8, "cnn": 8, "preresnet18": 2}


def make_setup(model: str, inputs: tuple[int, ...], width: int, clients: int) -> Setup:
    count = clients * 10 * STEPS[model]
    images = torch.randn(count, *inputs, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(count) % 10
    config: dict[str, Any] = {
        "model": {"name": model, "width": width},
        "data": {"partition": "iid"},
        "clients": {"count": clients, "per_round": clients, "capacities": [1.0]},
        "local": {"lr": 0.01, "absent_labels": "keep"},
    }
    return prepare(parse(config), data=dataset((images, labels), (images[:10], labels[:10])))


def seconds(engine: Engine, tasks: list[Task]) -> float:
    start = time.process_time()
    for _ in engine.run(tasks):
        pass
    return time.process_time() - start


def wide(setup: Setup) -> BatchedEngine:
    engine = BatchedEngine(setup, always=True)
    assert engine._wide is not None
    return engine


def mapped(setup: Setup) -> BatchedEngine:
    engine = BatchedEngine(setup, always=True)
    engine._wide = None  # vmap remains
    return engine


def measure(setup: Setup, repeats: int) -> dict[str, Any]:
    state = initial_state(setup)

    def fresh() -> list[Task]:
        dispatcher = Dispatcher(setup, state, setup.work)
        return [dispatcher.task(a) for a in plan(setup, 0)]

    engines: dict[str, Engine] = {
        "serial": SerialEngine(setup),
        "wide": wide(setup),
        "vmap": mapped(setup),
    }
    times: dict[str, list[float]] = {name: [] for name in engines}
    for repeat in range(repeats + 1):
        for name, engine in engines.items():
            spent = seconds(engine, fresh())
            if repeat:  # the first one warms up
                times[name].append(spent)
    steps = len(fresh()) * len(setup.clients.examples(0)) / 10
    row: dict[str, Any] = {
        f"{n} ms per step": 1e3 * statistics.median(t) / steps for n, t in times.items()
    }
    for name in list(times)[1:]:
        ratios = [s / o for s, o in zip(times["serial"], times[name], strict=True)]
        row[f"serial / {name}"] = statistics.median(ratios)
        row[f"serial / {name}, spread"] = [min(ratios), max(ratios)]
    forward = wide(setup)._wide
    assert forward is not None
    rows = {name: len(tensor) for name, tensor in fresh()[0].tensors.items()}
    values = forward.largest(rows) * 10 * len(fresh())
    return row | {"bytes of the largest activation": 4 * values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="prefix of the names of shapes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print("model                  width clients  serial    wide    vmap  ms/step   wide   vmap  x")
    for name, (model, inputs, widths, counts) in SHAPES.items():
        if not name.startswith(arguments.only):
            continue
        for width in widths:
            for clients in counts:
                row = measure(make_setup(model, inputs, width, clients), arguments.repeats)
                rows.append({"model": name, "width": width, "clients": clients} | row)
                cells = [row.get(f"{n} ms per step", 0.0) for n in ("serial", "wide", "vmap")]
                ratios = [row.get(f"serial / {n}", 0.0) for n in ("wide", "vmap")]
                print(
                    f"{name:22} {width:5} {clients:7}"
                    + "".join(f"{c:8.2f}" for c in cells)
                    + " " * 9
                    + "".join(f"{r:7.2f}" for r in ratios)
                    + f"   {row['bytes of the largest activation'] >> 10} KB",
                    flush=True,
                )
    if not arguments.only:
        path = Path(__file__).parent / "results" / "stacking.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
