"""A run is a folder: config, metrics, checkpoints, final model, summary, picture.

Whatever moment it is killed at, the folder can be resumed, and the resumed run ends with the same
model as one that was never killed.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor

from submodel.algorithm.evaluation import (
    capacity_models,
    evaluate_capacities,
    evaluate_parts,
    measured,
    some,
)
from submodel.algorithm.rounds import initial_state, output_step, step
from submodel.algorithm.tally import RoundReport
from submodel.algorithm.types import ALONE, Engine, Group, Setup, State
from submodel.config import Config
from submodel.engines.device import own_device
from submodel.engines.processes.group import ProcessGroup
from submodel.errors import LostProcessError, SilentRoundError, SubmodelError
from submodel.files import write_text
from submodel.model.cost import CostModel
from submodel.model.cut import WHOLE
from submodel.prepare.engine import make_engine
from submodel.runs import checkpoint
from submodel.runs.curves import draw_curves
from submodel.runs.folder import RunFolder, new_folder
from submodel.runs.metrics import Metrics
from submodel.runs.subject import Subject, subject_of

__all__ = ["Interrupted", "Metrics", "OnRound", "RunFolder", "new_folder", "save_tensors", "train"]
_log = logging.getLogger(__name__)
OnRound = Callable[[Metrics], None]
_SCORES = (
    *("test_loss", "test_accuracy", "train_eval_loss", "train_eval_accuracy"),
    "capacity_loss",  # where accuracy is not defined
)


class OverDevices(Engine, Protocol):
    """An engine whose tasks run on devices, and that notes what it measured of them."""

    def books(self) -> Metrics:
        """What was measured of every device since the last time."""
        ...


class Interrupted(SubmodelError):  # noqa: N818 - not an error, but it ends the command
    """The user stopped the run; its last completed round is saved."""


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
    devices: OverDevices | None = None,
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
