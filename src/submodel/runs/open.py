"""A run opened by its folder: configuration, metrics, model, resumption, fitting and export."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from submodel.algorithm.evaluation import ScoredModel, score_clients
from submodel.algorithm.score import Score
from submodel.algorithm.types import State
from submodel.config import Config, parse, to_toml
from submodel.config.meaning import (
    CHANGEABLE,
    PLACE_KEYS,
    RATE_KEYS,
    differences,
    made_absolute,
    paths_in,
    refusals,
)
from submodel.config.model_facts import Selector
from submodel.config.reading import read_toml, without_unused
from submodel.core.amounts import parse_capacity
from submodel.core.errors import CheckpointError, ConfigError, DataError, refuse
from submodel.core.registry import remember
from submodel.data.examples import as_dataset
from submodel.model.axes import Axes, Dimension
from submodel.model.norm import needs_calibration
from submodel.runs import checkpoint
from submodel.runs.callbacks import Callback, CallbackGuard
from submodel.runs.callbacks.progress import Progress, run_html
from submodel.runs.data_record import (
    fingerprints_of,
    model_part,
    read_norms,
    read_record,
    setup_of_record,
)
from submodel.runs.export import Format, export, trained_state
from submodel.runs.fitted import FitFolder, FittedModel
from submodel.runs.fitting import fit_submodels
from submodel.runs.folder import RunFolder, read_full_scores
from submodel.runs.generation import generate
from submodel.runs.loop import run_rounds
from submodel.runs.metrics import Lines, Metrics, flat
from submodel.runs.scoring import score_in_full
from submodel.runs.training import Material, Metric, Training
from submodel.tasks.loss import Loss

_log = logging.getLogger(__name__)
_PLACES = set(PLACE_KEYS)


class Run:
    """A run in a folder, as returned by `submodel.open`.

    Properties read the folder on every access, so they follow a run that another process trains.

    Args:
        path: folder of the run.
        material: objects of a run that began in Python, such as module and data.
    """

    def __init__(self, path: str | Path, material: Material | None = None) -> None:
        self.folder = RunFolder(Path(path))
        self._material = material or Material()
        self._lines: tuple[object, Lines] = (None, Lines([], []))
        self._check(self.config)

    def __repr__(self) -> str:
        how = "finished" if self.finished else f"{self.folder.rounds()} rounds done"
        return f"<Run {str(self.folder.path)!r}: {how} of {self.config.train.rounds}>"

    def _repr_html_(self) -> str:
        state = "finished" if self.finished else "not finished"
        return run_html(f"Run {self.folder.path}: {state}", self.config, self.history)

    @property
    def config(self) -> Config:
        """Resolved configuration."""
        return self.folder.config()

    @property
    def history(self) -> list[Metrics]:
        """Lines of ``metrics.jsonl``, one for every completed round.

        The file is read again only if it has changed.
        """
        try:
            status = self.folder.metrics_file.stat()
            version = status.st_ino, status.st_size, status.st_mtime_ns
        except OSError:
            version = None
        if version is None or self._lines[0] != version:
            self._lines = version, Lines.read(self.folder.metrics_file)
        return list(self._lines[1].entries)

    @property
    def metrics(self) -> list[Metrics]:
        """The history as flat rows for ``pandas.DataFrame``, with columns as ``seconds.train``."""
        return [flat(line) for line in self.history]

    @property
    def summary(self) -> Metrics | None:
        """Summary of the finished run; None before its end."""
        return self.folder.summary()

    @property
    def finished(self) -> bool:
        """Whether all rounds of the configuration are done."""
        return self.folder.finished()

    @property
    def model(self) -> nn.Module:
        """Trained global model, ready to use."""
        return self._model_training.model(self._state)

    def submodel(self, capacity: float | str) -> nn.Module:
        """Return the trained sub-model of a capacity, ready to use; the fitted one, if any.

        Args:
            capacity: fraction of every axis, as 0.25 or "1/4".
        """
        share, state, training = parse_capacity(capacity), self._state, self._model_training
        if (fitted_model := self._fitted_model(share, state)) is not None:
            return training.assemble(fitted_model.tensors, fitted_model.cut)
        return training.model(state, share)

    def fit(
        self,
        capacities: float | str | Sequence[float | str],
        *,
        rounds: int | None = None,
        lr: float | None = None,
        cut: str = "search",
        progress: bool = True,
    ) -> list[Metrics]:
        """Train sub-models for devices, each on its own.

        The units of a sub-model are chosen from the trained model, and only the clients that can
        hold them train it. The global model is unchanged; sub-models are kept beside it, in ``fit``
        of the run's folder, and `submodel` and `export` return them from then on. Interrupted fits
        are continued, finished fits are not repeated.

        Args:
            capacities: one or several capacities, as 0.25 or "1/4".
            rounds: rounds for each of them; None: a quarter of the run's.
            lr: learning rate of the clients; None: the run's.
            cut: choice of the units: the largest ("importance"), the first ("prefix"), those of the
                run's scheme ("scheme"), or the best of these ("search").
            progress: whether to show progress on standard error.

        Returns:
            Result of each sub-model: its test score, the score before, that of the global model,
            bytes and FLOPs.
        """
        if isinstance(capacities, (float, int, str)):
            capacities = [capacities]
        shares = list(dict.fromkeys(parse_capacity(c) for c in capacities))
        console = Console(stderr=True) if progress else None
        state = self._state
        return fit_submodels(self._training, state, self.folder, shares, rounds, lr, cut, console)

    def fitted_model(self, capacity: float | str) -> FittedModel | None:
        """Return the fitted sub-model of a capacity; None if there is none.

        Args:
            capacity: fraction of every axis, as 0.25 or "1/4".
        """
        return self._fitted_model(parse_capacity(capacity), self._state)

    def _fitted_model(self, share: float, state: State) -> FittedModel | None:
        """Return the fitted sub-model for a loaded state."""
        folder = FitFolder(self.folder.path, share)
        if not folder.result_file.is_file():
            return None
        sha256 = self.folder.result()["model_sha256"]
        return folder.load(self._model_training.setup, state.tensors, sha256)

    def is_fitted(self, capacity: float | str) -> bool:
        """Whether there is a fitted sub-model of a capacity.

        Args:
            capacity: fraction of every axis, as 0.25 or "1/4".
        """
        folder = FitFolder(self.folder.path, parse_capacity(capacity))
        sha256 = (self.summary or {}).get("model_sha256", "")
        return folder.result(sha256) is not None

    def client_scores(self, model: ScoredModel = "submodel") -> list[Metrics]:
        """Score every client with the trained model; return a row for each, ready for pandas.

        A client is scored on its own test examples if the data names their owners, else on those of
        its labels, weighted by their frequency among its training examples.

        Args:
            model: model to score: "submodel" of the client's capacity, or "global".
        """
        training = self._training
        state, tests = self._state, training.client_tests
        setup = training.setup_at(state)
        return [
            {
                "client": row.client,
                **({"name": tests.names[row.client]} if tests.names else {}),
                "capacity": row.capacity,
                **row.score.entries(),
            }
            for row in score_clients(setup, state, tests, model, training.device)
        ]

    def score(self) -> Metrics:
        """Score the result in full, save the scores in ``scores.json`` and return them.

        They cover all training and test examples, every capacity, and every client with the
        sub-model of its capacity. Saved scores are not computed again.
        """
        full_scores = read_full_scores(self.folder)
        if full_scores is None:
            state, sha256 = self._state, self.folder.result()["model_sha256"]
            full_scores = score_in_full(self._training, state, sha256)
            full_scores.write(self.folder)
        return full_scores.entries

    def export(
        self,
        capacity: float | str = 1.0,
        format: Format = "safetensors",  # noqa: A002 - named as the option of the command
        out: str | Path | None = None,
    ) -> tuple[Path, Score | None]:
        """Export the trained model, or the sub-model of a capacity.

        A fitted sub-model is exported if there is one. The run's data is needed only for the score.

        Args:
            capacity: fraction of every axis, as 0.25 or "1/4".
            format: ``safetensors``, ``program`` (torch.export), ``onnx``, ``huggingface`` (for
                `from_pretrained`; only models of `transformers`) or ``peft`` (only adapters).
            out: folder to write to; by default ``export/capacity-...`` in the run's folder.

        Returns:
            The file, and the test score of the model in it; None if the data is missing.
        """
        share = parse_capacity(capacity)
        target = Path(out or self.folder.path / "export" / f"capacity-{share:g}")
        state, training, is_scored = self._state, self._model_training, True
        try:
            training = self._training
        except (ConfigError, DataError, CheckpointError) as error:
            if read_record(self.folder) is None:
                raise
            _log.warning("the exported model is not scored: %s", error)
            is_scored = False
        fitted_model = self._fitted_model(share, state)
        return export(training, state, share, format, target, fitted_model, is_scored)

    def generate(
        self,
        prompt: str,
        tokens: int = 200,
        *,
        capacity: float | str = 1.0,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> str:
        """Generate text with the trained language model, or with the sub-model of a capacity.

        Args:
            prompt: beginning of the text.
            tokens: number of tokens to add.
            capacity: fraction of every axis, as 0.25 or "1/4".
            temperature: divisor of the logits; below 1, likely tokens are likelier; 0: always the
                likeliest token.
            seed: seed of the draws.

        Returns:
            The prompt with the generated text.
        """
        data = self._model_training.setup.clients.dataset
        return generate(self.submodel(capacity), data, prompt, tokens, temperature, seed)

    def resume(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
    ) -> Run:
        """Resume the run in this process until it is finished; return the run itself.

        Args:
            config: changes by section, as ``{"train": {"rounds": 300}}``; None restores the default
                of a key. Moved data, also of a finished run, is given as ``{"data": {"name":
                "csv:/new/place.csv"}}``; its content must be the same.
            callbacks: callbacks around every round, as in `submodel.train`.
            progress: whether to show progress on standard error.
        """
        next_config = self.with_changes(config or {})
        if self.is_done_with(next_config):
            self.move(next_config)
            return self
        name = next_config.engine.name
        if name in ("torchrun", "flower") or getattr(next_config.engine, "processes", None):
            raise ConfigError(
                "engine: resume computes in this process (name 'auto' or 'local', no "
                f"processes); use 'submodel resume {self.folder.path}' for others"
            )
        self.require_material()
        progress_bars = [Progress(Console(stderr=True))] if progress else []
        with torch.inference_mode(False), torch.enable_grad():
            training = self._prepare(next_config)
            with self.folder.lock():
                run_rounds(
                    training,
                    self.folder,
                    [*progress_bars, *map(CallbackGuard, callbacks)],
                    resume=True,
                )
        vars(self).pop("_training", None)
        vars(self).pop("_recorded", None)
        return self

    def with_changes(self, config: Config | Mapping[str, Any]) -> Config:
        """Change the configuration for a resumption; raise `ConfigError` if not allowed.

        Args:
            config: complete configuration, or changes by section.
        """
        if not isinstance(config, Config):
            values = without_unused(_merged(read_toml(to_toml(self.config)), config))
            config = parse(_merged(values, config))
        config = made_absolute(config, self.config)
        rounds_done = checkpoint.saved_round(self.folder.checkpoints)
        if problems := refusals(self.config, config, rounds_done):
            hint = (
                f"a run that has begun may change {', '.join(CHANGEABLE)}; and, for later rounds "
                f"only, {', '.join(RATE_KEYS)}"
            )
            raise ConfigError([*problems, hint])
        return config

    def is_done_with(self, config: Config) -> bool:
        """Whether the run is finished and a configuration changes at most the paths of its data.

        Args:
            config: configuration for a resumption.
        """
        return self.finished and differences(self.config, config).keys() <= _PLACES

    def move(self, config: Config) -> None:
        """Record new paths of the run's data, after checking that the data is the same.

        Args:
            config: configuration of the run with other paths.
        """
        if not differences(self.config, config):
            return
        self.require_material()
        self._check_fingerprints(self._prepare(config))
        with self.folder.lock():
            self.folder.update_config(config)
        vars(self).pop("_training", None)

    def _check_fingerprints(self, training: Training) -> None:
        """Raise `CheckpointError` if the model or the data is not the run's."""
        record = read_record(self.folder)
        recorded = None if record is None else record.subject
        checkpoint.check_run(self.folder.checkpoints, fingerprints_of(training), recorded)

    @contextmanager
    def explaining_paths(self, config: Config) -> Iterator[None]:
        """Extend errors within this context by a hint on how to give new paths of data.

        Args:
            config: configuration of the run with resolved paths.
        """
        try:
            yield
        except (ConfigError, DataError) as error:
            keys = [key for key, path in paths_in(config).items() if not path.exists()]
            if not keys:
                raise
            section, key = keys[0].split(".")
            kind = getattr(config, section).name.partition(":")[0]
            prefix = {"data.name": f"{kind}:", "data.tokens": "file:"}.get(keys[0], "")
            hint = (
                f"if it has moved: 'submodel resume {self.folder.path} --set "
                f"{keys[0]}={prefix}PATH' (in Python: submodel.open({str(self.folder.path)!r})"
                f".resume({{{section!r}: {{{key!r}: '{prefix}PATH'}}}})), also of a finished run"
            )
            raise ConfigError([str(error), hint]) from None

    def _prepare(self, config: Config) -> Training:
        """Make the training of a configuration of the run, with resolved paths."""
        located = self.folder.locate(config)
        with self.explaining_paths(located), torch.inference_mode(False), torch.enable_grad():
            return self._material.training(config, located)

    def require_material(self, data: bool = True) -> None:
        """Raise `ConfigError` if a model or data that must be given in Python is missing.

        Args:
            data: whether data is needed.
        """
        missing = [
            f"{section}=..."
            for section in (("model", "data") if data else ("model",))
            if getattr(self._material, section) is None
            and getattr(self.config, section).name == "own"
        ]
        if missing:
            call = f"submodel.open({str(self.folder.path)!r}, {', '.join(missing)})"
            resuming = ".resume()" if data else ""
            raise ConfigError(
                f"{self.folder.path}: begun in Python with objects that no file contains; use "
                f"{call}{resuming}"
            )

    @cached_property
    def _training(self) -> Training:
        self.require_material()
        config = self.config
        training = self._prepare(config)
        if "own" in (config.model.name, config.data.name) or paths_in(config):
            self._check_fingerprints(training)
        return training

    @property
    def _model_training(self) -> Training:
        """Training that makes the model: from the record if that suffices, else from data."""
        if "_training" in vars(self) or self._material.data is not None:
            return self._training
        if (recorded := self._recorded) is None:
            return self._training
        if needs_calibration(recorded.setup.module):  # the record has only some capacities
            with suppress(ConfigError, DataError, CheckpointError):
                return self._training
        return recorded

    @cached_property
    def _recorded(self) -> Training | None:
        """Training made from the record of the data in the folder; None if there is no record."""
        if (record := read_record(self.folder)) is None:
            return None
        self.require_material(data=False)
        given, norms, config = self._material, read_norms(self.folder), self.config
        with torch.inference_mode(False), torch.enable_grad():
            setup = setup_of_record(config, record, norms, given.model, given.outputs, given.loss)
        training = Training(config, setup)
        if given.model is not None:
            then, now = (model_part(part) for part in (record.subject, fingerprints_of(training)))
            checkpoint.check_fingerprints(self.folder.path, then, now)
        return training

    @property
    def _state(self) -> State:
        self.folder.result()  # raises if it is not finished
        return trained_state(self.folder, self._model_training)

    def _check(self, config: Config) -> None:
        """Raise if model or data are given although the configuration names them."""
        names = {"model": config.model.name, "data": config.data.name}
        problems = [
            f"{section}: the run's configuration already names {name!r}"
            for section, name in names.items()
            if getattr(self._material, section) is not None and name != "own"
        ]
        refuse(problems)


