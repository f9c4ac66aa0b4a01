"""Problems of a configuration that are found before a run starts, each as a sentence.

Reading a configuration refuses mistakes within one section. This module finds settings that
conflict with each other, with the model or with the data. Components are checked before any of them
is made: those that depend neither on model nor on data, and the partition, which depends on the
data. Models and engines are checked when they are made, trackers when a run begins, and schemes
check the axes themselves (`submodel.config.parts`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from submodel.algorithm.builtin_rules import PROJECTIONS, RULES, STEPS
from submodel.algorithm.merge import LARGEST_WEIGHT_SUM, HasSums
from submodel.algorithm.server import Plain
from submodel.algorithm.types import Setup
from submodel.config import Config
from submodel.config.checks import cross_entropy_options
from submodel.config.parts import (
    AXIS_CHANGES,
    describe_targets,
    partition_context,
    source_context,
)
from submodel.config.sections import TRACKERS
from submodel.core.errors import ConfigError, refuse
from submodel.core.options import Section
from submodel.core.registry import Registry
from submodel.data import Dataset
from submodel.data.builtin_data import PARTITIONS, SOURCES
from submodel.engines.device import device_problems
from submodel.model.axes import CLASSES, Axes
from submodel.schemes.scheme import defines
from submodel.tasks.builtin_tasks import LOSSES, OPTIMISERS, SCHEDULES, TASKS
from submodel.tasks.loss import Loss

Choice = tuple[Registry[Any], str, Section, object]
"""A registry, the name of an entry, the section that names it, and the context to make it with."""


def as_own(config: Config, model: bool = True, data: bool = True) -> Config:
    """Set the names of model and data that are given in Python to "own".

    Raises `ConfigError` if the configuration names or describes others, which would be ignored.

    >>> from submodel.config import parse
    >>> as_own(parse({"model": {"factorised": True}})).model.name
    'own'
    >>> as_own(parse({"model": {"name": "mlp", "width": 8}}))
    Traceback (most recent call last):
    submodel.core.errors.ConfigError: model.name: 'mlp' conflicts with a model given in Python; ...
    model.width: goes with the models of a configuration, not with one given in Python
    """
    nouns = {"model": "models"} if model else {}
    nouns |= {"data": "data sources"} if data else {}
    problems: list[str] = []
    for name, noun in nouns.items():
        section = getattr(config, name)
        after = type(section.with_values(name="own")).model_fields
        what = name if name == "data" else f"a {name}"
        for key in [key for key in type(section).model_fields if key in section.model_fields_set]:
            if key == "name" and section.name != "own":
                given = f"{section.name!r} conflicts with {what} given in Python; remove one"
                problems.append(f"{name}.name: {given}")
            elif key not in after:
                problems.append(
                    f"{name}.{key}: goes with the {noun} of a configuration, not with one given in "
                    "Python"
                )
    refuse(problems)
    sections = {name: getattr(config, name).with_values(name="own") for name in nouns}
    return config.model_copy(update=sections)


def own_problems(config: Config, own_model: bool, own_data: bool) -> list[str]:
    """List the sections named "own" for which nothing is given in Python."""
    return [
        f"{section}.name: 'own' refers to an argument of submodel.train(model, data) in Python"
        for section, is_given in (("model", own_model), ("data", own_data))
        if not is_given and getattr(config, section).name == "own"
    ]


def component_problems(config: Config, own_data: bool, own_loss: bool) -> list[str]:
    """List the problems of all components that depend on the configuration alone.

    Data and a loss that are given in Python need no component.
    """
    problems = []
    for choice in _choices(config, own_data, own_loss):
        problems += _problems_of(*choice)
    for name in config.train.trackers:
        try:
            TRACKERS.find(name)  # load its code before anything is written
        except ConfigError as error:
            problems += error.problems
    return problems


def partition_problems(config: Config, data: Dataset) -> list[str]:
    """List the problems of the partition with the data; none if devices have their own data."""
    if config.engine.name == "flower":
        return []
    context = partition_context(config, data)
    return _problems_of(PARTITIONS, config.data.partition, config.data, context)


def _choices(config: Config, own_data: bool, own_loss: bool) -> Iterator[Choice]:
    if not own_data:
        yield SOURCES, config.data.name, config.data, source_context(config)
    yield TASKS, config.task.name, config.task, None
    if not own_loss and config.task.loss is not None:
        yield LOSSES, config.task.loss, config.task, None
    yield OPTIMISERS, config.local.optimiser, config.local, None
    yield SCHEDULES, config.local.schedule, config.local, config.train.rounds
    yield RULES, config.merge.rule, config.merge, None
    yield PROJECTIONS, config.merge.projection, config.merge, None
    yield STEPS, config.server.name, config.server, None


def _problems_of(
    registry: Registry[Any], name: str, section: Section, context: object
) -> list[str]:
    """List the problems of one component, or why it cannot be loaded."""
    try:
        return registry.find(name).problems(section, context)
    except ConfigError as error:
        return list(error.problems)


def setting_problems(
    config: Config, own_model: bool, own_axes: bool, own_partition: bool
) -> list[str]:
    """List settings that conflict with each other or with objects given in Python."""
    problems = [*device_problems(config.engine.device), *_unused_problems(config)]
    if own_model and config.model.weights is not None:
        problems.append("model.weights: a model given in Python has its own weights; leave it out")
    problems += _rank_problems(config, own_axes)
    if own_partition and config.data.held_out is not None:
        problems.append(
            "data.held_out: the partition is given in Python, by positions among all examples; "
            "hold examples out there"
        )
    return problems


def _unused_problems(config: Config) -> list[str]:
    """List settings without effect or meaning beside the others."""
    problems = []
    if config.train.evaluate_train_examples is not None and not config.train.evaluate_train:
        problems.append("train.evaluate_train_examples: requires train.evaluate_train = true")
    if config.data.held_out is not None and config.engine.name == "flower":
        problems.append(
            "data.held_out: devices train on all their data; the server has nothing to hold out"
        )
    if config.engine.name == "flower":
        if config.model.share != 1:
            problems.append("model.share: devices get the whole model; serve a smaller one")
        if config.clients.least is not None:
            problems.append("clients.least: devices declare their own capacities")
    if config.clients.least is not None and config.train.output_step is not None:
        problems.append("train.output_step: needs all clients, but clients.least leaves some out")
    if config.local.drop_last and not config.local.batch_size:
        problems.append("local.drop_last: needs batches, but local.batch_size = 0 makes only one")
    if config.local.optimiser_state == "kept":
        reasons = {
            "flower": "devices begin every round afresh: state kept on a device would not be "
            "restored when the run is resumed",
            "torchrun": "a client may train in another process next time; use engine.name = "
            "'local'",
        }
        if reason := reasons.get(config.engine.name):
            problems.append(f"local.optimiser_state: {reason}")
    if getattr(config.engine, "kernels", None) == "native":
        if config.engine.threads > 1:
            problems.append("engine.kernels: 'native' computes with one thread: engine.threads = 1")
        if getattr(config.engine, "batching", None) == "never":
            problems.append(
                "engine.kernels: 'native' computes stacks, but engine.batching is never"
            )
    if config.train.evaluate_clients != "no":
        if config.engine.name == "flower":
            problems.append("train.evaluate_clients: devices keep their data; leave it out")
        if config.train.statistics == "test_batch":
            problems.append(
                "train.evaluate_clients: the statistics of a batch would be those of one label or "
                "one client; use train.statistics = 'clients'"
            )
    return problems


def _rank_problems(config: Config, own_axes: bool) -> list[str]:
    """List settings that conflict with a capacity that is rank alone; empty if it is not."""
    if not config.model.factorised and config.model.adapters is None:
        return []
    key = "model.factorised" if config.model.factorised else "model.adapters"
    problems = []
    if config.scheme.granularity == "coordinate":
        problems.append(
            f"scheme.granularity: 'coordinate' masks single weights, but with {key} capacity is "
            "rank; use 'unit'"
        )
    if config.axes.cut:
        problems.append(f"axes.cut: with {key} only ranks are cut")
    if own_axes:
        problems.append(f"{key}: adds tensors and traces the axes itself; leave out axes=")
    return problems


def round_problems(config: Config) -> list[str]:
    """List settings with more clients than one round can merge without rounding the sums.

    The number of clients in the configuration is already settled.
    """
    clients, most = config.clients, int(LARGEST_WEIGHT_SUM)
    problems = []
    if clients.sample_size > most:
        problems.append(
            f"clients.per_round: {clients.sample_size:,} clients are more than a round can merge, "
            f"{most:,}; sample fewer clients in more rounds"
        )
    if config.train.output_step is not None and clients.client_count > most:
        problems.append(
            f"train.output_step: merges all {clients.client_count:,} clients at once, but a "
            f"round can merge {most:,}; leave it out"
        )
    return problems


def target_problems(config: Config, data: Dataset, loss: Loss) -> list[str]:
    """List settings for class labels that do not suit the targets or the loss."""
    absent, options = config.local.absent_labels, cross_entropy_options(loss, data)
    if absent == "keep" or (data.classes is not None and not options):
        return []
    needs = f"class labels, but the targets are {describe_targets(data)}"
    if data.classes is not None:
        needs = f"the plain cross-entropy, but the loss has or is {', '.join(options)}"
    return [f"local.absent_labels: {absent!r} needs {needs}; use 'keep'"]


def axes_problems(config: Config, own_axes: bool) -> list[str]:
    """List settings of axes that have no effect, or that conflict with given axes."""
    single = config.scheme.granularity == "coordinate"
    problems = []
    if config.axes.least and single:
        problems.append(
            "axes.least: limits the units of an axis that a client holds; scheme.granularity = "
            "'coordinate' cuts single weights instead"
        )
    for change in AXIS_CHANGES:
        if not getattr(config.axes, change):
            continue
        if own_axes:
            problems.append(f"axes.{change}: changes the traced axes, but axes= gives others")
        elif single and config.local.absent_labels == "keep":
            problems.append(
                f"axes.{change}: nothing is cut along axes with scheme.granularity = 'coordinate' "
                "and local.absent_labels = 'keep'"
            )
    return problems


def least_problems(config: Config, axes: Axes) -> list[str]:
    """List the axes in ``axes.least`` that do not exist or that no capacity cuts."""
    return [
        f"axes.least: {axis!r} is not an axis that capacities cut; these are "
        f"{', '.join(axes.cut_by_capacity) or 'none'}"
        for axis in config.axes.least.keys() - axes.cut_by_capacity.keys()
    ]


def product_problems(setup: Setup) -> list[str]:
    """List why the rule for products of low-rank layers cannot be used; empty if it can."""
    if not isinstance(setup.rule, HasSums):
        return []
    cut_axes = {*setup.axes.cut_by_capacity, CLASSES}
    parts = [(p.up, 0) for p in setup.pairs] + [(p.down, 1) for p in setup.pairs]
    layouts = [(n, setup.axes.layouts[n][d]) for n, d in parts if n in setup.axes.layouts]
    cut_names = [name for name, layout in layouts if cut_axes & set(layout.axes())]
    needs = [
        (bool(setup.pairs), "low-rank layers: model.adapters or model.factorised makes them"),
        (setup.granularity == "unit", "scheme.granularity = 'unit', which leaves ranks whole"),
        (
            setup.server == Plain(),
            "server.name = 'plain' with lr = 1: recomputed factors have no direction",
        ),
        (
            not setup.keeps_slots,
            "local.optimiser_state = 'fresh': momenta of recomputed factors have no meaning",
        ),
        (not defines(setup.scheme, "cells"), "one server: a scheme with cells has several"),
        (
            not cut_names,
            f"layers in which only ranks are cut; other axes of {', '.join(cut_names[:3])} are "
            "cut, too; if these are classes, local.absent_labels = 'keep' leaves them whole",
        ),
    ]
    return [f"merge.rule: merging products needs {need}" for holds, need in needs if not holds]


def finish_problems(config: Config, setup: Setup) -> list[str]:
    """List why the last rounds cannot train nested sub-models; empty if they can or need not."""
    if config.train.finish is None:
        return []
    needs = [
        (bool(setup.axes.cut_by_capacity), "a model with axes to cut: this one has none"),
        (
            not defines(setup.scheme, "cells", "adapt"),
            "a scheme with one model that keeps its weights, not "
            f"scheme.name = {config.scheme.name!r}",
        ),
        (
            config.train.output_step is None,
            "no train.output_step: that uses one cut per client, while every step draws a width",
        ),
        (
            config.engine.name != "flower",
            "simulated clients: devices have no ranking of units; not engine.name = 'flower'",
        ),
        (
            not isinstance(setup.rule, HasSums),
            "merge.rule = 'selective' or 'fill_in', which add up single weights",
        ),
    ]
    return [f"train.finish: needs {need}" for holds, need in needs if not holds]
