"""Preparation of a setup from a configuration: collect problems, make parts, try them together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import nn
from torch.nn import functional

from submodel.algorithm.evaluation import client_tests
from submodel.algorithm.types import PartitionedClients, Setup
from submodel.config import Config
from submodel.config.checks import (
    check_builds,
    check_fit,
    check_kinds,
    check_model,
    cross_entropy_options,
    try_scheme,
)
from submodel.config.model_facts import (
    ModelFacts,
    ModelKey,
    context_of,
    find_once,
    identify,
    is_large,
    logits_of,
    returns_logits,
    select_outputs,
)
from submodel.config.objective import (
    apply_task,
    default_lines,
    fit_metrics,
    keep_metrics,
    make_task,
    settle,
)
from submodel.config.parts import (
    as_low_rank,
    assemble_setup,
    find_axes,
    load_data,
    make_module,
    make_scheme,
    only_cut_ranks,
    split_data,
    take_share,
)
from submodel.config.problems import (
    axes_problems,
    component_problems,
    finish_problems,
    least_problems,
    own_problems,
    partition_problems,
    product_problems,
    round_problems,
    setting_problems,
    target_problems,
)
from submodel.core.errors import ConfigError, refuse
from submodel.core.heap import large_blocks_apart
from submodel.data import Dataset, Partition, limit
from submodel.data.examples import hold_out
from submodel.data.partitions import Unsplit
from submodel.engines import single_examples
from submodel.model.axes import Axes, Dimension
from submodel.model.build import without_values
from submodel.model.inputs import first_column
from submodel.model.travel import constant_names
from submodel.model.weights import load_weights
from submodel.schemes import Scheme
from submodel.tasks.loss import Loss
from submodel.tasks.optimisers import slot_problems
from submodel.tasks.training import trainable_parameters

_log = logging.getLogger(__name__)


@large_blocks_apart()
def prepare(
    config: Config,
    module: nn.Module | None = None,
    data: Dataset | None = None,
    axes: Axes | Mapping[str, tuple[Dimension, ...]] | None = None,
    loss: Loss | None = None,
    partition: Partition | None = None,
    facts: ModelFacts | None = None,
    progress: Callable[[str], object] | None = None,
) -> Setup:
    """Prepare the setup of a run; a given module, dataset or loss replaces the configured one.

    Axes and partition are derived unless they are given. ``facts``, from another process with the
    same configuration, are not derived again. ``progress`` receives a line for every step of
    preparing a large model, which takes minutes. Raises `ConfigError` with all problems found.
    """
    own_axes = axes is not None
    _check_given(config, module, data, own_axes, loss, partition)
    source = _load_examples(config, data)  # partitioned as it is, before the task changes targets
    task = make_task(config, source, loss)
    data, loss = apply_task(task, source), task.loss
    is_plain = data.classes is not None and not cross_entropy_options(loss, data)
    given = config
    config = settle(config, source, is_plain, split=partition is None)
    refuse(round_problems(config))

    built_in: ModelKey | None = None
    if module is None:
        module = _make_model(config, data, facts is not None and facts.is_empty)
        built_in = None if own_axes else identify(config, module, data)
    log = progress if progress is not None and is_large(module) else str
    if facts is None:
        log("preparing the model: running it on the data")
        check_model(module)
        if find_once(built_in, "logits", partial(returns_logits, module, data.example)):
            module = select_outputs(module, logits_of)
    else:
        module = facts.select_outputs(module)
    module = as_low_rank(config, module)
    if config.model.share != 1:
        if own_axes:
            raise ConfigError("model.share: traces the axes itself; leave out axes= in Python")
        module, built_in = take_share(config, module, data.example), None

    if facts is None:
        check_fit(module, data, loss)
        task = fit_metrics(config, task, module, data)
    elif facts.metrics is not None:
        task = keep_metrics(task, facts.metrics)
    problems = target_problems(config, data, loss)
    if partition is None:
        problems += partition_problems(config, source)
    refuse(problems)
    refuse(axes_problems(config, own_axes))

    if facts is None:
        log("preparing the axes: tracing one forward pass, verifying with more")
        cut_axes = find_axes(config, module, data, axes, built_in)
        cut_axes = only_cut_ranks(config, module, cut_axes)
    else:
        cut_axes = facts.axes
    make = partial(make_scheme, config, module, cut_axes, is_plain, own_axes)
    partition, scheme = _split_and_choose(config, source, cut_axes, partition, make)
    if facts is None:
        _warn_of_defaults(default_lines(given, config, partition), data)
    clients = PartitionedClients(data, partition)
    setup = assemble_setup(config, module, cut_axes, scheme, clients, task)
    constants = constant_names(module) if facts is None else facts.constants
    setup = replace(setup, constants=constants)

    _check_setup(config, setup)
    if facts is None:
        log("preparing the sub-models: building and trying them")
        try_scheme(setup)
        check_builds(module, cut_axes, scheme, config, data, loss, built_in)
    if config.engine.name != "flower":  # a device checks this itself, with its own data
        refuse(single_examples.problems(setup, config.train.rounds))
    return setup


def _check_given(
    config: Config,
    module: nn.Module | None,
    data: Dataset | None,
    own_axes: bool,
    loss: Loss | None,
    partition: Partition | None,
) -> None:
    """Raise `ConfigError` for bad settings or bad objects given in Python."""
    own_model, own_data = module is not None, data is not None
    problems = component_problems(config, own_data, loss is not None)
    problems += setting_problems(config, own_model, own_axes, partition is not None)
    refuse(problems)
    check_kinds(module, data, loss or functional.cross_entropy)
    refuse(own_problems(config, own_model, own_data))


def _load_examples(config: Config, data: Dataset | None) -> Dataset:
    """Load the configured data or take the given data; limit it and hold out its share."""
    if data is None:
        data = load_data(config)
    else:
        data = limit(data, config.data.examples, config.data.test_examples)
    return hold_out(data, config.data.held_out, config.seed)


def _split_and_choose(
    config: Config,
    source: Dataset,
    axes: Axes,
    partition: Partition | None,
    make: Callable[[], Scheme],
) -> tuple[Partition, Scheme]:
    """Make the partition and the scheme; raise `ConfigError` with the problems of both."""
    problems = least_problems(config, axes)
    scheme: Scheme | None = None
    try:
        partition = partition or split_data(config, source)
    except ConfigError as error:
        if config.engine.name == "flower":
            partition = Unsplit(error)  # devices have their own data
        else:
            problems += error.problems
    try:
        scheme = make()
    except ConfigError as error:
        problems += error.problems
    if problems or partition is None or scheme is None:
        raise ConfigError(problems)
    return partition, scheme


def _warn_of_defaults(lines: list[str], data: Dataset) -> None:
    """Warn of defaults that changed with the size of the data."""
    if lines:
        classes = "" if data.classes is None else f" of {data.classes} classes"
        _log.warning("%s: default for %d training examples%s",
                     ", ".join(lines), len(data.train), classes)  # fmt: skip


def _check_setup(config: Config, setup: Setup) -> None:
    """Raise `ConfigError` if the parts do not work together."""
    if config.clients.least is not None and not setup.population.sample(0):
        raise ConfigError(f"clients.least: no client can hold {config.clients.least:g}")
    if config.train.evaluate_clients != "no":
        client_tests(setup.clients, setup.population.count)  # raises if there are none
    refuse(product_problems(setup) + finish_problems(config, setup))
    if setup.keeps_slots:
        parameters = trainable_parameters(setup.module)
        refuse(slot_problems(setup.work.optimiser, config.local.optimiser, parameters))


def _make_model(config: Config, data: Dataset, is_empty: bool) -> nn.Module:
    """Make the configured model with its initial weights; without values if ``is_empty``."""
    with without_values() if is_empty else nullcontext():
        module = make_module(config, context_of(data))
    if config.model.weights is not None and not is_empty:
        load_weights(module, Path(config.model.weights))
    example = first_column(data.example)
    return module.to(example.dtype) if example.is_floating_point() else module