def open(  # noqa: A001 - submodel.open
    path: str | Path,
    *,
    model: nn.Module | None = None,
    data: Any = None,
    axes: Axes | Mapping[str, tuple[Dimension, ...]] | None = None,
    loss: Loss | None = None,
    outputs: Selector | None = None,
    clients: Sequence[Any] | None = None,
    metrics: Mapping[str, Metric] | None = None,
    parts: Sequence[Any] = (),
) -> Run:
    """Open a run by its folder, for its configuration, metrics and model, or to resume it.

    If `submodel.train` began the run with a given module and data, the same module is needed again
    for ``model``, ``submodel`` and ``export``, and also the data for ``resume``, ``score`` and
    ``fit``.

    Args:
        path: folder of the run.
        model: module that the run began with; its weights do not matter.
        data: examples that the run began with.
        axes: axes, if the run began with given ones.
        loss: loss, if the run began with a given one.
        outputs: selection of the output tensor, if the run began with one.
        clients: partition of the examples, if the run began with a given one.
        metrics: further scores to compute when the run is resumed.
        parts: classes, functions and objects in the configuration that have no import path, and
            that ``config.toml`` calls ``python:NAME``.

    >>> import tempfile, submodel
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    >>> out = tempfile.mkdtemp()
    >>> _ = submodel.train(net, submodel.digits(), {"train": {"rounds": 2}}, out=out)
    >>> run = submodel.open(out, model=net, data=submodel.digits())
    >>> [row["round"] for row in run.metrics], run.submodel("1/4")[1]
    ([1, 2], Linear(in_features=64, out_features=2, bias=True))
    """
    for part in parts:
        remember(part)
    return Run(path, Material(model, as_dataset(data), axes, loss, outputs, clients, metrics or {}))


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Apply changes to nested tables; None removes a key.

    >>> _merged({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 4, "c": None}})
    {'a': {'b': 4}, 'd': 3}
    """
    result = dict(values)
    for key, value in changes.items():
        old = values.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(old, Mapping):
            result[key] = _merged(old, value)
        else:
            result[key] = value
    return result
