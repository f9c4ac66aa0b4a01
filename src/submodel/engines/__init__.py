"""Where tasks run."""

from __future__ import annotations

from submodel.config import Config
from submodel.engines.local import SerialEngine
from submodel.rounds import Engine, Setup


def make_engine(config: Config, setup: Setup) -> Engine:
    """The engine of a configuration, for one process."""
    return SerialEngine(setup, config.engine.device)
