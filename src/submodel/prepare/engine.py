"""The engine that a configuration names."""

from __future__ import annotations

from submodel.algorithm.execution import Engine
from submodel.algorithm.types import Setup
from submodel.config import Config
from submodel.engines.device import own_device
from submodel.engines.registry import ENGINES
from submodel.engines.select import EngineContext


def make_engine(config: Config, setup: Setup) -> Engine:
    """The engine of a configuration, for one process."""
    context = EngineContext(setup, own_device(config.engine.device))
    return ENGINES.find(config.engine.name).make(config.engine, context)
