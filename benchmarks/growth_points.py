"""Measure a point for `benchmarks.growth` in a separate process, and print a line of JSON.

python -m benchmarks.growth_points sampled 100
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from benchmarks.speed.local import Ours
from benchmarks.speed.workloads import WORKLOADS, make_config, make_data

from submodel.config import Config, parse
from submodel.config.setup import prepare
from submodel.data import Dataset
from submodel.data.examples import Examples
from submodel.data.facts import TextFacts
from submodel.model.axes.declare import units_held
from submodel.schemes import Draw, Mask, Scheme

_LENGTH, _VOCABULARY = 64, 512  # of the texts for the transformer
_ROUNDS, _SECONDS = 7, 1.5  # at most, after the first round


@dataclass(frozen=True)
class SharedCuts(Scheme):
    """A number of distinct cuts of one size, assigned to the clients in turn."""

    cuts: int

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:  # noqa: ARG002
        """Return a window with a different start for each of the cuts."""
        mask = np.zeros(size, dtype=np.bool_)
        start = draw.client % self.cuts * size // self.cuts
        mask[(start + np.arange(units_held(capacity, size))) % size] = True
        return mask


def _sampled(count: int) -> Ours:
    workload = replace(WORKLOADS["A"], per_round=count)
    config = make_config(workload, 1.0)
    return Ours(config, prepare(config, data=make_data(workload, 1.0)))


def _registered(count: int) -> Ours:
    workload = replace(WORKLOADS["A"], clients=count)
    config = make_config(workload, 1.0)
    return Ours(config, prepare(config, data=make_data(workload, 1.0)))


def _texts() -> Dataset:
    rng = torch.Generator().manual_seed(0)
    tokens = torch.randint(_VOCABULARY, (64, _LENGTH + 1), generator=rng)
    examples = Examples(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    return Dataset(examples, examples, classes=None, text=TextFacts(_VOCABULARY, 1.0, ""))


def _text_config(width: int, clients: int) -> Config:
    return parse(
        {
            "model": {"name": "gpt", "width": width, "layers": 4, "heads": 4},
            "data": {"partition": "iid"},
            "clients": {"count": clients, "per_round": clients, "capacities": [0.25]},
            "local": {"batch_size": 2, "steps": 2, "lr": 0.01},
        }
    )


def _parameters(width: int) -> Ours:
    config = _text_config(width, 4)
    return Ours(config, prepare(config, data=_texts()))


def _cuts(count: int) -> Ours:
    config = _text_config(256, 32)
    return Ours(config, replace(prepare(config, data=_texts()), scheme=SharedCuts(count)))


POINTS: dict[str, Callable[[int], Ours]] = {
    "sampled": _sampled,
    "registered": _registered,
    "parameters": _parameters,
    "cuts": _cuts,
}
"""Functions that prepare a run for a value, by quantity."""


def _memory(entry: str) -> int:
    """Return the memory of this process in bytes: VmRSS (current) or VmHWM (peak)."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(entry))


def measure(what: str, value: int) -> dict[str, float]:
    """Measure the processor seconds of a round, and the memory of a run beyond the imports.

    Args:
        what: one of `POINTS`.
        value: number or width.
    """
    before = _memory("VmRSS")
    ours = POINTS[what](value)
    ours.round()
    seconds: list[float] = []
    begin = time.perf_counter()
    while len(seconds) < _ROUNDS and (not seconds or time.perf_counter() - begin < _SECONDS):
        start = time.process_time()
        ours.round()
        seconds.append(time.process_time() - start)
    return {
        "value": ours.parameters if what == "parameters" else value,
        "seconds": statistics.median(seconds),
        "bytes": _memory("VmHWM") - before,
        "rounds": len(seconds),
    }


def run_config(folder: Path) -> Path:
    """Write the configuration for processes: a ResNet on the digits, six rounds."""
    path = folder / "processes.toml"
    path.write_text(
        'model = {name = "preresnet18", width = 16}\n'
        'data = {name = "digits", partition = "iid"}\n'
        "clients = {count = 50, per_round = 32, capacities = [0.5]}\n"
        "local = {batch_size = 10, epochs = 8}\n"
        "train = {rounds = 6, evaluate_every = 6, checkpoint_every = 6}\n",
        "utf-8",
    )
    return path


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
