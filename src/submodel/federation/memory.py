"""How much memory a device has for training, and the largest sub-model that fits it."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import psutil
import torch

from submodel.algorithm.types import Setup
from submodel.config import Config
from submodel.core.amounts import si
from submodel.core.errors import ConfigError
from submodel.model.budget import Budget
from submodel.model.inputs import Inputs

_SHARE = 0.5
"""Of what is free now: other programs of the device want memory too."""
COPIES = 3
"""Of a sub-model's values beside those that are trained: as received, and the answer on its way."""
RUNTIME_BYTES = 50_000_000
"""Bytes that torch and Flower take on top when they are at work."""


def free_memory(device: torch.device) -> int:
    """Bytes that a training process may take: half of what the device has free now."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * _SHARE)
    free = psutil.virtual_memory().available
    limit = Path("/sys/fs/cgroup/memory.max")  # of a container
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        free = min(free, int(text))
    return int(free * _SHARE)


def own_memory() -> int:
    """Bytes that this process holds now."""
    return int(psutil.Process().memory_info().rss)


def peak_memory() -> int:
    """The most bytes that this process ever held, which psutil does not tell."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def fitting_capacity(
    config: Config,
    setup: Setup,
    example: Inputs,
    memory: int,
    taken_bytes: int = 0,
    copies: int = 0,
) -> float:
    """The largest of the run's capacities that trains in ``memory`` bytes.

    ``taken_bytes`` are those that the process (the interpreter, torch, the data) has already;
    ``copies`` are of the sub-model's values, beside what training takes. What a device really
    takes, `benchmarks/devices.py` measures.
    """
    capacities = sorted(set(config.clients.capacities), reverse=True)
    if config.scheme.granularity == "coordinate":
        raise ConfigError(
            "--memory: at scheme.granularity = 'coordinate' every device holds whole tensors; "
            "say --capacity"
        )
    batch = config.local.batch_size or 1
    budget = Budget(
        setup.module,
        setup.axes,
        example,
        batch,
        setup.work.optimiser.copies,
        config.axes.least,
    )
    needs = {capacity: budget.needs(capacity) for capacity in capacities}
    for capacity, need in needs.items():
        if taken_bytes + need.memory + copies * need.parameters <= memory:
            return capacity
    least = needs[capacities[-1]]
    raise ConfigError(
        f"--memory: {si(memory, 'B')} hold none of the run's sub-models: the smallest, "
        f"{capacities[-1]:g}, needs {least.arithmetic()}, {si(copies * least.parameters, 'B')} "
        f"to be received and sent, and this process has {si(taken_bytes, 'B')} already"
    )


def offered_capacity(config: Config, capacity: float) -> float:
    """The largest of the run's capacities that is no larger than ``capacity``.

    >>> offered_capacity(Config(), 0.3)
    0.25
    """
    no_larger = [c for c in config.clients.capacities if c <= capacity]
    if not no_larger:
        least = min(config.clients.capacities)
        raise ConfigError(f"--capacity: {capacity:g} is less than the run's smallest, {least:g}")
    return max(no_larger)
