"""The engine that a configuration names."""

from __future__ import annotations

from submodel.algorithm.types import Engine, Setup
from submodel.config import Config
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.device import own_device
from submodel.engines.serial import SerialEngine


def make_engine(config: Config, setup: Setup) -> Engine:
    """The engine of a configuration, for one process."""
    device = own_device(config.engine.device)
    if config.engine.batching == "never":
        return SerialEngine(setup, device)
    return BatchedEngine(setup, device, always=config.engine.batching == "always")
