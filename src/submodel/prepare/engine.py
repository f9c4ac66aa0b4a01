"""The engine that a configuration names."""

from __future__ import annotations

from submodel.algorithm.execution import Engine
from submodel.algorithm.types import Setup
from submodel.config import Config
from submodel.engines.device import own_device
from submodel.engines.registry import ENGINES
from submodel.engines.select import EngineContext
from submodel.errors import ConfigError


def make_engine(config: Config, setup: Setup) -> Engine:
    """The engine of a configuration, for one process."""
    return ENGINES.find(config.engine.name).make(config.engine, _context(config, setup))


def check_engine(config: Config, setup: Setup) -> None:
    """Raise `ConfigError` where `make_engine` would: before a run has a folder, or processes.

    Args:
        config: of the run.
        setup: made from it.
    """
    engine = ENGINES.find(config.engine.name)
    if problems := engine.problems(config.engine, _context(config, setup)):
        raise ConfigError(problems)


def _context(config: Config, setup: Setup) -> EngineContext:
    return EngineContext(setup, own_device(config.engine.device))
