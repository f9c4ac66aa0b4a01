"""Settings that do not go together, or with the model and the data: each as a sentence.

What one section alone can tell is refused when the configuration is read; here is the rest.
"""

from __future__ import annotations

from submodel.algorithm.merge import LARGEST_WEIGHT_SUM, HasSums
from submodel.algorithm.server import Plain
from submodel.algorithm.types import Setup
from submodel.config import Config
from submodel.data import Dataset
from submodel.model.axes import CLASSES
from submodel.prepare.fit import cross_entropy_options
from submodel.schemes.base import defines
from submodel.tasks.loss import Loss


def round_problems(config: Config) -> list[str]:
    """More clients than one round can merge exactly: sums of more terms would be rounded.

    Args:
        config: with the number of clients that the data names, if it does.
    """
    clients, most = config.clients, int(LARGEST_WEIGHT_SUM)
    problems = []
    if clients.sample_size > most:
        problems.append(
            f"clients.per_round: {clients.sample_size:,} clients are more than a round can merge, "
            f"{most:,}; sample fewer in more rounds"
        )
    if config.train.output_step is not None and clients.client_count > most:
        problems.append(
            f"train.output_step: is one of all {clients.client_count:,} clients at once, and a "
            f"round can merge {most:,}; leave it out"
        )
    return problems


def unused_problems(config: Config) -> list[str]:
    """What is set and would mean nothing, as something else is not."""
    problems = []
    if config.train.evaluate_train_examples is not None and not config.train.evaluate_train:
        problems.append("train.evaluate_train_examples: goes with train.evaluate_train = true")
    if config.data.held_out is not None and config.engine.name == "flower":
        problems.append(
            "data.held_out: devices train on all that they have; the server has nothing to hold out"
        )
    if config.engine.name == "flower":
        if config.model.share != 1:
            problems.append("model.share: devices get the whole model; serve a smaller one")
        if config.clients.least is not None:
            problems.append("clients.least: devices say themselves what they can hold")
    if config.clients.least is not None and config.train.output_step is not None:
        problems.append(
            "train.output_step: is one of all clients, and clients.least leaves some out"
        )
    if config.local.drop_last and not config.local.batch_size:
        problems.append("local.drop_last: goes with batches; local.batch_size = 0 makes one of all")
    if config.local.optimiser_state == "kept":
        reasons = {
            "flower": "devices begin every round afresh: what one kept would not go back with the "
            "run when it is resumed",
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
                "engine.kernels: 'native' computes stacks, and engine.batching is never"
            )
    if config.train.evaluate_clients != "no":
        if config.engine.name == "flower":
            problems.append("train.evaluate_clients: devices keep their data; leave it out")
        if config.train.statistics == "test_batch":
            problems.append(
                "train.evaluate_clients: the statistics of a batch would be those of one label or "
                "client; use train.statistics = 'clients'"
            )
    return problems


def target_problems(config: Config, data: Dataset, loss: Loss) -> list[str]:
    """What is set for class labels, where targets or loss are of another kind."""
    problems = []
    options = cross_entropy_options(loss, data)
    absent = config.local.absent_labels
    if absent != "keep" and (data.classes is None or options):
        needs = f"class labels, and the targets are {describe_targets(data)}"
        if data.classes is not None:
            needs = f"the plain cross-entropy, and the loss has or is {', '.join(options)}"
        problems.append(f"local.absent_labels: {absent!r} needs {needs}; use 'keep'")
    return problems


def describe_targets(data: Dataset) -> str:
    """What targets are, where they are not labels: their type and shape."""
    return f"{data.train.y.dtype} of shape {tuple(data.train.y.shape)}".removeprefix("torch.")


def axes_problems(config: Config, own_axes: bool) -> list[str]:
    """What is said of axes where nothing is cut along them, or where others are given."""
    single = config.scheme.granularity == "coordinate"
    problems = []
    if config.axes.least and single:
        problems.append(
            "axes.least: says how many units of an axis a client holds; scheme.granularity = "
            "'coordinate' cuts single weights instead"
        )
    for change in ("freeze", "tie", "whole", "cut"):
        if not getattr(config.axes, change):
            continue
        if own_axes:
            problems.append(f"axes.{change}: changes the traced axes, and axes= gives others")
        elif single and config.local.absent_labels == "keep":
            problems.append(
                f"axes.{change}: nothing is cut along axes with scheme.granularity = 'coordinate' "
                "and local.absent_labels = 'keep'"
            )
    return problems


def product_problems(setup: Setup) -> list[str]:
    """Why products of low-rank layers cannot be merged here; empty if they can, or are not."""
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
            "server.name = 'plain' with lr = 1: factors that are made anew have no direction",
        ),
        (
            not setup.keeps_slots,
            "local.optimiser_state = 'fresh': momenta of factors that are made anew mean nothing",
        ),
        (not defines(setup.scheme, "cells"), "one server: a scheme with cells has several"),
        (
            not cut_names,
            f"layers of which ranks alone are cut, and of {', '.join(cut_names[:3])} more is; "
            "if it is the classes, local.absent_labels = 'keep' leaves them whole",
        ),
    ]
    return [f"merge.rule: merging products needs {need}" for holds, need in needs if not holds]


def finish_problems(config: Config, setup: Setup) -> list[str]:
    """Why the last rounds cannot train nested sub-models here; empty if they can, or do not."""
    if config.train.finish is None:
        return []
    needs = [
        (bool(setup.axes.cut_by_capacity), "a model with axes: this one has none to cut"),
        (
            not defines(setup.scheme, "cells", "adapt"),
            "a scheme whose model is one and keeps its weights: not "
            f"scheme.name = {config.scheme.name!r}",
        ),
        (
            config.train.output_step is None,
            "no train.output_step: that has one cut per client, and steps draw a width each",
        ),
        (
            config.engine.name != "flower",
            "the clients here: devices know no ranking of units; not engine.name = 'flower'",
        ),
        (
            not isinstance(setup.rule, HasSums),
            "merge.rule = 'selective' or 'fill_in', which add up single weights",
        ),
    ]
    return [f"train.finish: needs {need}" for holds, need in needs if not holds]


def rank_problems(config: Config, own_axes: bool) -> list[str]:
    """What contradicts a capacity that is rank, and rank alone; empty where it is not."""
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
        problems.append(f"axes.cut: with {key} nothing but ranks is cut")
    if own_axes:
        problems.append(f"{key}: has tensors of its own and traces them; leave out axes=")
    return problems
