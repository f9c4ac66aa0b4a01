"""From a configuration to a setup: load the data, make the model, check that they fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn import functional

from submodel.algorithm.clients import Clients, PartitionedClients
from submodel.algorithm.registry import PROJECTIONS, RULES, STEPS
from submodel.algorithm.types import Setup
from submodel.config import Config, TaskSection
from submodel.config.trackers import TRACKERS
from submodel.data import Dataset, Partition, Population, limit
from submodel.data.partitions import PartitionContext, Unsplit
from submodel.data.registry import PARTITIONS, SOURCES
from submodel.data.sources import SourceContext
from submodel.engines import lone
from submodel.engines.device import device_problems
from submodel.errors import ConfigError
from submodel.local.registry import OPTIMISERS, SCHEDULES
from submodel.local.work import LocalWork
from submodel.model.axes import Axes, Dimension, declare, trace
from submodel.model.axes.advice import to_change
from submodel.model.build import build_module, tensors_of
from submodel.model.build.cut_check import check_axes
from submodel.model.build.output_check import OutputCheck
from submodel.model.cut import COORDINATES, WHOLE
from submodel.model.norm import Statistics
from submodel.model.registry import MODELS
from submodel.model.seeding import seed_torch
from submodel.model.zoo import ModelContext, factorised, only_ranks
from submodel.prepare.fit import check_fit, check_kinds, check_model, simplify
from submodel.prepare.settings import (
    alignment_of,
    alignment_problems,
    axes_problems,
    factorised_problems,
    target_problems,
    unused_problems,
)
from submodel.prepare.trial import try_scheme
from submodel.randomness import key
from submodel.schemes import Draw, Random, RunFacts, Scheme, Static
from submodel.schemes.base import SchemeContext
from submodel.schemes.draw import draw_units
from submodel.schemes.registry import SCHEMES
from submodel.tasks.loss import Loss
from submodel.tasks.registry import LOSSES


def load_data(config: Config) -> Dataset:
    """The configured dataset; of a source that gives more than is asked for, a part."""
    choice = config.data
    source = SOURCES.find(choice.name)
    context = SourceContext(source.argument, choice.examples, choice.test_examples)
    return limit(source.make(choice, context), choice.examples, choice.test_examples)


def split_data(config: Config, data: Dataset) -> Partition:
    """Who has which training examples; raises `ConfigError` where somebody would have none."""
    labels = data.train.y.numpy() if data.classes is not None else None
    context = PartitionContext(labels, len(data.train), config.clients.count, config.seed)
    return PARTITIONS.find(config.data.partition).make(config.data, context)


def make_scheme(config: Config, module: nn.Module, axes: Axes, has_labels: bool) -> Scheme:
    """The scheme of a configuration, for these axes, if it is defined for the run."""
    sizes = _sizes(config, module, axes)
    context = SchemeContext(sizes, config.clients.capacities)
    scheme = SCHEMES.find(config.scheme.name).make(config.scheme, context)
    facts = RunFacts(
        sizes=sizes,
        capacities=config.clients.capacities,
        clients=config.clients.count,
        per_round=config.clients.sample_size,
        granularity=config.scheme.granularity,
        output_step=config.train.output_step is not None,
        shapes={name: parameter.shape for name, parameter in module.named_parameters()},
        least=config.axes.least,
        rounds=config.train.rounds,
        is_aligned=alignment_of(config) == "residual",
        has_labels=has_labels,
    )
    if problems := scheme.problems(facts):
        raise ConfigError(problems)
    return scheme


def make_module(config: Config, inputs: Sequence[int], classes: int | None) -> nn.Module:
    """The configured model, initialised from the seed alone."""
    with torch.random.fork_rng(devices=[]):
        seed_torch(key(config.seed, "initialise") % 2**63)
        context = ModelContext(inputs, classes or 1)
        return MODELS.find(config.model.name).make(config.model, context)


def prepare(
    config: Config,
    module: nn.Module | None = None,
    data: Dataset | None = None,
    axes: Axes | Mapping[str, tuple[Dimension, ...]] | None = None,
    loss: Loss | None = None,
    partition: Partition | None = None,
) -> Setup:
    """The setup of a run; an own module, own data and an own loss replace the configured ones.

    The axes are traced unless they are given, and who has which examples is drawn unless it is.
    Raises `ConfigError` with every misfit it can find.
    """
    if loss is None:
        loss = LOSSES.find(config.task.loss).make(config.task)
    elif config.task != TaskSection():
        raise ConfigError(
            [f"task.loss: {config.task.loss!r} is given, and a loss in Python; leave one out"]
        )
    check_kinds(module, data, loss)
    problems = [
        f"{section}.name: 'own' stands for what submodel.train(model, data) is given in Python"
        for section, part in (("model", module), ("data", data))
        if part is None and getattr(config, section).name == "own"
    ]
    if problems:
        raise ConfigError(problems)
    if data is None:
        data = load_data(config)
    else:
        data = limit(data, config.data.examples, config.data.test_examples)
    problems += device_problems(config.engine.device)
    problems += unused_problems(config)
    for name in config.train.trackers:
        TRACKERS.find(name)  # its code loads, before anything is written
    if config.model.factorised:
        problems += factorised_problems(config, own_axes=axes is not None)
    if problems:
        raise ConfigError(problems)
    if module is None:
        module = make_module(config, data.inputs, data.classes)
        if data.example.is_floating_point():
            module = module.to(data.example.dtype)
    check_model(module)
    if config.model.factorised:
        module = factorised(module, config.model.rank_share)
    loss = simplify(loss, data)
    check_fit(module, data, loss)
    problems += target_problems(config, data, loss)
    problems += alignment_problems(config, module, own_axes=axes is not None)
    if problems:
        raise ConfigError(problems)
    if problems := axes_problems(config, own_axes=axes is not None):
        raise ConfigError(problems)
    cut_axes = find_axes(config, module, data, axes)
    cut_axes = only_cut_ranks(config, module, cut_axes)
    problems += [
        f"axes.least: {axis!r} is not an axis that capacities cut; those are "
        f"{', '.join(cut_axes.cut_by_capacity) or 'none'}"
        for axis in config.axes.least.keys() - cut_axes.cut_by_capacity.keys()
    ]
    scheme: Scheme | None = None
    try:
        partition = partition or split_data(config, data)
    except ConfigError as error:
        if config.engine.name == "flower":
            partition = Unsplit(error)  # devices bring data of their own
        else:
            problems += error.problems
    try:
        has_labels = data.classes is not None and loss is functional.cross_entropy
        scheme = make_scheme(config, module, cut_axes, has_labels)
    except ConfigError as error:
        problems += error.problems
    if problems or partition is None or scheme is None:
        raise ConfigError(problems)
    setup = assemble_setup(
        config, module, cut_axes, scheme, PartitionedClients(data, partition), loss
    )
    try_scheme(setup)
    _check_builds(module, cut_axes, scheme, config, data)
    if config.engine.name != "flower" and (problems := lone.problems(setup, config.train.rounds)):
        raise ConfigError(problems)  # a device tells itself, when it knows what it has
    return setup


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


def only_cut_ranks(config: Config, module: nn.Module, axes: Axes) -> Axes:
    """The axes that capacities cut: ranks alone where the model is factorised."""
    return only_ranks(module, axes) if config.model.factorised else axes


def find_axes(
    config: Config,
    module: nn.Module,
    data: Dataset,
    own_axes: Axes | Mapping[str, tuple[Dimension, ...]] | None,
) -> Axes:
    """The axes as given, or traced where anything is cut along them."""
    if isinstance(own_axes, Axes):
        check_axes(module, own_axes)
        return own_axes
    if own_axes is not None:
        return declare(tensors_of(module), own_axes)
    by_label = config.local.absent_labels != "keep"
    by_capacity = config.scheme.granularity == "unit" and min(_shares(config)) < 1
    if not by_label and not by_capacity:
        return declare(tensors_of(module), {})
    try:
        return trace(
            module,
            data.example,
            classes=by_label,
            freeze=config.axes.freeze,
            tie=config.axes.tie,
            whole=config.axes.whole,
            cut=config.axes.cut,
            capacities=sorted(_shares(config) - {1.0}, reverse=True),
        )
    except ConfigError as error:
        if not by_label or not any(p.startswith("classes:") for p in error.problems):
            raise
        hint = "local.absent_labels: cutting the classifier's rows is not possible here; use 'keep'"
        raise ConfigError([*error.problems, hint]) from None


def _check_builds(
    module: nn.Module, axes: Axes, scheme: Scheme, config: Config, data: Dataset
) -> None:
    """Build every capacity once, before anything runs: what cannot be built is said now.

    The whole, too: its copy must be a model of its own. A scheme that keeps unequal numbers of
    units is asked for some of its own cuts, as sizes that fit the others need not fit those.
    """
    outputs = OutputCheck(module, data.example)
    outputs.check(build_module(module, WHOLE), WHOLE)
    shares = sorted(_shares(config) - {1.0})
    if config.scheme.granularity != "unit" or not shares:
        return
    shape_keys = set()
    plain = [(Static(), capacity, 0) for capacity in shares]
    for rule, capacity, client in [*plain, *((scheme, shares[0], n) for n in range(3))]:
        draw = Draw(config.seed, 0, client)
        try:
            cut = draw_units(rule, axes, capacity, draw, least=config.axes.least)
        except LookupError:  # it looks at the model; then it may draw anything
            cut = draw_units(Random("bernoulli"), axes, capacity, draw, least=config.axes.least)
        if cut.shape_key not in shape_keys:
            shape_keys.add(cut.shape_key)
            outputs.check(build_module(module, cut), cut)


def _shares(config: Config) -> set[float]:
    """The capacities, and the widths that steps may take."""
    return {*config.clients.capacities, *(getattr(config.scheme, "widths", None) or ())}


def _sizes(config: Config, module: nn.Module, axes: Axes) -> dict[str, int]:
    """The axes that the scheme selects from."""
    if config.scheme.granularity == "coordinate":
        return {COORDINATES: sum(p.numel() for p in module.parameters())}
    sizes = axes.cut_by_capacity
    if not sizes and min(_shares(config)) < 1:
        raise ConfigError(
            [
                "scheme.granularity: 'unit' needs axes to cut, and this model has none; "
                "'submodel inspect' says why; or use 'coordinate'",
                *to_change(axes.frozen, axes.kept_whole, axes.lines),
            ]
        )
    return sizes or {COORDINATES: 1}
