"""Choosing how a run is computed here: by an estimate of its work, never by a clock.

The estimate needs shapes alone, so a choice is the same every time; it is written into the run's
configuration, and a resumed run keeps it.
"""

from __future__ import annotations

import os

from submodel.algorithm.types import Setup
from submodel.config import Config
from submodel.engines.device import own_device
from submodel.engines.estimate import Estimate
from submodel.engines.processes.group import in_process_group
from submodel.engines.registry import ENGINES
from submodel.errors import ConfigError

_WORTH_PROCESSES = 60.0  # seconds of work that starting more processes is worth


def choose_engine(config: Config, setup: Setup) -> Config:
    """The configuration with ``engine.name = "auto"`` settled.

    A group that torchrun has started is used; more than a minute of work is shared among one
    process per core; less is done here, as is what keeps the state of clients.
    """
    cores = os.cpu_count() or 1
    on_cpu = own_device(config.engine.device).type == "cpu"
    choice: dict[str, object]
    if in_process_group():
        if not ENGINES.is_ours(config.engine.name):
            raise ConfigError(
                [
                    f"engine.name: {config.engine.name!r} computes in one process, and torchrun "
                    "has started several; leave out one of them"
                ]
            )
        if setup.keeps_slots:
            raise ConfigError(
                [
                    "local.optimiser_state: 'kept' is of clients that train in one process, and "
                    "torchrun has started several; leave out one of them"
                ]
            )
        choice = {"name": "torchrun", "processes": int(os.environ["WORLD_SIZE"])}
    elif config.engine.name != "auto":
        return config
    elif not on_cpu or setup.keeps_slots:
        choice = {"name": "local"}
    elif cores > 1 and Estimate(setup).seconds(config.train.rounds) > _WORTH_PROCESSES:
        choice = {"name": "torchrun", "processes": cores}
    else:
        choice = {"name": "local"}
    return config.model_copy(update={"engine": config.engine.with_values(**choice)})
