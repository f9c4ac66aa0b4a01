"""The Python interface: train an own module on own tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from rich.console import Console
from torch import nn

from submodel.algorithm.types import Setup, State
from submodel.config import Config, parse
from submodel.config.engine import check_engine
from submodel.config.findings import Selector
from submodel.config.problems import as_own
from submodel.core.amounts import parse_capacity
from submodel.core.errors import ConfigError, refuse
from submodel.data import Dataset
from submodel.data.builtin_data import PARTITIONS
from submodel.data.examples import as_dataset
from submodel.data.partitions import parse_lists
from submodel.model.axes import Axes, Dimension
from submodel.model.axes.layout import Indices
from submodel.model.axes.verify import Outputs
from submodel.model.build import build_module
from submodel.model.build.checks import check_cut
from submodel.model.build.module import Factory, Resize
from submodel.model.cut import UnitCut
from submodel.model.inputs import as_tensors
from submodel.runs.callbacks import Callback, CallbackGuard, OnRound, Tell
from submodel.runs.callbacks.progress import Progress, run_html
from submodel.runs.folder import RunFolder
from submodel.runs.loop import run_rounds
from submodel.runs.metrics import RESERVED_NAMES, Metrics
from submodel.runs.training import Material, Metric, Training
from submodel.tasks.loss import Loss


@dataclass(frozen=True)
class Result:
    """A trained global model and how it came about.

    Args:
        model: the global model, ready to use.
        history: the metrics of every round.
        training: the configuration and the setup.
        state: the global model's tensors, and what scheme and server remember.
    """

    model: nn.Module
    history: list[Metrics] = field(repr=False)
    training: Training = field(repr=False)
    state: State = field(repr=False)

    @property
    def accuracy(self) -> float | None:
        """The global model's last test accuracy; None where targets are not labels."""
        value: float | None = self.history[-1].get("test_accuracy")
        return value

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        name = type(self.model).__name__
        return run_html(f"Result: a trained {name}", self.training.config, self.history)

    @property
    def setup(self) -> Setup:
        """What was trained: module, axes, scheme, clients."""
        return self.training.setup

    def submodel(self, capacity: float | str) -> nn.Module:
        """The trained sub-model of a capacity, ready to use.

        Args:
            capacity: the share of every axis, as 0.25 or "1/4".
        """
        return self.training.model(self.state, parse_capacity(capacity))


def build(
    model: nn.Module,
    axes: Axes,
    units: Mapping[str, Indices],
    *,
    factory: Factory | None = None,
    resize: Resize | None = None,
    example_inputs: Any = None,
    outputs: Outputs | None = None,
) -> nn.Module:
    """The sub-model of ``model`` that holds only ``units``, as a module of its own.

    Args:
        model: the full model; it is not changed, and nothing of it is shared.
        axes: what `trace` or `declare` returned for it.
        units: the positions that are kept, by axis; an axis that is not named stays whole.
        factory: makes the empty sub-model from the kept sizes by axis, instead of copying.
        resize: corrects the copy, ``resize(module, sizes)``, after all else.
        example_inputs: run both models on them once, and compare the shapes of the outputs; tensors
            or NumPy arrays.
        outputs: which of the outputs count in that, as ``lambda result: result.logits``.

    >>> import numpy as np
    >>> from submodel import trace
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> build(net, trace(net, torch.ones(1, 4)), {"0": np.array([1, 5])})[0]
    Linear(in_features=4, out_features=2, bias=True)
    """
    check_cut(model, axes, units)
    return build_module(
        model,
        UnitCut(axes, units),
        factory=factory,
        resize=resize,
        example_inputs=as_tensors(example_inputs),
        outputs=outputs,
    )


def train(
    model: nn.Module | None = None,
    data: Any = None,
    config: Config | Mapping[str, Any] | None = None,
    *,
    axes: Axes | Mapping[str, tuple[Dimension, ...]] | None = None,
    loss: Loss | None = None,
    outputs: Selector | None = None,
    clients: Sequence[Any] | None = None,
    metrics: Mapping[str, Metric] = MappingProxyType({}),
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    on_round: OnRound = lambda _: None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
) -> Result:
    """Train ``model`` through sub-models, as ``submodel train`` does; ``model`` is not changed.

    Args:
        model: any module; what must be cut together is found by tracing it. None: the
            configuration's.
        data: what `submodel.dataset` or `submodel.digits` returned; a pair of parts, training and
            test, as `submodel.dataset` takes them; or a ``datasets.DatasetDict`` with the splits
            train and test. None: the configuration's.
        config: a `submodel.Config`, or a dictionary of its sections; what is not set has defaults.
            Where a key names a component, the class or function itself may stand there.
        axes: instead of tracing, what `submodel.trace` or `submodel.declare` returned, or a table
            for the latter.
        loss: the mean loss of a batch, from the model's outputs and the targets.
        outputs: where the model returns more than one tensor, the one that counts in training and
            scores, as ``lambda returned: returned.logits``.
        clients: who has which training examples: for every client an array of positions in
            ``data.train``; the number of clients follows from it.
        metrics: scores of your own by name, ``metric(model, data) -> float``, taken of the global
            model wherever the others are; a number that is not finite is written as None.
        out: the run's folder, which is made; without it nothing is written.
        resume: go on with the run in ``out``.
        overwrite: replace the run that ``out`` holds, unless it is being trained.
        on_round: called with the metrics of every round.
        callbacks: told of every round, before and after; one that fails ends the run, which
            ``resume`` goes on with.
        progress: show how it goes on the error output: a bar in a terminal or a notebook, lines
            elsewhere.

    >>> from submodel import digits
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    >>> rounds = {"scheme": {"granularity": "coordinate"}, "train": {"rounds": 2}}
    >>> len(train(net, digits(), rounds).history)
    2
    """
    _check_additions(callbacks, metrics)
    data = as_dataset(data)
    full_config = _check_arguments(config, out, resume, overwrite, on_round)
    full_config = _complete_config(full_config, model, data, clients)
    material = Material(model, data, axes, loss, outputs, clients, metrics)
    progress_bars = [Progress(Console(stderr=True))] if progress else []
    watchers = [*progress_bars, Tell(on_round), *map(CallbackGuard, callbacks)]
    with torch.inference_mode(False), torch.enable_grad():  # wherever it is called
        training = material.training(full_config)
        if out is None:
            state, history = run_rounds(training, None, watchers)
        else:
            folder = RunFolder(Path(out))
            if resume:
                folder.config()  # or it is no run
            else:
                check_engine(training.config, training.setup)
                folder.create(training.config, overwrite)
            with folder.lock():
                state, history = run_rounds(training, folder, watchers, resume=resume)
        return Result(training.model(state), history, training, state)


