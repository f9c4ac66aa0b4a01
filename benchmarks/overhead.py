"""Measure the overhead of the serial engine over a bare PyTorch loop of the same tasks.

    python benchmarks/overhead.py [--repeats 7]

Both train the same sub-models on the same batches, alternating in one process on one thread, and
processor time is measured (so other processes of the machine do not count). The bare loop has its
sub-models prepared and only trains them, without cutting, guards or merging.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from submodel.algorithm.dispatch import cut_of
from submodel.algorithm.rounds import initial_state, plan, step
from submodel.algorithm.types import Setup, State
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.data import dataset
from submodel.engines.serial import SerialEngine
from submodel.model.build import build_module
from submodel.model.cost import CostModel
from submodel.tasks.training import batches

WORKLOADS: dict[str, dict[str, dict[str, Any]]] = {
    "preresnet18, width 16, 3 x 32 x 32, batch 10": {
        "model": {"name": "preresnet18", "width": 16},
        "clients": {"count": 10, "per_round": 5, "capacities": [1, 0.5, 0.25, 0.125, 0.0625]},
    },
    "preresnet18, width 64, 3 x 32 x 32, batch 10": {
        "model": {"name": "preresnet18", "width": 64},
        "clients": {"count": 5, "per_round": 2, "capacities": [1, 0.25]},
    },
    "cnn, width 32, 3 x 32 x 32, batch 10": {
        "model": {"name": "cnn"},
        "clients": {"count": 50, "per_round": 10, "capacities": [1, 0.5, 0.25, 0.125]},
    },
}
IMAGES_PER_CLIENT = 200


def make_setup(workload: dict[str, dict[str, Any]]) -> Setup:
    count = workload["clients"]["count"] * IMAGES_PER_CLIENT
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, 3, 32, 32, generator=generator)
    labels = torch.arange(count) % 10
    local = {"lr": 0.01, "absent_labels": "keep"}
    config = parse({**workload, "data": {"partition": "iid"}, "local": local})
    return prepare(config, data=dataset((images, labels), (images[:10], labels[:10])))


def bare(setup: Setup, state: State) -> float:
    """Return the processor seconds of the training steps alone."""
    ready = [
        (a.client, build_module(setup.module, cut_of(setup, a))) for a in plan(setup, state.round)
    ]
    start = time.process_time()
    for client, module in ready:
        examples = setup.clients.examples(client)
        module.train()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
        for xi in batches(len(examples), setup.work, setup.seed, state.round, client):
            index = torch.from_numpy(xi)
            loss = setup.loss(module(examples.x[index]), examples.y[index])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    results = {}
    for name, workload in WORKLOADS.items():
        setup = make_setup(workload)
        engine, costs = (
            SerialEngine(setup),
            CostModel(setup.module, setup.clients.dataset.example),
        )
        state = initial_state(setup)
        state, _ = step(setup, state, engine, costs)  # warm up
        ratios = []
        for _ in range(repeats):
            loop = bare(setup, state)
            start = time.process_time()
            state, _ = step(setup, state, engine, costs)
            ratios.append((time.process_time() - start) / loop)
        results[name] = {
            "median": statistics.median(ratios),
            "least": min(ratios),
            "most": max(ratios),
            "repeats": repeats,
        }
        print(
            f"{name}: engine / bare = {results[name]['median']:.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f}, {repeats} repeats)",
            flush=True,
        )
    path = Path(__file__).parent / "results" / "overhead.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
