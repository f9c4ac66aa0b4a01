"""From a configuration to a setup: load the data, make the model, check that they fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from submodel.algorithm.merge import PROJECTIONS, NoProjection
from submodel.algorithm.server import STEPS
from submodel.algorithm.types import Clients, Federation, Setup
from submodel.config import AxesChoice, Config
from submodel.data import Dataset, Dirichlet, Partition, Population, limit, load, make_partition
from submodel.data.flower import flower_partition
from submodel.data.partitions import Unsplit
from submodel.engines import lone
from submodel.engines.device import device_problems
from submodel.errors import ConfigError
from submodel.local.work import LocalWork, Schedule
from submodel.model.axes import Axes, Dimension, declare, trace
from submodel.model.axes.advice import to_change
from submodel.model.build import build, tensors_of
from submodel.model.build.given import check_axes
from submodel.model.cut import COORDINATES, WHOLE
from submodel.model.norm import Statistics
from submodel.model.seeding import seed_torch
from submodel.model.zoo import factorised, make_model, only_ranks
from submodel.model.zoo.own import make
from submodel.model.zoo.preresnet import PreResNet
from submodel.plugins import is_path
from submodel.prepare.fit import (
    check_fit,
    check_kinds,
    check_model,
    cross_entropy_options,
    simplified,
)
from submodel.prepare.trial import try_scheme
from submodel.randomness import key
from submodel.schemes import Draw, Given, Random, Scheme, Static, registry
from submodel.schemes.draw import draw_units
from submodel.tasks.loss import Loss


def load_data(config: Config) -> Dataset:
    """The configured dataset."""
    choice = config.data
    return load(
        choice.name,
        path=None if choice.path is None else Path(choice.path),
        source=choice.source,
        label=choice.label,
        size=choice.size,
        examples=choice.examples,
        test_examples=choice.test_examples,
    )


def split_data(config: Config, data: Dataset) -> Partition:
    """Who has which training examples; raises `ConfigError` where somebody would have none."""
    choice, clients, seed = config.data, config.clients.count, config.seed
    labels = data.train.y.numpy() if data.classes is not None else None
    if choice.partition in ("iid", "labels"):
        each = choice.labels_per_client if choice.partition == "labels" else None
        return make_partition(
            labels, len(data.train), clients, each, choice.examples_per_client, seed
        )
    if labels is None:
        raise ConfigError([f"data.partition: {choice.partition!r} needs class labels; use 'iid'"])
    if choice.partitioner is None:
        return Dirichlet(labels, clients, choice.alpha, seed)
    return flower_partition(labels, clients, choice.partitioner, choice.partitioner_options, seed)


def make_scheme(config: Config, module: nn.Module, axes: Axes, labelled: bool) -> Scheme:
    """The scheme of a configuration, for these axes, if it is defined for the run."""
    choice, sizes = config.scheme, _sizes(config, module, axes)
    if choice.widths is None:
        choice = choice.model_copy(update={"widths": config.clients.capacities})
    scheme = registry.make(choice, sizes)
    given = Given(
        sizes=sizes,
        capacities=config.clients.capacities,
        clients=config.clients.count,
        per_round=config.clients.sampled,
        granularity=config.scheme.granularity,
        output_step=config.train.output_step is not None,
        shapes={name: parameter.shape for name, parameter in module.named_parameters()},
        least=config.axes.least,
        rounds=config.train.rounds,
        aligned=config.scheme.alignment == "residual",
        labelled=labelled,
    )
    if problems := scheme.problems(given):
        raise ConfigError(problems)
    return scheme


def make_module(config: Config, inputs: Sequence[int], classes: int | None) -> nn.Module:
    """The configured model, initialised from the seed alone."""
    with torch.random.fork_rng(devices=[]):
        seed_torch(key(config.seed, "initialise") % 2**63)
        if is_path(config.model.name):
            return make(config.model.name, config.model.options)
        model = config.model
        return make_model(model.name, inputs, classes or 1, model.width, model.scaler)


def prepare(
    config: Config,
    module: nn.Module | None = None,
    data: Dataset | None = None,
    axes: Axes | Mapping[str, tuple[Dimension, ...]] | None = None,
    loss: Loss = functional.cross_entropy,
    partition: Partition | None = None,
) -> Setup:
    """The setup of a run; an own module and own data replace the configured ones.

    The axes are traced unless they are given, and who has which examples is drawn unless it is.
    Raises `ConfigError` with every misfit it can find.
    """
    check_kinds(module, data, loss)
    problems = [
        f"{section}.name: 'own' stands for what submodel.train(model, data) is given in Python"
        for section, given in (("model", module), ("data", data))
        if given is None and getattr(config, section).name == "own"
    ]
    if problems:
        raise ConfigError(problems)
    if data is None:
        data = load_data(config)
    else:
        data = limit(data, config.data.examples, config.data.test_examples)
    problems += device_problems(config.engine.device)
    if module is None:
        own = is_path(config.model.name)
        if own and config.model.width is not None:
            problems.append("model.width: for built-in models; an own factory takes model.options")
        if config.model.options and not own:
            problems.append(f"model.options: for own factories, not for {config.model.name!r}")
    if config.model.scaler and (module is not None or is_path(config.model.name)):
        problems.append(
            "model.scaler: for the preresnets; put submodel.model.norm.Scaler in your module"
        )
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
    loss = simplified(loss, data)
    check_fit(module, data, loss)
    problems += target_problems(config, data, loss)
    problems += alignment_problems(config, module, own_axes=axes is not None)
    if problems:
        raise ConfigError(problems)
    found = find_axes(config, module, data, axes)
    found = only_cut_ranks(config, module, found)
    problems += [
        f"axes.least: {axis!r} is not an axis that capacities cut; those are "
        f"{', '.join(found.cut_by_capacity) or 'none'}"
        for axis in config.axes.least.keys() - found.cut_by_capacity.keys()
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
        labelled = data.classes is not None and loss is functional.cross_entropy
        scheme = make_scheme(config, module, found, labelled)
    except ConfigError as error:
        problems += error.problems
    if problems or partition is None or scheme is None:
        raise ConfigError(problems)
    setup = assemble_setup(config, module, found, scheme, Federation(data, partition), loss)
    try_scheme(setup)
    _check_builds(module, found, scheme, config, data)
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
            per_round=config.clients.sampled,
            capacities=config.clients.capacities,
            proportions=config.clients.proportions or [1.0] * len(config.clients.capacities),
            capacity_mode=config.clients.capacity_mode,
            seed=config.seed,
            sampling=config.clients.sampling,
            groups=config.clients.visited,
        ),
        federation=federation,
        work=LocalWork(
            lr=local.lr,
            epochs=(local.epochs or 1) if local.steps is None else None,
            steps=local.steps,
            batch_size=local.batch_size or None,
            drop_last=local.drop_last,
            momentum=local.momentum,
            weight_decay=local.weight_decay,
            clip=local.clip,
            precision=local.precision,
        ),
        loss=loss,
        seed=config.seed,
        granularity=config.scheme.granularity,
        alignment=config.scheme.alignment,
        least=config.axes.least,
        schedule=Schedule(
            local.schedule, tuple(local.milestones), local.decay, config.train.rounds
        ),
        absent_labels=local.absent_labels,
        rule=config.merge.rule,
        weights=config.merge.weights,
        server=STEPS[config.server.name](**config.server.given),
        projection=NoProjection()
        if config.merge.radius is None
        else PROJECTIONS[config.merge.projection](config.merge.radius),
        statistics=Statistics(config.train.statistics, config.train.statistics_examples),
        transport=config.devices.transport,
    )


def target_problems(config: Config, data: Dataset, loss: Loss) -> list[str]:
    """What is set for class labels, where targets or loss are of another kind."""
    problems = []
    targets = f"{data.train.y.dtype} of shape {tuple(data.train.y.shape)}".removeprefix("torch.")
    options = cross_entropy_options(loss, data)
    absent, partition = config.local.absent_labels, config.data.partition
    if absent != "keep" and (data.classes is None or options):
        needs = f"class labels, and the targets are {targets}"
        if data.classes is not None:
            needs = f"the plain cross-entropy, and the loss has or is {', '.join(options)}"
        problems.append(f"local.absent_labels: {absent!r} needs {needs}; use 'keep'")
    elsewhere = config.engine.name == "flower"  # devices bring data of their own
    if partition != "iid" and data.classes is None and not elsewhere:
        problems.append(
            f"data.partition: {partition!r} needs class labels, and the targets are {targets}; "
            "use 'iid'"
        )
    return problems


def only_cut_ranks(config: Config, module: nn.Module, axes: Axes) -> Axes:
    """The axes that capacities cut: ranks alone where the model is factorised."""
    return only_ranks(module, axes) if config.model.factorised else axes


def alignment_problems(config: Config, module: nn.Module, own_axes: bool) -> list[str]:
    """Why channels cannot be drawn layer by layer here; empty if they can, or are not."""
    scheme = config.scheme
    if scheme.alignment == "residual":
        return []
    needs = [
        (scheme.name == "random", f"scheme.name = 'random', not {scheme.name!r}"),
        (scheme.sampling == "fixed", f"scheme.sampling = 'fixed', not {scheme.sampling!r}"),
        (scheme.granularity == "unit", "scheme.granularity = 'unit', not 'coordinate'"),
        (
            isinstance(module, PreResNet),
            f"preresnet18 or preresnet34, whose layers it knows, not {type(module).__name__}",
        ),
        (not config.model.factorised, "the layers as they are, not model.factorised"),
        (
            not own_axes and config.axes == AxesChoice(),
            "the traced axes unchanged, as it draws by layers",
        ),
    ]
    return [f"scheme.alignment: 'independent' needs {need}" for met, need in needs if not met]


def factorised_problems(config: Config, own_axes: bool) -> list[str]:
    """What contradicts a capacity that is rank, and rank alone."""
    problems = []
    if config.scheme.granularity == "coordinate":
        problems.append(
            "scheme.granularity: 'coordinate' masks single weights, but with model.factorised "
            "capacity is rank; use 'unit'"
        )
    if config.axes.cut:
        problems.append("axes.cut: with model.factorised nothing but ranks is cut")
    if own_axes:
        problems.append("model.factorised: has tensors of its own and traces them; leave out axes=")
    return problems


def find_axes(
    config: Config,
    module: nn.Module,
    data: Dataset,
    given: Axes | Mapping[str, tuple[Dimension, ...]] | None,
) -> Axes:
    """The axes as given, or traced where anything is cut along them."""
    if isinstance(given, Axes):
        check_axes(module, given)
        return given
    if given is not None:
        return declare(tensors_of(module), given)
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
    build(module, WHOLE, example_inputs=data.example)
    shares = sorted(_shares(config) - {1.0})
    if config.scheme.granularity != "unit" or not shares:
        return
    tried = set()
    plain = [(Static(), capacity, 0) for capacity in shares]
    for rule, capacity, client in [*plain, *((scheme, shares[0], n) for n in range(3))]:
        draw = Draw(config.seed, 0, client)
        try:
            cut = draw_units(rule, axes, capacity, draw, least=config.axes.least)
        except LookupError:  # it looks at the model; then it may draw anything
            cut = draw_units(Random("bernoulli"), axes, capacity, draw, least=config.axes.least)
        if cut.shape_key not in tried:
            tried.add(cut.shape_key)
            build(module, cut, example_inputs=data.example)


def _shares(config: Config) -> set[float]:
    """The capacities, and the widths that steps may take."""
    return {*config.clients.capacities, *(config.scheme.widths or ())}


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
                *to_change(axes.frozen, axes.kept, axes.lines),
            ]
        )
    return sizes or {COORDINATES: 1}
