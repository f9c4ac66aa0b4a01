"""Putting the parts of a setup together, everything else as configured."""

from __future__ import annotations

from torch import nn
from torch.nn import functional

from submodel.algorithm.clients import Clients
from submodel.algorithm.registry import PROJECTIONS, RULES, STEPS
from submodel.algorithm.types import Setup
from submodel.config import Config
from submodel.data import Population
from submodel.local.registry import OPTIMISERS, SCHEDULES
from submodel.local.work import LocalWork
from submodel.model.axes import Axes
from submodel.model.norm import Statistics
from submodel.prepare.settings import (
    alignment_of,
)
from submodel.schemes import Scheme
from submodel.tasks.loss import Loss


def assemble_setup(
    config: Config,
    module: nn.Module,
    axes: Axes,
    scheme: Scheme,
    federation: Clients,
    loss: Loss = functional.cross_entropy,
) -> Setup:
    """The setup of these parts, everything else as configured."""
    local = config.local
    return Setup(
        module=module,
        axes=axes,
        scheme=scheme,
        population=Population(
            count=config.clients.count,
            per_round=config.clients.sample_size,
            capacities=config.clients.capacities,
            proportions=config.clients.proportions or [1.0] * len(config.clients.capacities),
            capacity_mode=config.clients.capacity_mode,
            seed=config.seed,
            sampling=config.clients.sampling,
            groups=config.clients.group_count,
        ),
        clients=federation,
        work=LocalWork(
            lr=local.lr,
            epochs=(local.epochs or 1) if local.steps is None else None,
            steps=local.steps,
            batch_size=local.batch_size or None,
            drop_last=local.drop_last,
            optimiser=OPTIMISERS.find(local.optimiser).make(local),
            clip=local.clip,
            precision=local.precision,
        ),
        loss=loss,
        seed=config.seed,
        granularity=config.scheme.granularity,
        alignment=alignment_of(config),
        least=config.axes.least,
        schedule=SCHEDULES.find(local.schedule).make(local, config.train.rounds),
        absent_labels=local.absent_labels,
        rule=RULES.find(config.merge.rule).make(config.merge),
        weights=config.merge.weights,
        server=STEPS.find(config.server.name).make(config.server),
        projection=PROJECTIONS.find(config.merge.projection).make(config.merge),
        statistics=Statistics(config.train.statistics, config.train.statistics_examples),
        transport=config.devices.transport,
    )
