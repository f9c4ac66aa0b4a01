"""From a configuration to a setup: make the parts, check that they fit together."""

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
from submodel.data import Dataset, Partition, limit
from submodel.data.examples import hold_out
from submodel.data.partitions import Unsplit
from submodel.engines import lone
from submodel.engines.device import device_problems
from submodel.errors import ConfigError
from submodel.heap import large_blocks_apart
from submodel.local.optimisers import slot_problems
from submodel.local.training import trainable_parameters
from submodel.model.axes import Axes, Dimension
from submodel.model.build import without_values
from submodel.model.inputs import first_column
from submodel.model.travel import constant_names
from submodel.model.weights import load_weights
from submodel.prepare.assembly import assemble_setup
from submodel.prepare.axes import find_axes, only_cut_ranks
from submodel.prepare.builds import check_builds
from submodel.prepare.built_in import find_once, identify
from submodel.prepare.components import component_problems, partition_problems
from submodel.prepare.findings import ModelFindings, is_large
from submodel.prepare.fit import check_fit, check_kinds, check_model, cross_entropy_options
from submodel.prepare.model_context import context_of
from submodel.prepare.objective import (
    apply_task,
    default_lines,
    fit_metrics,
    keep_metrics,
    make_task,
    settle,
)
from submodel.prepare.parts import as_low_rank, load_data, make_module, make_scheme, split_data
from submodel.prepare.selection import logits_of, returns_logits, select_outputs
from submodel.prepare.settings import (
    axes_problems,
    finish_problems,
    product_problems,
    rank_problems,
    round_problems,
    target_problems,
    unused_problems,
)
from submodel.prepare.share import take_share
from submodel.prepare.trial import try_scheme
from submodel.schemes import Scheme
from submodel.tasks.loss import Loss

_log = logging.getLogger(__name__)


@large_blocks_apart()
def prepare(
    config: Config,
    module: nn.Module | None = None,
    data: Dataset | None = None,
    axes: Axes | Mapping[str, tuple[Dimension, ...]] | None = None,
    loss: Loss | None = None,
    partition: Partition | None = None,
    findings: ModelFindings | None = None,
    say: Callable[[str], None] | None = None,
) -> Setup:
    """The setup of a run; an own module, own data and an own loss replace the configured ones.

    The axes are traced unless they are given, and who has which examples is drawn unless it is.
    ``findings``: what another process found with the same configuration is not looked for again.
    ``say`` is told what is being done with a large model, which takes minutes.
    Raises `ConfigError` with every misfit it can find.
    """
    problems = component_problems(config, own_data=data is not None, own_loss=loss is not None)
    problems += device_problems(config.engine.device)
    problems += unused_problems(config)
    if module is not None and config.model.weights is not None:
        problems.append("model.weights: a model that is given in Python has its own; leave it out")
    problems += rank_problems(config, own_axes=axes is not None)
    if partition is not None and config.data.held_out is not None:
        problems.append(
            "data.held_out: who has which examples is given in Python, by their places among all: "
            "leave the examples out there"
        )
    if problems:
        raise ConfigError(problems)
    check_kinds(module, data, loss or functional.cross_entropy)
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
    data = hold_out(data, config.data.held_out, config.seed)
    task = make_task(config, data, loss)
    source = data  # who has which examples follows from it, whatever the task makes of them
    data, loss = apply_task(task, source), task.loss
    is_plain = data.classes is not None and not cross_entropy_options(loss, data)
    given = config
    config = settle(config, source, is_plain, split=partition is None)
    if problems := round_problems(config):
        raise ConfigError(problems)
    built_in = None
    if module is None:
        is_empty = findings is not None and findings.is_empty
        with without_values() if is_empty else nullcontext():
            module = make_module(config, context_of(data))
        if config.model.weights is not None and not is_empty:
            load_weights(module, Path(config.model.weights))
        if (example := first_column(data.example)).is_floating_point():
            module = module.to(example.dtype)
        built_in = identify(config, module, data) if axes is None else None
    say = say if say is not None and is_large(module) else _say_nothing
    if findings is None:
        say("the model: whether it runs on the data")
        check_model(module)
        ask = partial(returns_logits, module, data.example)
        if find_once(built_in, "logits", ask):
            module = select_outputs(module, logits_of)
    else:
        module = findings.select_outputs(module)
    module = as_low_rank(config, module)
    if config.model.share != 1:
        if axes is not None:
            raise ConfigError(
                ["model.share: finds its axes itself; leave those given in Python out"]
            )
        module, built_in = take_share(config, module, data.example), None
    if findings is None:
        check_fit(module, data, loss)
        task = fit_metrics(config, task, module, data)
    elif findings.metrics is not None:
        task = keep_metrics(task, findings.metrics)
    problems += target_problems(config, data, loss)
    if partition is None:
        problems += partition_problems(config, source)
    if problems:
        raise ConfigError(problems)
    if problems := axes_problems(config, own_axes=axes is not None):
        raise ConfigError(problems)
    if findings is None:
        say("its axes: found in a forward, proved in some more")
        cut_axes = find_axes(config, module, data, axes, built_in)
        cut_axes = only_cut_ranks(config, module, cut_axes)
    else:
        cut_axes = findings.axes
    problems += [
        f"axes.least: {axis!r} is not an axis that capacities cut; those are "
        f"{', '.join(cut_axes.cut_by_capacity) or 'none'}"
        for axis in config.axes.least.keys() - cut_axes.cut_by_capacity.keys()
    ]
    scheme: Scheme | None = None
    try:
        partition = partition or split_data(config, source)
    except ConfigError as error:
        if config.engine.name == "flower":
            partition = Unsplit(error)  # devices bring data of their own
        else:
            problems += error.problems
    try:
        scheme = make_scheme(config, module, cut_axes, is_plain, own_axes=axes is not None)
    except ConfigError as error:
        problems += error.problems
    if problems or partition is None or scheme is None:
        raise ConfigError(problems)
    if findings is None and (lines := default_lines(given, config, partition)):
        classes = "" if data.classes is None else f" of {data.classes} classes"
        _log.warning("%s: follows from %d training examples%s, as nothing else is set",
                     ", ".join(lines), len(data.train), classes)  # fmt: skip
    setup = assemble_setup(
        config, module, cut_axes, scheme, PartitionedClients(data, partition), task
    )
    constants = constant_names(module) if findings is None else findings.constants
    setup = replace(setup, constants=constants)
    if config.clients.least is not None and not setup.population.sample(0):
        raise ConfigError([f"clients.least: no client can hold {config.clients.least:g}"])
    if config.train.evaluate_clients != "no":
        client_tests(setup.clients, setup.population.count)  # or says why it cannot be
    if problems := [*product_problems(setup), *finish_problems(config, setup)]:
        raise ConfigError(problems)
    if setup.keeps_slots:
        parameters = trainable_parameters(module)
        if problems := slot_problems(setup.work.optimiser, config.local.optimiser, parameters):
            raise ConfigError(problems)
    if findings is None:
        say("its sub-models: built and tried")
        try_scheme(setup)
        check_builds(module, cut_axes, scheme, config, data, loss, built_in)
    if config.engine.name != "flower" and (problems := lone.problems(setup, config.train.rounds)):
        raise ConfigError(problems)  # a device tells itself, when it knows what it has
    return setup


def _say_nothing(_: str) -> None:
    """Of a small model nobody waits for anything."""
