"""Choosing how a run is computed here: by an estimate of its work, never by a clock.

The estimate needs shapes alone, so a choice is the same every time; it is written into the run's
configuration, and a resumed run keeps it.
"""

from __future__ import annotations

import os

from submodel.config import Config
from submodel.cost import BACKWARD, CostModel
from submodel.cut import Cut, draw_units
from submodel.engines.torchrun import launched
from submodel.rounds import Assignment, Setup, cut_of
from submodel.schemes import Draw, Static

_FLOPS_PER_SECOND = 2e10  # of one core on small convolutions: an order of magnitude is enough
_SECONDS_PER_STEP = 2e-3  # that operators cost beside their arithmetic
_WORTH_PROCESSES = 60.0  # seconds of work that starting more processes is worth


def estimated_seconds(config: Config, setup: Setup) -> float:
    """Roughly how long one core would train."""
    costs = CostModel(setup.module, setup.federation.dataset.example)
    shares = setup.population.proportions
    flops = 0.0
    for capacity, share in zip(setup.population.capacities, shares, strict=True):
        cut: Cut
        if setup.granularity == "unit":
            cut = draw_units(Static(), setup.axes, capacity, Draw(0, 0, 0), least=setup.least)
        else:
            cut = cut_of(setup, Assignment(0, 0, capacity))
        flops += BACKWARD * costs.forward_flops(cut) * share / sum(shares)
    examples = len(setup.federation.partition.indices(0))
    batch = min(setup.work.batch_size or examples, examples)
    steps = setup.work.steps or (setup.work.epochs or 0) * -(-examples // batch)
    per_client = steps * (_SECONDS_PER_STEP + batch * flops / _FLOPS_PER_SECOND)
    return config.train.rounds * setup.population.per_round * per_client


def choose(config: Config, setup: Setup) -> Config:
    """The configuration with ``engine.name = "auto"`` settled.

    A group that torchrun has started is used; more than a minute of work is shared among one
    process per core; less is done here.
    """
    cores = os.cpu_count() or 1
    on_cpu = config.engine.device == "cpu"
    settled: dict[str, object]
    if launched():
        settled = {"name": "torchrun", "processes": int(os.environ["WORLD_SIZE"])}
    elif config.engine.name != "auto":
        return config
    elif cores > 1 and on_cpu and estimated_seconds(config, setup) > _WORTH_PROCESSES:
        settled = {"name": "torchrun", "processes": cores}
    else:
        settled = {"name": "local"}
    return config.model_copy(update={"engine": config.engine.model_copy(update=settled)})
