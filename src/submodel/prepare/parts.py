"""The parts of a setup that components make: data, partition, module, scheme."""

from __future__ import annotations

from torch import nn

from submodel.config import AxesSection, Config
from submodel.data import Dataset, Partition, limit
from submodel.data.partitions import PartitionContext
from submodel.data.registry import PARTITIONS, SOURCES
from submodel.data.sources import SourceContext
from submodel.errors import ConfigError
from submodel.model.axes import Axes
from submodel.model.registry import MODELS
from submodel.model.zoo import ModelContext, add_adapters, factorised
from submodel.model.zoo.low_rank import DEFAULT_RANK
from submodel.prepare.axes import selection_sizes
from submodel.prepare.settings import describe_targets
from submodel.randomness import key, seeded
from submodel.schemes import RunFacts, Scheme
from submodel.schemes.base import SchemeContext, problems_of
from submodel.schemes.registry import SCHEMES


def load_data(config: Config) -> Dataset:
    """The configured dataset; of a source that gives more than is asked for, a part."""
    choice = config.data
    source = SOURCES.find(choice.name)
    data = source.make(choice, source_context(config))
    return limit(data, choice.examples, choice.test_examples)


def source_context(config: Config) -> SourceContext:
    """What is asked of the source of data."""
    argument = SOURCES.argument(config.data.name)
    return SourceContext(argument, config.data.examples, config.data.test_examples)


def split_data(config: Config, data: Dataset) -> Partition:
    """Who has which training examples; raises `ConfigError` where somebody would have none."""
    context = partition_context(config, data)
    return PARTITIONS.find(config.data.partition).make(config.data, context)


def partition_context(config: Config, data: Dataset) -> PartitionContext:
    """What is to be shared out, and among how many."""
    clients, seed, y = config.clients.client_count, config.seed, data.train.y
    if data.classes is not None:
        return PartitionContext(y.numpy(), len(y), clients, seed, owners=data.owners)
    targets = describe_targets(data)
    return PartitionContext(None, len(y), clients, seed, targets, data.owners)


def make_module(config: Config, context: ModelContext) -> nn.Module:
    """The configured model for such data, initialised from the seed alone."""
    with seeded(key(config.seed, "initialise") % 2**63):
        return MODELS.find(config.model.name).make(config.model, context)


def as_low_rank(config: Config, module: nn.Module) -> nn.Module:
    """The model with factorised layers or with adapters, where the configuration says so."""
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


def make_scheme(
    config: Config, module: nn.Module, axes: Axes, has_labels: bool, own_axes: bool = False
) -> Scheme:
    """The scheme of a configuration, for these axes, if it is defined for the run."""
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
    if problems := problems_of(scheme, facts):
        raise ConfigError(problems)
    return scheme
