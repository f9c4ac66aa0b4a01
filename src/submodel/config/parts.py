"""The parts of a setup (data, partition, model, axes, scheme) and its assembly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from submodel.algorithm.builtin_rules import PROJECTIONS, RULES, STEPS
from submodel.algorithm.types import Clients, Setup
from submodel.config import AxesSection, Config, parse
from submodel.config.model_facts import ModelKey, find_once
from submodel.core.errors import ConfigError, refuse
from submodel.core.options import FreeOptions, Section
from submodel.core.randomness import key, seeded
from submodel.data import Dataset, Partition, Population, limit
from submodel.data.augmentations import Augmentations, AugmentContext
from submodel.data.builtin_data import AUGMENTATIONS, PARTITIONS, SOURCES
from submodel.data.partitions import Natural, PartitionContext
from submodel.data.sources import SourceContext
from submodel.model.axes import Axes, Dimension, declare, trace
from submodel.model.axes.record import to_change
from submodel.model.build import build_module, load, tensors_of
from submodel.model.build.checks import check_axes
from submodel.model.builtin_models import MODELS
from submodel.model.cut import COORDINATES, gather
from submodel.model.inputs import Inputs
from submodel.model.norm import Statistics
from submodel.model.zoo import ModelContext, add_adapters, factorised, only_ranks
from submodel.model.zoo.low_rank import DEFAULT_RANK, adapters_of
from submodel.schemes import RunFacts, Scheme
from submodel.schemes.builtin_schemes import SCHEMES
from submodel.schemes.draw import draw_units
from submodel.schemes.rolling import Static
from submodel.schemes.scheme import Draw, SchemeContext, problems_of
from submodel.tasks.builtin_tasks import OPTIMISERS, SCHEDULES
from submodel.tasks.optimisers import Proximal
from submodel.tasks.schedule import StepRates, WarmUp
from submodel.tasks.task import TaskKind
from submodel.tasks.training import LocalWork

_FEWEST_CLIENTS, _EXAMPLES_EACH = 2, 8  # if the data is too small for the default number
AXIS_CHANGES = ("freeze", "tie", "whole", "cut")
"""Keys of the section ``axes`` that change the traced axes."""


def load_data(config: Config) -> Dataset:
    """Load the configured dataset, limited to the configured numbers of examples."""
    choice = config.data
    data = SOURCES.find(choice.name).make(choice, source_context(config))
    return limit(data, choice.examples, choice.test_examples)


def source_context(config: Config) -> SourceContext:
    """Make the context of the configured data source."""
    argument = SOURCES.argument(config.data.name)
    return SourceContext(argument, config.data.examples, config.data.test_examples)


def split_data(config: Config, data: Dataset) -> Partition:
    """Partition the training examples; raise `ConfigError` if a client would have none."""
    context = partition_context(config, data)
    return PARTITIONS.find(config.data.partition).make(config.data, context)


def settle_clients(config: Config, data: Dataset) -> Config:
    """Set the number of clients to the owners that the data names, or as many as its size allows.

    A configured number is kept.
    """
    config = settle_natural(config, None if data.owners is None else len(data.owners))
    if config.clients.count is not None or config.engine.name == "flower":
        return config  # devices have their own data
    most = max(_FEWEST_CLIENTS, min(config.clients.client_count, len(data.train) // _EXAMPLES_EACH))
    for count in (None, *range(most, _FEWEST_CLIENTS - 1, -1)):
        fitting = config if count is None else _with_count(config, count)
        try:
            split_data(fitting, data)
        except ConfigError as error:
            if not all(problem.startswith("clients.count:") for problem in error.problems):
                return config  # another number of clients would not help
        else:
            return fitting
    return fitting


def settle_natural(config: Config, owners: int | None) -> Config:
    """Set the number of clients to the owners that the data names, if it is partitioned by owner.

    A configured number is kept; ``owners`` is None if the data names no owners.
    """
    partition = config.data.partition
    natural = partition == "natural" or (partition == "auto" and config.data.asks_for_natural)
    if owners is None or not natural or config.clients.count is not None:
        return config
    return _with_count(config, owners)


def _with_count(config: Config, count: int) -> Config:
    """Set the number of clients, and limit the clients per round to it."""
    clients = config.clients.model_dump(exclude_unset=True)
    if config.clients.per_round == type(config.clients).model_fields["per_round"].default:
        clients["per_round"] = min(config.clients.sample_size, count)
    section = parse({"clients": {**clients, "count": count}}).clients
    return config.model_copy(update={"clients": section})


def keep_clients(config: Config, setup: Setup) -> Config:
    """Return the configuration to save: it records a number of clients reduced for small data."""
    population = setup.population
    is_natural = isinstance(getattr(setup.clients, "partition", None), Natural)
    if config.clients.count is not None or is_natural:
        return config
    if population.count == config.clients.client_count:
        return config
    return _with_count(config, population.count)


def partition_context(config: Config, data: Dataset) -> PartitionContext:
    """Make the context of a partition: the targets and the number of clients."""
    clients, seed, y = config.clients.client_count, config.seed, data.train.y
    if data.classes is not None:
        return PartitionContext(y.numpy(), len(y), clients, seed, owners=data.owners)
    targets = describe_targets(data)
    return PartitionContext(None, len(y), clients, seed, targets, data.owners)


def describe_targets(data: Dataset) -> str:
    """Describe the type and shape of targets that are not labels."""
    return f"{data.train.y.dtype} of shape {tuple(data.train.y.shape)}".removeprefix("torch.")


def _make_augmentations(config: Config, data: Dataset) -> Augmentations:
    names: Sequence[str] = config.data.augment
    if not names:
        return Augmentations()
    about = data.about
    black: tuple[float, ...] = ()
    if about is not None and about.mean:
        black = tuple(-m / d for m, d in zip(about.mean, about.deviation, strict=True))
    context = AugmentContext(data.inputs, black)
    steps = []
    for name in names:
        component = AUGMENTATIONS.find(name)
        options = component.options() if component.options is FreeOptions else Section()
        steps.append(component.make(options, context))
    return Augmentations(tuple(steps), config.seed)


def make_module(config: Config, context: ModelContext) -> nn.Module:
    """Make the configured model, initialised from the seed alone."""
    with seeded(key(config.seed, "initialise") % 2**63):
        return MODELS.find(config.model.name).make(config.model, context)


def as_low_rank(config: Config, module: nn.Module) -> nn.Module:
    """Factorise the layers of the model or add adapters, if configured."""
    choice = config.model
    if choice.factorised:
        return factorised(module, choice.rank_share)
    if choice.adapters is None:
        return module
    with seeded(key(config.seed, "adapters") % 2**63):
        return add_adapters(
            module,
            choice.adapter_rank or DEFAULT_RANK,
            choice.adapter_alpha,
            choice.adapter_dropout or 0.0,
            choice.adapter_layers or (),
        )


def take_share(config: Config, module: nn.Module, example: Inputs) -> nn.Module:
    """Cut the model to the first units of every axis, a fraction ``model.share`` of them.

    The result has the shape that ``static`` gives this capacity. Layers with a method
    ``reset_parameters`` are initialised again, as in a model of that size, unless initial weights
    are given; other layers keep their part of the large model's weights.
    """
    share = config.model.share
    if share == 1:
        return module
    axes = _trace(config, module, example, (share,))
    if not axes.cut_by_capacity:
        raise ConfigError(f"model.share: {share:g} cuts nothing: this model has no axes")
    cut = draw_units(Static(), axes, share, Draw(config.seed, 0, 0), least=config.axes.least)
    small = build_module(module, cut)
    load(small, gather(cut, tensors_of(module)))
    if config.model.weights is None:
        with seeded(key(config.seed, "initialise") % 2**63):
            for layer in small.modules():
                if callable(reset := getattr(layer, "reset_parameters", None)):
                    reset()
    return small


def find_axes(
    config: Config,
    module: nn.Module,
    data: Dataset,
    own_axes: Axes | Mapping[str, tuple[Dimension, ...]] | None,
    built_in: ModelKey | None,
) -> Axes:
    """Return the given axes, or trace them if the run cuts along axes; cached if built in."""
    if isinstance(own_axes, Axes):
        check_axes(module, own_axes)
        return own_axes
    if own_axes is not None:
        return declare(tensors_of(module), own_axes)
    by_label = config.local.absent_labels != "keep"
    by_capacity = config.scheme.granularity == "unit" and min(capacity_shares(config)) < 1
    if not by_label and not by_capacity:
        return declare(tensors_of(module), {})
    capacities = tuple(sorted(capacity_shares(config) - {1.0}, reverse=True))

    def find() -> Axes:
        least = config.axes.least
        return _trace(config, module, data.example, capacities, classes=by_label, least=least)

    try:
        return find_once(built_in, ("axes", by_label, capacities), find)
    except ConfigError as error:
        if not by_label or not any(p.startswith("classes:") for p in error.problems):
            raise
        hint = "local.absent_labels: the classifier's rows cannot be cut here; use 'keep'"
        raise ConfigError([*error.problems, hint]) from None


def _trace(
    config: Config, module: nn.Module, example: Inputs, capacities: Sequence[float], **more: Any
) -> Axes:
    """Trace the axes, with the changes of the configuration."""
    changes = {change: getattr(config.axes, change) for change in AXIS_CHANGES}
    return trace(module, example, capacities=capacities, **changes, **more)


def only_cut_ranks(config: Config, module: nn.Module, axes: Axes) -> Axes:
    """Restrict the cuttable axes to ranks if the model is factorised or has adapters."""
    has_ranks = config.model.factorised or bool(adapters_of(module))
    return only_ranks(module, axes) if has_ranks else axes


def capacity_shares(config: Config) -> set[float]:
    """Return the capacities and the widths of single steps."""
    return {*config.clients.capacities, *(getattr(config.scheme, "widths", None) or ())}


def selection_sizes(config: Config, module: nn.Module, axes: Axes) -> dict[str, int]:
    """Return the sizes of the axes that the scheme selects from."""
    if config.scheme.granularity == "coordinate":
        return {COORDINATES: sum(p.numel() for p in module.parameters())}
    sizes = axes.cut_by_capacity
    if not sizes and min(capacity_shares(config)) < 1:
        raise ConfigError(
            [
                "scheme.granularity: 'unit' needs axes to cut, but this model has none; "
                "'submodel inspect' explains why; or use 'coordinate'",
                *to_change(axes.frozen, axes.kept_whole, axes.lines),
            ]
        )
    return sizes or {COORDINATES: 1}


def make_scheme(
    config: Config, module: nn.Module, axes: Axes, has_labels: bool, own_axes: bool = False
) -> Scheme:
    """Make the scheme of a configuration for these axes; raise if it does not suit the run."""
    sizes = selection_sizes(config, module, axes)
    context = SchemeContext(sizes, config.clients.capacities)
    scheme = SCHEMES.find(config.scheme.name).make(config.scheme, context)
    facts = RunFacts(
        sizes=sizes,
        capacities=config.clients.capacities,
        clients=config.clients.client_count,
        per_round=config.clients.sample_size,
        granularity=config.scheme.granularity,
        output_step=config.train.output_step is not None,
        shapes={name: parameter.shape for name, parameter in module.named_parameters()},
        least=config.axes.least,
        rounds=config.train.rounds,
        has_labels=has_labels,
        module=module,
        are_axes_traced=config.axes == AxesSection() and not own_axes,
    )
    refuse(problems_of(scheme, facts))
    return scheme


def make_population(config: Config) -> Population:
    """Make the population of clients of a configuration."""
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
    """Assemble a setup from these parts, with everything else as configured."""
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
        augment=_make_augmentations(config, clients.dataset),
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
