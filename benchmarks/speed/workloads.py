"""Workloads: the same tasks for every contender, recomputed from the seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from submodel.algorithm.types import Setup
from submodel.config import Config, parse
from submodel.config.setup import prepare
from submodel.data import Dataset, dataset, digits
from submodel.engines import find_compiler

CLASSES = 10


@dataclass(frozen=True)
class Workload:
    """A federation with a model."""

    name: str
    title: str
    model: str
    width: int
    clients: int
    per_round: int
    capacities: tuple[float, ...]
    dynamic: bool
    batch: int
    images: int  # per client, in full
    share: float  # fraction of the images at --scale 1, so that a repeat takes seconds
    warm_up: int  # rounds
    scaler: bool = False
    kernels: str = "native"  # of our engine, if there is a compiler

    def images_at(self, scale: float) -> int:
        """Return the images per client: whole batches, at least one, at most all."""
        wanted = round(self.images * self.share * scale / self.batch) * self.batch
        return min(max(wanted, self.batch), self.images)

    def steps_at(self, scale: float) -> int:
        """Return the SGD steps of a client in a round."""
        return math.ceil(self.images_at(scale) / self.batch)


_HALVES = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
A = Workload(
    "A",
    "digits CNN, 1,000 clients, 100 per round, capacities 1 to 1/16, batch 10",
    model="cnn",
    width=32,
    clients=1000,
    per_round=100,
    capacities=_HALVES,
    dynamic=False,
    batch=10,
    images=30,
    share=1.0,
    warm_up=2,
)
B = Workload(
    "B",
    "preresnet18 of width 16, 100 clients, 10 per round, capacities 1 to 1/16 dynamic, batch 10",
    model="preresnet18",
    width=16,
    clients=100,
    per_round=10,
    capacities=_HALVES,
    dynamic=True,
    batch=10,
    images=500,
    share=1.0,
    warm_up=2,
)
C = Workload(
    "C",
    "preresnet18 of width 64, 100 clients, 10 per round, capacities 1 and 1/4, batch 32",
    model="preresnet18",
    width=64,
    clients=100,
    per_round=10,
    capacities=(1.0, 1 / 4),
    dynamic=True,
    batch=32,
    images=500,
    share=0.256,
    warm_up=1,
)
F = replace(
    B,
    name="F",
    title="preresnet18 of width 16, 100 clients, 10 per round, capacities 1/4 and 1/8 dynamic, "
    "static norms and scaler, batch 10",
    capacities=(1 / 4, 1 / 8),
    scaler=True,
)
POPULATIONS = (10**3, 10**4, 10**5, 10**6)
WORKLOADS = {w.name: w for w in (A, B, C, F)}
WORKLOADS |= {
    f"{w.name}-whole": replace(w, name=f"{w.name}-whole", capacities=(1.0,)) for w in (A, B, C)
}
WORKLOADS |= {f"D-{n}": replace(A, name=f"D-{n}", clients=n) for n in POPULATIONS}


def make_config(workload: Workload, scale: float) -> Config:
    """Make our configuration of a workload."""
    data: dict[str, object] = {"partition": "iid"}
    if workload.model == "cnn":  # more clients than images, so clients share images
        data["examples_per_client"] = workload.images_at(scale)
    model: dict[str, object] = {"name": workload.model, "width": workload.width}
    if workload.scaler:
        model["scaler"] = True
    kernels = "torch" if find_compiler() is None else workload.kernels
    return parse(
        {
            "engine": {"kernels": kernels},
            "model": model,
            "data": data,
            "clients": {
                "count": workload.clients,
                "per_round": workload.per_round,
                "capacities": list(workload.capacities),
                "capacity_mode": "dynamic" if workload.dynamic else "fixed",
            },
            "local": {"batch_size": workload.batch, "lr": 0.01, "absent_labels": "keep"},
        }
    )


def make_data(workload: Workload, scale: float) -> Dataset:
    """Load the digits, or make noise of the shape of CIFAR-10."""
    if workload.model == "cnn":
        return digits()
    count = workload.clients * workload.images_at(scale)
    images = torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(count) % CLASSES
    return dataset((images, labels), (images[:CLASSES], labels[:CLASSES]))


def make_setup(workload: Workload, scale: float) -> tuple[Config, Setup]:
    """Make the configuration and setup of a workload."""
    config = make_config(workload, scale)
    return config, prepare(config, data=make_data(workload, scale))