def _complete_config(config: Config, model: object, data: object, clients: object) -> Config:
    """The configuration of a run with own module, data and perhaps lists of clients' examples."""
    partition = PARTITIONS.find(config.data.partition).options.model_fields
    config = as_own(config, model is not None, data is not None)
    if clients is None or not isinstance(data, Dataset):
        return config
    count = len(parse_lists(clients, len(data.train)).lists)
    keys = {f"data.{key}" for key in ("examples", "partition", *partition)}
    problems = [
        f"{key}: clients= lists who has which examples" for key in sorted(keys & _set_keys(config))
    ]
    if "clients.count" in _set_keys(config) and config.clients.client_count != count:
        problems.append(f"clients.count: {config.clients.client_count}, but clients= lists {count}")
    refuse(problems)
    values = {"count": count}
    if "clients.per_round" not in _set_keys(config):
        values["per_round"] = min(count, config.clients.sample_size)
    clients_section = parse(
        {"clients": {**config.clients.model_dump(exclude_unset=True), **values}}
    ).clients
    sections = {"data": config.data.with_values(partition="own"), "clients": clients_section}
    return config.model_copy(update=sections)


def _set_keys(config: Config) -> set[str]:
    """The keys of data and clients that somebody set."""
    return {
        f"{name}.{key}"
        for name in ("data", "clients")
        for key in getattr(config, name).model_fields_set
    }


def _check_arguments(
    config: Config | Mapping[str, Any] | None,
    out: object,
    resume: bool,
    overwrite: bool,
    on_round: object,
) -> Config:
    """The configuration, if it is one, and if a run in this process can follow it all."""
    if config is not None and not isinstance(config, Config | Mapping):
        raise ConfigError(
            f"config: a {type(config).__name__} is neither a submodel.Config nor a dictionary, "
            "as {'train': {'rounds': 10}}; submodel.config.read(path) reads a file"
        )
    problems = []
    if isinstance(config, Mapping):
        for key in config:
            section, dot, rest = str(key).partition(".")
            if dot and section in Config.model_fields:
                problems.append(f"config: {key!r} is nested, {{{section!r}: {{{rest!r}: ...}}}}")
    if not callable(on_round):
        problems.append(f"on_round: {on_round!r} is not a function of a round's metrics")
    if out is not None and (not isinstance(out, str | os.PathLike) or "\0" in str(out)):
        problems.append(f"out: {out!r} is not the path of a folder")
    if resume and out is None:
        problems.append("resume: goes with out, the folder of the run to go on with")
    if overwrite and (out is None or resume):
        reason = "goes with out, the run to replace" if out is None else "resume goes on with it"
        problems.append(f"overwrite: {reason}")
    refuse(problems)
    full_config = config if isinstance(config, Config) else parse(config or {})
    engine = full_config.engine
    if engine.name in ("torchrun", "flower") or getattr(engine, "processes", None):
        command = "serve" if engine.name == "flower" else "train"
        raise ConfigError(
            "engine: submodel.train computes in this process (name 'auto' or 'local', no "
            f"processes); 'submodel {command} CONFIG.toml' computes in others"
        )
    return full_config


def _check_additions(callbacks: object, metrics: object) -> None:
    """Raise unless these are callbacks, and metrics under names of their own."""
    problems = []
    if not isinstance(callbacks, Sequence):
        problems.append(f"callbacks: {callbacks!r} is not a list of them")
    else:
        for callback in callbacks:
            if isinstance(callback, type) and issubclass(callback, Callback):
                name = callback.__name__
                problems.append(f"callbacks: {name} is a class; give an instance, {name}()")
            elif not isinstance(callback, Callback):
                problems.append(
                    f"callbacks: {callback!r} is not a submodel.Callback; a function of a round's "
                    "metrics is told by on_round="
                )
    if not isinstance(metrics, Mapping):
        problems.append(f"metrics: {metrics!r} is not a dictionary of names and functions")
    else:
        for name, metric in metrics.items():
            if not isinstance(name, str) or name in RESERVED_NAMES:
                problems.append(f"metrics: {name!r} is not a free name: the run itself writes it")
            if not callable(metric):
                problems.append(f"metrics.{name}: {metric!r} is not a function of (model, data)")
    refuse(problems)
