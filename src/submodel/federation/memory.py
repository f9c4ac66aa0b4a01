"""Memory of a device for training, and the largest sub-model that fits."""

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
"""Fraction of the free memory to use; the rest is for other programs of the device."""
COPIES = 3
"""Copies of a sub-model's values beside the trained ones: as received, and as answered."""
RUNTIME_BYTES = 50_000_000
"""Additional bytes of torch and Flower while they work."""


def free_memory(device: torch.device) -> int:
    """Return the bytes for a training process: half of the device's free memory."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * _SHARE)
    free = psutil.virtual_memory().available
    limit = Path("/sys/fs/cgroup/memory.max")  # of a container
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        free = min(free, int(text))
    return int(free * _SHARE)


def own_memory() -> int:
    """Return the resident bytes of this process."""
    return int(psutil.Process().memory_info().rss)


def peak_memory() -> int:
    """Return the peak resident bytes of this process, which psutil does not report."""
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
    """Return the largest of the run's capacities that trains in ``memory`` bytes.

    Args:
        config: configuration of the run.
        setup: setup of the run.
        example: batch of inputs.
        memory: limit in bytes.
        taken_bytes: bytes in use by the process (interpreter, torch, data).
        copies: copies of the sub-model's values, in addition to the needs of training.

    `benchmarks/devices.py` measures the real use of a device.
    """
    capacities = sorted(set(config.clients.capacities), reverse=True)
    if config.scheme.granularity == "coordinate":
        raise ConfigError(
            "--memory: at scheme.granularity = 'coordinate' every device holds whole tensors; "
            "give --capacity"
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
        f"--memory: {si(memory, 'B')} are too few for the run's sub-models: the smallest, "
        f"{capacities[-1]:g}, needs {least.arithmetic()}, {si(copies * least.parameters, 'B')} "
        f"to receive and send it, and this process already uses {si(taken_bytes, 'B')}"
    )


def offered_capacity(config: Config, capacity: float) -> float:
    """Return the largest of the run's capacities up to ``capacity``.

    >>> offered_capacity(Config(), 0.3)
    0.25
    """
    no_larger = [c for c in config.clients.capacities if c <= capacity]
    if not no_larger:
        least = min(config.clients.capacities)
        raise ConfigError(f"--capacity: {capacity:g} is less than the run's smallest, {least:g}")
    return max(no_larger)
