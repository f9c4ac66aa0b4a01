"""Choice, check and construction of a run's engine.

The choice follows from an estimate of the work, never from a clock. The estimate needs only shapes,
so the choice is reproducible. It is written into the run's configuration; a resumed run keeps it.
"""

from __future__ import annotations

import logging
import os

from submodel.algorithm.execution import Engine
from submodel.algorithm.types import Setup
from submodel.config import Config
from submodel.core.errors import ConfigError, refuse
from submodel.engines.builtin_engines import ENGINES
from submodel.engines.device import own_device
from submodel.engines.estimate import Estimate, exchange_seconds
from submodel.engines.processes.group import in_process_group
from submodel.engines.select import EngineContext, native_refusal

_log = logging.getLogger(__name__)

_WORTH_PROCESSES = 60.0  # seconds of work that justify starting more processes
_WORTH_KERNELS = 60.0  # likewise building kernels, whose last digits differ from torch's


def make_engine(config: Config, setup: Setup) -> Engine:
    """Make the engine of a configuration for one process."""
    return ENGINES.find(config.engine.name).make(config.engine, _context(config, setup))


def check_engine(config: Config, setup: Setup) -> None:
    """Raise `ConfigError` where `make_engine` would, before a run has a folder or processes."""
    engine = ENGINES.find(config.engine.name)
    refuse(engine.problems(config.engine, _context(config, setup)))


def _context(config: Config, setup: Setup) -> EngineContext:
    return EngineContext(setup, own_device(config.engine.device))


def choose_engine(config: Config, setup: Setup, has_begun: bool = False) -> Config:
    """Resolve ``engine.name = "auto"`` and ``engine.kernels = "auto"`` in a configuration.

    A process group that torchrun has started is used. Otherwise more than a minute of work is
    divided among one process per core, unless the exchange between processes costs more time than
    it saves. Smaller runs, and runs that keep the optimiser state of clients, use one process. A
    run of more than a minute also uses native kernels if they support it; a resumed run stays with
    those of torch. Raises `ConfigError` if the engine cannot be made.
    """
    estimate = Estimate(setup)
    config = _choose_processes(config, setup, estimate)
    config = _choose_kernels(config, setup, estimate, has_begun)
    check_engine(config, setup)
    return config


def _choose_kernels(config: Config, setup: Setup, estimate: Estimate, has_begun: bool) -> Config:
    engine = config.engine
    if getattr(engine, "kernels", None) != "auto":
        return config
    here = os.environ.get("WORLD_SIZE") == os.environ.get("LOCAL_WORLD_SIZE")
    is_worth_it = (
        not has_begun
        and here  # other machines may have no compiler
        and engine.threads == 1
        and getattr(engine, "batching", None) != "never"
        and estimate.seconds(config.train.rounds) > _WORTH_KERNELS
    )
    refusal = native_refusal(setup, own_device(engine.device)) if is_worth_it else ""
    if refusal:
        _log.info("torch computes the stacks: %s", refusal)
    kernels = "native" if refusal is None else "torch"
    return config.model_copy(update={"engine": engine.with_values(kernels=kernels)})


def _choose_processes(config: Config, setup: Setup, estimate: Estimate) -> Config:
    cores = os.cpu_count() or 1
    on_cpu = own_device(config.engine.device).type == "cpu"
    choice: dict[str, object] = {"name": "local"}
    if in_process_group():
        if not ENGINES.is_builtin(config.engine.name):
            raise ConfigError(
                f"engine.name: {config.engine.name!r} computes in one process, but torchrun "
                "started several; use one or the other"
            )
        if setup.keeps_slots:
            raise ConfigError(
                "local.optimiser_state: 'kept' requires clients to train in one process, but "
                "torchrun started several; use one or the other"
            )
        choice = {"name": "torchrun", "processes": int(os.environ["WORLD_SIZE"])}
    elif config.engine.name != "auto":
        return config
    elif on_cpu and not setup.keeps_slots and cores > 1:
        gain = _gain(config, setup, estimate, cores)
        if gain > (1 - 1 / cores) * _WORTH_PROCESSES:
            choice = {"name": "torchrun", "processes": cores}
    return config.model_copy(update={"engine": config.engine.with_values(**choice)})


def _gain(config: Config, setup: Setup, estimate: Estimate, processes: int) -> float:
    """Estimate how many seconds the given number of processes saves over one process."""
    rounds = config.train.rounds
    seconds_saved = (1 - 1 / processes) * estimate.seconds(rounds)
    return seconds_saved - exchange_seconds(setup, rounds, processes)
