"""Contender `local`: our engine in one process."""

from __future__ import annotations

import time

import torch
from benchmarks.speed.worker import Report, options, reserve_stdout, serve
from benchmarks.speed.workloads import make_setup

from submodel.algorithm.execution import ALONE, Group
from submodel.algorithm.rounds import initial_state, step
from submodel.algorithm.types import Setup
from submodel.config import Config
from submodel.config.engine import make_engine
from submodel.model.cost import CostModel


class Ours:
    """A run of our engine, one round at a time."""

    def __init__(self, config: Config, setup: Setup, group: Group = ALONE) -> None:
        torch.set_num_threads(config.engine.threads)
        self._setup, self._group = setup, group
        self._engine = make_engine(config, setup)
        self._costs = CostModel(setup.module, setup.clients.dataset.example)
        self._state = initial_state(setup)
        self.note = f"{type(self._engine).__name__}, kernels: {config.engine.kernels}"
        self.parameters = sum(p.numel() for p in setup.module.parameters())

    def round(self) -> Report:
        """Run a round like `submodel train`, from the plan to the merged model."""
        start = time.perf_counter()
        self._state, report = step(self._setup, self._state, self._engine, self._costs, self._group)
        return {
            "seconds": time.perf_counter() - start,
            "loss": report.train_loss,
            "flops": report.flops,
            "phases": report.seconds,
        }


def main() -> None:
    out = reserve_stdout()
    workload, scale = options()
    config, setup = make_setup(workload, scale)
    ours = Ours(config, setup)
    serve(out, workload, ours.round, note=ours.note)


if __name__ == "__main__":
    main()
