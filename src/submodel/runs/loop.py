"""The loop over the rounds of a run; callbacks do everything else around a round.

A run with a folder can be killed at any moment and resumed; the resumed run ends with the same
model as an uninterrupted one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import torch

from submodel.algorithm.execution import ALONE, Engine, Group
from submodel.algorithm.round_statistics import RoundReport
from submodel.algorithm.rounds import OneModel, output_step, step
from submodel.algorithm.types import State
from submodel.core.errors import (
    CallbackError,
    CheckpointError,
    Interruption,
    LostProcessError,
    SilentRoundError,
    SubmodelError,
)
from submodel.core.files import write_text
from submodel.core.heap import give_back, large_blocks_apart
from submodel.engines.processes.group import ProcessGroup, SharedModel, share_model
from submodel.model.build import can_release
from submodel.model.cost import CostModel
from submodel.model.travel import size_in_bytes
from submodel.runs import checkpoint
from submodel.runs.callbacks import Callback, callbacks_of
from submodel.runs.callbacks.callback import CallbackList
from submodel.runs.checkpoint import saved_round
from submodel.runs.data_record import DataRecord, Fingerprints, fingerprints_of, write_record
from submodel.runs.folder import RunFolder, record_failure
from submodel.runs.holdings_file import keep_holdings
from submodel.runs.metrics import Metrics, round_line
from submodel.runs.training import Training

__all__ = ["Interruption", "Metrics", "RunFolder", "run_rounds"]
_log = logging.getLogger(__name__)
_LARGE = 1 << 26  # bytes of a model; memory fragments of smaller ones are reused


def run_rounds(
    training: Training,
    folder: RunFolder | None = None,
    callbacks: Sequence[Callback] = (),
    *,
    resume: bool = False,
    group: ProcessGroup | None = None,
) -> tuple[State, list[Metrics]]:
    """Train from the beginning or from the newest checkpoint; return the final state and history.

    Args:
        training: configuration and setup.
        folder: existing folder of the run; without one nothing is written. In a group of processes
            only the first has it.
        callbacks: further callbacks, called last; in a group of processes only by the first.
        resume: whether to resume the run in the folder.
        group: processes that share the work; None: this process alone.
    """
    torch.set_num_threads(training.config.engine.threads)
    give_back()  # release the memory of preparation
    engine = training.make_engine()
    fingerprints = {} if folder is None else fingerprints_of(training)
    all_callbacks = callbacks_of(training, folder, fingerprints, group, callbacks)
    with large_blocks_apart():
        follows = group is not None and group.rank > 0
        state, history = _start(training, folder, fingerprints, resume, follows)
    with record_failure(folder):  # from here on: the folder of another run stays unchanged
        return _run_rounds(training, folder, all_callbacks, engine, (state, history), group)


def _start(
    training: Training,
    folder: RunFolder | None,
    fingerprints: Fingerprints,
    resume: bool,
    follows: bool,
) -> tuple[State, list[Metrics]]:
    """Return the state to start from, and the lines of the finished rounds.

    A resumed run starts from the newest undamaged checkpoint; one killed before its first
    checkpoint begins again. A process that ``follows`` another needs no values.
    """
    take = training.takes_module and can_release(training.setup.module)
    config, state = training.config, training.initial_state(take=take, follows=follows)
    if folder is None:
        return state, []
    has_checkpoint = bool(checkpoint.checkpoint_folders(folder.checkpoints))
    if resume and not has_checkpoint:
        _check_untrained(folder)
        if config.engine.name != "flower":  # a server always resumes, also a new run
            _log.warning("%s: stopped before its first checkpoint; begins at round 1", folder.path)
    if not folder.record_file.is_file():
        write_record(folder, DataRecord.of(training, fingerprints))
    if resume and has_checkpoint:
        state, problems = checkpoint.latest(
            folder.checkpoints, config, state, fingerprints, into=True
        )
        for problem in problems:
            _log.warning("skipped %s", problem)
        checkpoint.renew(folder.checkpoints, config, fingerprints)
        folder.update_config(config)
    else:
        folder.update_config(config)
        checkpoint.save(folder.checkpoints, state, config, fingerprints)
    keep_holdings(folder.holdings_file, state.round)
    if damage := folder.keep_metrics(state.round):
        _log.warning(
            "%s: %s; this affects totals and curves, but not the model",
            folder.metrics_file,
            damage,
        )
    return state, folder.metrics()


def _check_untrained(folder: RunFolder) -> None:
    """Raise `CheckpointError` if a run without checkpoints has finished rounds."""
    rounds = max(folder.rounds(), (folder.summary() or {}).get("rounds", 0))
    if rounds:
        raise CheckpointError(
            f"{folder.path}: {rounds} rounds are done, but there is no checkpoint to resume from: "
            f"restore {folder.checkpoints}, or begin again: 'submodel train "
            f"{folder.config_file} --out {folder.path} --force' (in Python: submodel.train(..., "
            f"out={str(folder.path)!r}, overwrite=True))"
        )


def _run_rounds(
    training: Training,
    folder: RunFolder | None,
    callbacks: CallbackList,
    engine: Engine,
    beginning: tuple[State, list[Metrics]],
    group: ProcessGroup | None,
) -> tuple[State, list[Metrics]]:
    state, history = beginning
    setup, rounds, together = training.setup, training.rounds, group or ALONE
    finishing = training.config.train.finishing_round
    costs = CostModel(setup.module, setup.clients.dataset.example)
    is_large = size_in_bytes(state.tensors) >= _LARGE
    one_model = OneModel() if is_large and not callbacks.looks_back else None
    shared: SharedModel | None = None
    if group is not None:
        if group.first(one_model is not None):
            shared = share_model(group, state, setup.module)
        if shared is not None:
            one_model = OneModel(writes=shared.writes)
            state = replace(state, tensors=shared.tensors)
        state = group.agree(state, shared=shared is not None)
    if finishing is not None and state.round > finishing:
        engine = training.make_engine(training.setup_at(state))
    try:
        callbacks.begin(training, state, history)
        while state.round < rounds:
            if state.round == finishing:
                state = training.with_ranking(state)
                engine = training.make_engine(training.setup_at(state))
            after, report = _round(training, state, engine, costs, together, one_model)
            if shared is not None and one_model is not None:
                after = shared.settle(after, one_model)
            callbacks.after_merge(after.round, report)
            line = callbacks.complete(state, after, round_line(after.round, report))
            history.append(line)
            before, state = state, after  # from here on the round counts
            if one_model is not None:
                one_model.is_torn = False
            callbacks.after_round(before, after, line)
            del before, after  # otherwise the next round begins with three models in memory
            if is_large:
                give_back()
        final, smoothness = state, training.config.train.output_step
        if smoothness is not None:
            final = output_step(setup, state, engine, costs, smoothness, together)
        entries = callbacks.finish(state, final, history)
    except (KeyboardInterrupt, LostProcessError, SilentRoundError, CallbackError) as stop:
        if folder is None and group is None:
            raise
        if one_model is not None and one_model.is_torn:
            raise _ending_within(stop, state.round, rounds, folder) from stop.__cause__
        callbacks.stop(state, [line for line in history if line["round"] <= state.round])
        raise _ending(stop, state.round, rounds) from stop.__cause__
    finally:
        callbacks.close()
    if folder is not None:
        write_result(folder, training.config.name, final, history, entries)
    return final, history


def _round(
    training: Training,
    state: State,
    engine: Engine,
    costs: CostModel,
    group: Group,
    one_model: OneModel | None,
) -> tuple[State, RoundReport]:
    """Run one round; on devices, repeat a round that no device answers."""
    tries = training.config.devices.tries
    for number in count(1):
        try:
            return step(training.setup_at(state), state, engine, costs, group, one_model)
        except SilentRoundError as error:
            _log.warning("%s (try %d of %d)", error, number, tries)
            if number >= tries:
                raise
    raise AssertionError  # unreachable: the loop has no end


def _ending(stop: BaseException, round_: int, rounds: int) -> SubmodelError:
    """Make the error of a run that stops after a saved round."""
    where = f"stopped after round {round_} of {rounds}"
    if isinstance(stop, CallbackError):
        return CallbackError(f"{stop}; {where}, which is saved; resume it to continue")
    return Interruption(f"{where}: {stop}" if isinstance(stop, SubmodelError) else where)


def _ending_within(
    stop: BaseException, round_: int, rounds: int, folder: RunFolder | None
) -> SubmodelError:
    """Make the error of a run that stops while the model of its last round is overwritten."""
    saved = 0 if folder is None else saved_round(folder.checkpoints)
    reason = f" ({stop})" if str(stop) else ""
    text = f"stopped while round {round_ + 1} of {rounds} was merged or scored{reason}; "
    text += f"round {saved} is saved"
    return CallbackError(text) if isinstance(stop, CallbackError) else Interruption(text)


def write_result(
    folder: RunFolder,
    name: str,
    final: State,
    history: Sequence[Metrics],
    entries: Mapping[str, Any],
) -> None:
    """Write the final model and the summary, which marks the run as finished.

    Args:
        folder: folder of the run.
        name: name of the run.
        final: final state.
        history: lines of its rounds.
        entries: entries of callbacks for the summary.
    """
    for path, tensors in ((folder.model_file, final.tensors), (folder.memory_file, final.memory)):
        if tensors or path == folder.model_file:
            partial = path.with_name(f".{path.name}.partial")
            checkpoint.write_tensors(partial, tensors)
            partial.replace(path)
    totals = {
        key: sum(line[key] for line in history) for key in ("bytes_down", "bytes_up", "flops")
    }
    once = {key: line[key] for line in history[-1:] for key in ("bytes_once",) if key in line}
    summary = {
        "name": name,
        "rounds": final.round,
        **entries,
        "model_sha256": checkpoint.model_sha256(final.tensors),
        **totals,
        **once,
        "refused": sum(len(line["refused"]) for line in history),
        "seconds": round(sum(sum(line["seconds"].values()) for line in history), 3),
        **({"rounds_lost": final.round - len(history)} if len(history) < final.round else {}),
    }
    write_text(folder.summary_file, json.dumps(summary, indent=2) + "\n")
