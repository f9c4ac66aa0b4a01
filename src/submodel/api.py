"""Python interface: train a given module on given tensors."""

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
from submodel.config.model_facts import Selector
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
from submodel.runs.callbacks import Callback, CallbackGuard, OnRound, RoundCallback
from submodel.runs.callbacks.progress import Progress, run_html
from submodel.runs.folder import RunFolder
from submodel.runs.loop import run_rounds
from submodel.runs.metrics import RESERVED_NAMES, Metrics
from submodel.runs.training import Material, Metric, Training
from submodel.tasks.loss import Loss


@dataclass(frozen=True)
class Result:
    """A trained global model and its history.

    Args:
        model: global model, ready to use.
        history: metrics of every round.
        training: configuration and setup.
        state: tensors of the global model, and the memory of scheme and server.
    """

    model: nn.Module
    history: list[Metrics] = field(repr=False)
    training: Training = field(repr=False)
    state: State = field(repr=False)

    @property
    def accuracy(self) -> float | None:
        """Last test accuracy of the global model; None if targets are not labels."""
        value: float | None = self.history[-1].get("test_accuracy")
        return value

    def _repr_html_(self) -> str:
        name = type(self.model).__name__
        return run_html(f"Result: a trained {name}", self.training.config, self.history)

    @property
    def setup(self) -> Setup:
        """Setup of the training: module, axes, scheme, clients."""
        return self.training.setup

    def submodel(self, capacity: float | str) -> nn.Module:
        """Return the trained sub-model of a capacity, ready to use.

        Args:
            capacity: fraction of every axis, as 0.25 or "1/4".
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
    """Build the sub-model of ``model`` with only the given units, as an independent module.

    Args:
        model: full model; it is not changed and shares no memory with the sub-model.
        axes: result of `trace` or `declare` for the model.
        units: kept positions by axis; an axis that is not named stays whole.
        factory: function that makes the empty sub-model from the kept sizes by axis, instead of a
            copy.
        resize: function ``resize(module, sizes)`` that corrects the copy, called last.
        example_inputs: tensors or NumPy arrays; both models run on them once, and the shapes of
            their outputs are compared.
        outputs: selection of the outputs to compare, as ``lambda result: result.logits``.

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
        model: any module; its axes are traced. None: the configured model.
        data: result of `submodel.dataset` or `submodel.digits`; or a pair of parts, training and
            test, as for `submodel.dataset`; or a ``datasets.DatasetDict`` with the splits train and
            test. None: the configured data.
        config: a `submodel.Config`, or a dictionary of its sections; unset keys have defaults.
            A key that names a component also accepts the class or function itself.
        axes: axes to use instead of traced ones: the result of `submodel.trace` or
            `submodel.declare`, or a table for the latter.
        loss: function of outputs and targets that returns the mean loss of a batch.
        outputs: function that selects the output tensor for training and scores, if the model does
            not return one tensor, as ``lambda returned: returned.logits``.
        clients: partition of the training examples: an array of positions in ``data.train`` for
            every client, which also sets the number of clients.
        metrics: further scores of the global model by name, ``metric(model, data) -> float``; a
            value that is not finite is written as None.
        out: folder of the run, which is created; without it nothing is written.
        resume: whether to resume the run in ``out``.
        overwrite: whether to replace the run in ``out``, unless it is being trained.
        on_round: function called with the metrics of every round.
        callbacks: callbacks around every round; an exception in one ends the run, which can be
            resumed.
        progress: whether to show progress on standard error: a bar in a terminal or a notebook,
            else lines.

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
    observers = [*progress_bars, RoundCallback(on_round), *map(CallbackGuard, callbacks)]
    with torch.inference_mode(False), torch.enable_grad():  # whatever the caller's mode
        training = material.training(full_config)
        if out is None:
            state, history = run_rounds(training, None, observers)
        else:
            folder = RunFolder(Path(out))
            if resume:
                folder.config()  # raises if it is not a run
            else:
                check_engine(training.config, training.setup)
                folder.create(training.config, overwrite)
            with folder.lock():
                state, history = run_rounds(training, folder, observers, resume=resume)
        return Result(training.model(state), history, training, state)


def _complete_config(config: Config, model: object, data: object, clients: object) -> Config:
    """Complete the configuration of a run with the objects given in Python."""
    partition = PARTITIONS.find(config.data.partition).options.model_fields
    config = as_own(config, model is not None, data is not None)
    if clients is None or not isinstance(data, Dataset):
        return config
    count = len(parse_lists(clients, len(data.train)).lists)
    keys = {f"data.{key}" for key in ("examples", "partition", *partition)}
    problems = [
        f"{key}: clients= gives the partition; remove one"
        for key in sorted(keys & _set_keys(config))
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
    """Return the explicitly set keys of the sections data and clients."""
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
    """Check the arguments and return the configuration; raise if this process cannot run it."""
    if config is not None and not isinstance(config, Config | Mapping):
        raise ConfigError(
            f"config: a {type(config).__name__} is neither a submodel.Config nor a dictionary "
            "such as {'train': {'rounds': 10}}; submodel.config.read(path) reads a file"
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
        problems.append("resume: requires out, the folder of the run to resume")
    if overwrite and (out is None or resume):
        reason = "requires out, the run to replace" if out is None else "conflicts with resume"
        problems.append(f"overwrite: {reason}")
    refuse(problems)
    full_config = config if isinstance(config, Config) else parse(config or {})
    engine = full_config.engine
    if engine.name in ("torchrun", "flower") or getattr(engine, "processes", None):
        command = "serve" if engine.name == "flower" else "train"
        raise ConfigError(
            "engine: submodel.train computes in this process (name 'auto' or 'local', no "
            f"processes); use 'submodel {command} CONFIG.toml' for others"
        )
    return full_config


def _check_additions(callbacks: object, metrics: object) -> None:
    """Raise unless these are callbacks, and metrics with unused names."""
    problems = []
    if not isinstance(callbacks, Sequence):
        problems.append(f"callbacks: {callbacks!r} is not a list of callbacks")
    else:
        for callback in callbacks:
            if isinstance(callback, type) and issubclass(callback, Callback):
                name = callback.__name__
                problems.append(f"callbacks: {name} is a class; give an instance, {name}()")
            elif not isinstance(callback, Callback):
                problems.append(
                    f"callbacks: {callback!r} is not a submodel.Callback; pass a function of a "
                    "round's metrics as on_round="
                )
    if not isinstance(metrics, Mapping):
        problems.append(f"metrics: {metrics!r} is not a dictionary of names and functions")
    else:
        for name, metric in metrics.items():
            if not isinstance(name, str) or name in RESERVED_NAMES:
                problems.append(f"metrics: {name!r} is a name that the run itself writes")
            if not callable(metric):
                problems.append(f"metrics.{name}: {metric!r} is not a function of (model, data)")
    refuse(problems)
