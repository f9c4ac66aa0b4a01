"""A run is a folder: config, metrics, checkpoints, final model, summary, picture.

Whatever moment it is killed at, the folder can be resumed, and the resumed run ends with the same
model as one that was never killed.
"""

from __future__ import annotations

import fcntl
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from submodel import checkpoint
from submodel.config import Config, read, to_toml
from submodel.config.meaning import differences
from submodel.cost import CostModel
from submodel.cut import WHOLE
from submodel.devices.engine import DeviceEngine
from submodel.engines.device import own_device
from submodel.engines.make import make_engine
from submodel.engines.torchrun import ProcessGroup
from submodel.errors import LostProcessError, SilentRoundError, SubmodelError
from submodel.evaluate import (
    capacity_models,
    evaluate_capacities,
    evaluate_parts,
    measured,
    some,
)
from submodel.exchange import ALONE, Group, Setup, State
from submodel.files import UnreadableError, read_json, write_text
from submodel.metrics import Lines, Metrics, said
from submodel.report.curves import draw_curves
from submodel.rounds import initial_state, output_step, step
from submodel.subject import Subject, subject_of
from submodel.tally import RoundReport

_log = logging.getLogger(__name__)
OnRound = Callable[[Metrics], None]
_MOST_SUMMARY = 2**20  # bytes
_SCORES = (
    *("test_loss", "test_accuracy", "train_eval_loss", "train_eval_accuracy"),
    "capacity_loss",  # where accuracy is not defined
)
_SUMMARISED: dict[str, type | tuple[type, ...]] = {
    "rounds": int,
    "model_sha256": str,
    **dict.fromkeys(("test_loss", "seconds"), (int, float)),
}


