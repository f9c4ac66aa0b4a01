"""Putting the parts of a setup together, everything else as configured."""

from __future__ import annotations

from torch import nn

from submodel.algorithm.registry import PROJECTIONS, RULES, STEPS
from submodel.algorithm.types import Clients, Setup
from submodel.config import Config
from submodel.data import Population
from submodel.local.optimisers import Proximal
from submodel.local.registry import OPTIMISERS, SCHEDULES
from submodel.local.schedule import StepRates, WarmUp
from submodel.local.training import LocalWork
from submodel.model.axes import Axes
from submodel.model.norm import Statistics
from submodel.prepare.objective import make_augmentations
from submodel.schemes import Scheme
from submodel.tasks.base import TaskKind


def make_population(config: Config) -> Population:
    """The clients that a configuration registers."""
    clients = config.clients
    return Population(
        count=clients.client_count,
        per_round=clients.sample_size,
        capacities=clients.capacities,
        proportions=clients.proportions or [1.0] * len(clients.capacities),
        capacity_mode=clients.capacity_mode,
        seed=config.seed,
        sampling=clients.sampling,
        groups=clients.group_count,
        least=clients.least or 0.0,
    )


def assemble_setup(
    config: Config,
    module: nn.Module,
    axes: Axes,
    scheme: Scheme,
    clients: Clients,
    task: TaskKind,
) -> Setup:
    """The setup of these parts, everything else as configured."""
    local = config.local
    schedule = SCHEDULES.find(local.schedule).make(local, config.train.rounds)
    optimiser = OPTIMISERS.find(local.optimiser).make(local)
    return Setup(
        module=module,
        axes=axes,
        scheme=scheme,
        population=make_population(config),
        clients=clients,
        work=LocalWork(
            lr=local.lr,
            epochs=(local.epochs or 1) if local.steps is None else None,
            steps=local.steps,
            batch_size=local.batch_size or None,
            drop_last=local.drop_last,
            optimiser=Proximal(optimiser, local.proximal) if local.proximal else optimiser,
            clip=local.clip,
            precision=local.precision,
            pieces=local.accumulate,
            rates=StepRates(local.step_schedule, local.warmup_steps),
        ),
        loss=task.loss,
        metrics=task.metrics,
        headline=task.headline,
        augment=make_augmentations(config, clients.dataset),
        keeps_slots=local.optimiser_state == "kept",
        seed=config.seed,
        granularity=config.scheme.granularity,
        least=config.axes.least,
        schedule=WarmUp(schedule, local.warmup_rounds) if local.warmup_rounds else schedule,
        absent_labels="keep" if local.absent_labels == "auto" else local.absent_labels,
        rule=RULES.find(config.merge.rule).make(config.merge),
        weights=config.merge.weights,
        server=STEPS.find(config.server.name).make(config.server),
        projection=PROJECTIONS.find(config.merge.projection).make(config.merge),
        statistics=Statistics(config.train.statistics, config.train.statistics_examples),
        transport=config.devices.transport,
    )