class Interrupted(SubmodelError):  # noqa: N818 - not an error, but it ends the command
    """The user stopped the run; its last completed round is saved."""


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.metrics_file = path / "metrics.jsonl"
        self.damaged_metrics_file = path / "metrics.damaged.jsonl"  # as they were found
        self.checkpoints = path / "checkpoints"
        self.model_file = path / "model.safetensors"
        self.memory_file = path / "memory.safetensors"  # of schemes and server steps that have one
        self.summary_file = path / "summary.json"
        self.curves_file = path / "curves.png"
        self.devices_file = path / "devices.json"  # over devices: who is who
        self.log_file = path / "server.log"
        self.stopped_file = path / "stopped.txt"  # why the server's app gave up
        self.serving_file = path / "serving.json"  # where it is served
        self.link_log_file = path / "superlink.log"

    def create(self, config: Config) -> None:
        """Begin a run: refuses a folder that holds anything."""
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            hint = f": continue it with 'submodel resume {self.path}'"
            raise SubmodelError(
                f"{self.path} exists already{hint if self.config_file.exists() else ''}"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        write_text(self.config_file, to_toml(config))

    def config(self) -> Config:
        """The resolved configuration that the run began with."""
        if not self.config_file.is_file():
            raise SubmodelError(f"{self.path}: not a run (it has no config.toml)")
        return read(self.config_file)

    def go_on_as(self, config: Config) -> None:
        """Keep the configuration that the run goes on with; one that was finished is so no more."""
        try:
            changed = bool(differences(self.config(), config))
        except SubmodelError:  # damaged, but a checkpoint says that it belongs to this one
            changed = True
        if changed:  # in this order: a kill in between leaves an unfinished run
            self.summary_file.unlink(missing_ok=True)
            write_text(self.config_file, to_toml(config))

    def metrics(self) -> list[Metrics]:
        """One entry per completed round, ascending; what is damaged is left out."""
        return list(Lines.read(self.metrics_file).kept)

    def rounds(self) -> int:
        """How many rounds are behind the run, by its metrics."""
        lines = Lines.read(self.metrics_file).kept
        return int(lines[-1]["round"]) if lines else 0

    def lost(self) -> str:
        """What is damaged of the metrics, in words; empty if nothing is."""
        lines = Lines.read(self.metrics_file)
        return said(lines.damage, lines.lost(self.rounds()))

    def summary(self) -> Metrics | None:
        """The summary of a finished run; raises `SubmodelError` where it is damaged."""
        if not self.summary_file.is_file():
            return None
        again = f"'submodel resume {self.path}' writes it again"
        try:
            summary = read_json(self.summary_file, _MOST_SUMMARY)
        except UnreadableError as error:
            raise SubmodelError(f"{self.summary_file}: damaged: {error}; {again}") from None
        for key, kind in _SUMMARISED.items():
            if not isinstance(summary, dict) or not isinstance(summary.get(key), kind):
                raise SubmodelError(f"{self.summary_file}: damaged: no {key}; {again}")
        found: Metrics = summary
        return found

    def finished(self) -> bool:
        """Whether all rounds of the configuration are done, and summed up."""
        try:
            summary = self.summary()
        except SubmodelError:
            return False
        return summary is not None and summary["rounds"] == self.config().train.rounds

    def keep_metrics(self, rounds: int) -> str:
        """Forget the lines after ``rounds``: they will be written again. Says what is lost."""
        lines = Lines.read(self.metrics_file).until(rounds)
        what = said(lines.damage, lines.lost(rounds))
        if lines.damage:
            shutil.copyfile(self.metrics_file, self.damaged_metrics_file)
        write_text(self.metrics_file, lines.text())
        return what

    def replace_metrics(self, history: Sequence[Metrics]) -> None:
        """Write all lines anew."""
        write_text(self.metrics_file, Lines(history, []).text())

    def flush_metrics(self) -> None:
        """Have the lines on the disk before the checkpoint that they lead to."""
        if self.metrics_file.exists():
            checkpoint.flush(self.metrics_file)

    def add_metrics(self, line: Metrics) -> None:
        """Append one round's line."""
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process out of the folder; a killed process leaves no lock behind."""
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SubmodelError(f"{self.path}: another process is training this run") from None
            yield


def new_folder(name: str, base: Path = Path("runs")) -> RunFolder:
    """The first of NAME, NAME-2, NAME-3, ... that is free."""
    number, path = 1, base / name
    while path.exists():
        number += 1
        path = base / f"{name}-{number}"
    return RunFolder(path)


def _line(state: State, report: RoundReport) -> Metrics:
    return {
        "round": state.round,
        "train_loss": report.train_loss,
        "clients": report.clients,
        "refused": report.refused,
        **({"missing": report.missing} if report.missing else {}),
        "coverage": {"units": report.units_covered, "weights": report.weights_covered},
        "bytes_down": report.bytes_down,
        "bytes_up": report.bytes_up,
        "flops": report.flops,
        "seconds": {phase: round(s, 6) for phase, s in report.seconds.items()},
        **({"observed": report.observed} if report.observed else {}),
    }


def _scores(
    config: Config, setup: Setup, state: State, device: torch.device, group: Group
) -> Metrics:
    """The evaluation of one round, as it stands in the metrics."""
    data = setup.federation.dataset
    parts = {"test": data.test}
    if config.train.evaluate_train:
        parts["train_eval"] = some(data.train, config.train.evaluate_train_examples, config.seed)
    small = {}
    if config.train.evaluate_capacities:
        small = capacity_models(setup, state)
    rows = measured(setup, [(state.tensors, WHOLE), *small.values()])
    found = evaluate_parts(
        setup, state, list(parts.values()), device=device, spread=group.spread, rows=rows[0]
    )
    values: Metrics = {}
    for name, score in zip(parts, found, strict=True):
        values[f"{name}_loss"] = score.loss
        if score.accuracy is not None:
            values[f"{name}_accuracy"] = score.accuracy
    if config.train.evaluate_capacities:
        by_capacity = evaluate_capacities(
            setup, state, found[0], device, group.spread, dict(zip(small, rows[1:], strict=True))
        )
        if found[0].accuracy is not None:
            values["capacity_accuracy"] = {f"{c:g}": s.accuracy for c, s in by_capacity.items()}
        else:
            values["capacity_loss"] = {f"{c:g}": s.loss for c, s in by_capacity.items()}
    return values


def train(
    config: Config,
    setup: Setup,
    folder: RunFolder | None = None,
    on_round: OnRound = lambda _: None,
    resume: bool = False,
    group: ProcessGroup | None = None,
    devices: DeviceEngine | None = None,
) -> tuple[State, list[Metrics]]:
    """Train from the beginning, or from the newest checkpoint; returns the final model.

    Without a folder nothing is written. Of a group of processes only the first is given the folder.
    Over ``devices`` every round is kept, and one that nobody answers is tried again.
    """
    torch.set_num_threads(config.engine.threads)
    engine, device = devices or make_engine(config, setup), own_device(config.engine.device)
    costs = CostModel(setup.module, setup.federation.dataset.example)
    subject = {} if folder is None else subject_of(config, setup)
    state, history = _begin(config, initial_state(setup), folder, resume, subject)
    if group is not None:
        state = group.agree(state)

    def keep() -> None:
        """Save the state, once the lines that lead to it are safe."""
        if folder is not None:
            folder.flush_metrics()
            checkpoint.save(folder.checkpoints, state, config, subject)

    for line in history:
        on_round(line)
    together: Group = ALONE if group is None else group
    rounds = config.train.rounds
    every = config.train.checkpoint_every if devices is None else 1
    tries = 0
    try:
        while state.round < rounds:
            try:
                new, report = step(setup, state, engine, costs, together)
            except SilentRoundError as error:
                tries += 1
                _log.warning("%s (try %d of %d)", error, tries, config.devices.tries)
                if tries >= config.devices.tries:
                    raise
                continue
            line = _line(new, report) | ({} if devices is None else devices.books())
            tries = 0
            due = new.round % config.train.evaluate_every == 0 or new.round == rounds
            if due:
                start = time.perf_counter()
                line |= _scores(config, setup, new, device, together)
                line["seconds"]["evaluate"] = round(time.perf_counter() - start, 6)
            if folder is not None:
                folder.add_metrics(line)
            state = new  # from here on the round counts, its line being written
            history.append(line)
            if state.round % every == 0 or state.round == rounds:
                keep()
            on_round(line)
    except (KeyboardInterrupt, LostProcessError, SilentRoundError) as stop:
        if folder is None and group is None:
            raise
        keep()
        why = f": {stop}" if isinstance(stop, SubmodelError) else ""
        raise Interrupted(f"stopped after round {state.round} of {rounds}{why}") from None
    last = history[-1] if history else {}
    # its line may be lost, or it was not to be the last round when it was trained
    unscored = last.get("round") != rounds or "test_loss" not in last
    if unscored if group is None else group.first(unscored):
        scores = _scores(config, setup, state, device, together)
        last = {**(last if last.get("round") == rounds else {}), **scores}
        if folder is not None and "round" in last:
            history[-1] = last
            folder.replace_metrics(history)
    scores = last
    if config.train.output_step is not None:
        smoothness = config.train.output_step
        state = output_step(setup, state, engine, costs, smoothness, together)
        scores = _scores(config, setup, state, device, together)
        scores["capacity_accuracy"] = last.get("capacity_accuracy")
    if folder is not None:
        _finish(config, folder, state, scores, history)
    return state, history


def _begin(
    config: Config, initial: State, folder: RunFolder | None, resume: bool, subject: Subject
) -> tuple[State, list[Metrics]]:
    """Where a run stands, and the lines of the rounds behind it."""
    if folder is None:
        return initial, []
    state = initial
    if resume and checkpoint.saved(folder.checkpoints):
        state, problems = checkpoint.latest(folder.checkpoints, config, initial, subject)
        for problem in problems:
            _log.warning("passed over %s", problem)
        checkpoint.renew(folder.checkpoints, config, subject)
        folder.go_on_as(config)
    else:  # also where a run was killed before its first checkpoint
        folder.go_on_as(config)
        checkpoint.save(folder.checkpoints, state, config, subject)
    if lost := folder.keep_metrics(state.round):
        _log.warning(
            "%s: %s; the model is not affected, but totals and curves are",
            folder.metrics_file,
            lost,
        )
    return state, folder.metrics()


def _finish(
    config: Config, folder: RunFolder, state: State, scores: Metrics, history: list[Metrics]
) -> None:
    """Write the final model, the summary and the picture."""
    save_tensors(folder.model_file, state.tensors)
    if state.memory:
        save_tensors(folder.memory_file, state.memory)
    totals = {
        key: sum(line[key] for line in history) for key in ("bytes_down", "bytes_up", "flops")
    }
    summary: Metrics = {
        "name": config.name,
        "rounds": state.round,
        **{key: scores[key] for key in _SCORES if key in scores},
        "capacity_accuracy": scores.get("capacity_accuracy"),
        "model_sha256": checkpoint.model_sha256(state.tensors),
        **totals,
        "refused": sum(len(line["refused"]) for line in history),
        "seconds": round(sum(sum(line["seconds"].values()) for line in history), 3),
        **({"rounds_lost": state.round - len(history)} if len(history) < state.round else {}),
    }
    draw_curves(history, folder.curves_file, title=config.name)
    write_text(folder.summary_file, json.dumps(summary, indent=2) + "\n")


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a file of tensors as a whole."""
    partial = path.with_name(f".{path.name}.partial")
    save_file({n: t.contiguous() for n, t in tensors.items()}, partial)
    partial.replace(path)
