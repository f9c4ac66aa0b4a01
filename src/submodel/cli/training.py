"""Commands of training: train and resume."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from submodel.cli import completion, devices
from submodel.cli.common import AsJson, ConfigFile, Force, RunPath, SetOptions, print_json, talk
from submodel.core.errors import ConfigError, Interruption
from submodel.engines.processes.launch import launch, warn_once

if TYPE_CHECKING:  # imports of PyTorch stay inside the functions
    from submodel.config import Config
    from submodel.engines.processes.group import ProcessGroup
    from submodel.runs.folder import RunFolder
    from submodel.runs.open import Run
    from submodel.runs.training import Training


_MOST_PER_CORE = 16  # processes; each takes hundreds of megabytes


def _train(
    config: Config,
    folder: RunFolder,
    as_json: bool,
    past_run: Run | None = None,
    force: bool = False,
) -> None:
    """Train a new run, or continue a past one, with progress and the final result."""
    from submodel.config.engine import choose_engine
    from submodel.config.model_facts import facts_of, pass_on, passed_facts
    from submodel.config.parts import keep_clients
    from submodel.config.setup import prepare
    from submodel.core.heap import give_back
    from submodel.engines.processes.group import ProcessGroup, in_process_group
    from submodel.runs.loop import run_rounds
    from submodel.runs.training import Training

    _refuse_devices(config)
    resume = past_run is not None
    there = folder.locate(config) if resume else config
    where = contextlib.nullcontext() if past_run is None else past_run.explaining_paths(there)
    with warn_once(), where:
        setup = prepare(there, facts=passed_facts(), progress=_say)
    config = choose_engine(keep_clients(config, setup), setup, has_begun=resume)
    training = Training(config, setup, takes_module=True)
    together = config.engine.name == "torchrun"
    if together and not in_process_group():
        processes = _count_processes(config)
        facts = facts_of(setup, config)
        del setup, training  # the started processes have models of their own
        gc.collect()  # reference cycles hold the setup
        give_back()
        with pass_on(facts):
            raise typer.Exit(launch(sys.argv[1:], processes))
    group = ProcessGroup(config.engine.device) if together else None
    try:
        if group is not None and group.rank > 0:
            run_rounds(training, group=group)
        else:
            _train_and_show(training, folder, resume, group, as_json, force)
    except Interruption as stop:
        with contextlib.suppress(OSError):  # the terminal may be gone
            talk(as_json).print(
                f"{stop}; continue with: submodel resume {folder.path}", soft_wrap=True
            )
        raise typer.Exit(130) from None
    finally:
        if group is not None:
            group.close()


def _say(text: str) -> None:
    """Print a step of preparation on standard error."""
    print(f"{text} ...", file=sys.stderr, flush=True)


def _dry_run(config: Config, folder: RunFolder, as_json: bool) -> None:
    """Print an estimate of a run's cost, without creating its folder."""
    from submodel.config.engine import choose_engine
    from submodel.config.setup import prepare
    from submodel.report.tables import (
        cost_rows,
        evaluation_advice,
        forecast_tables,
        plain_forecast,
    )
    from submodel.runs.forecast import forecast
    from submodel.runs.training import Training

    _refuse_devices(config)
    setup = prepare(config)
    config = choose_engine(config, setup)
    processes = _count_processes(config) if config.engine.name == "torchrun" else 1
    training = Training(config, setup, takes_module=True)

    rows = cost_rows(setup)
    result = forecast(training, processes, folder.path, _say)
    if as_json:
        print_json(plain_forecast(result, rows))
        return
    console = talk(as_json=False)
    console.print(f"nothing is trained: {_describe(training, processes)}")
    for table in forecast_tables(result, rows):
        console.print(table)
    if advice := evaluation_advice(result):
        console.print(advice, soft_wrap=True)
    if config.train.finish is not None:
        console.print("train.finish: its rounds are counted like the others, but take longer")


def _refuse_devices(config: Config) -> None:
    if config.engine.name == "flower":
        raise ConfigError("engine.name: flower needs a server: 'submodel serve CONFIG.toml'")


def _count_processes(config: Config) -> int:
    """Return the number of processes; raise `ConfigError` if too many for this machine."""
    cores = os.cpu_count() or 1
    processes = config.engine.processes or cores
    if processes > _MOST_PER_CORE * cores:
        raise ConfigError(f"engine.processes: {processes} are too many to start on {cores} cores")
    return processes


def _describe(training: Training, processes: int) -> str:
    """Describe the run: model, data, scheme, clients, processes, engine."""
    config, population = training.config, training.setup.population
    kernels = ", native kernels" if getattr(config.engine, "kernels", "") == "native" else ""
    return (
        f"{config.model.name} on {config.data.name}, scheme {config.scheme.name}, "
        f"{population.per_round} of {population.count} clients per round, "
        f"{config.train.rounds} rounds, {processes} process(es) with {config.engine.threads} "
        f"thread(s) on {training.device}, engine {config.engine.name}{kernels}"
    )


def _train_and_show(
    training: Training,
    folder: RunFolder,
    resume: bool,
    group: ProcessGroup | None,
    as_json: bool,
    force: bool,
) -> None:
    from submodel.report.tables import cost_rows, cost_table, plain_end
    from submodel.runs.callbacks.progress import Progress, describe_end
    from submodel.runs.loop import run_rounds

    config, setup, console = training.config, training.setup, talk(as_json)
    if not resume:
        folder.create(config, force)
    what = _describe(training, 1 if group is None else group.size)
    console.print(f"{'resuming' if resume else 'training'} {folder.path}: {what}")
    with folder.lock():
        run_rounds(training, folder, [Progress(console)], resume=resume, group=group)
    if as_json:
        print_json(plain_end(folder))
        return
    console.print(cost_table(cost_rows(setup)))
    console.print(describe_end(folder.summary() or {}))
    if folder.curves_file.is_file():
        console.print(f"curves: {folder.curves_file}")


def train_command(
    config: ConfigFile = None,
    settings: SetOptions = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run (default: a new one under runs).")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Engine; short for --set engine.name=...",
            autocompletion=completion.names_of("engine.name"),
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(help="Number of processes to start; implies torchrun.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Estimate time, memory and traffic, then exit."),
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Train a model through sub-models.

    The run's folder holds its configuration, a line of metrics per round, checkpoints, the model
    and a picture of its curves.

    Examples:
        submodel train
        submodel train examples/mnist.toml --set train.rounds=50
        submodel train --set scheme.name=static --out runs/static --force --json
        submodel train examples/mnist.toml --dry-run
    JSON:
        run: folder of the run
        summary: rounds, scores on the test part, bytes, FLOPs, seconds, hash of the model
        curves: picture of the curves; null without matplotlib
        seconds, rounds, processes, phases, quantities, trial_seconds, capacities: with --dry-run,
            and nothing of the above: time by phase, memory, traffic, disk, cost of sub-models
        seconds_alone, core_share, evaluation_keys: with --dry-run: time on idle cores, share of a
            core that the trials had, keys that shorten a long evaluation
    """
    from submodel.config import read
    from submodel.runs.folder import RunFolder, new_folder

    overrides = list(settings or [])
    if processes is not None and engine not in (None, "torchrun"):
        raise ConfigError(f"--processes: goes with the engine torchrun, not with {engine!r}")
    if engine is not None or processes is not None:
        overrides.append(f"engine.name={engine or 'torchrun'}")
    if processes is not None:
        overrides.append(f"engine.processes={processes}")
    full_config = read(config, overrides)
    folder = RunFolder(out) if out else new_folder(full_config.name)
    if force and (out is None or dry_run):
        reason = "a dry run writes nothing" if dry_run else "goes with --out, the run to replace"
        raise ConfigError(f"--force: {reason}")
    if dry_run:
        _dry_run(full_config, folder, as_json)
    else:
        _train(full_config, folder, as_json, force=force)


def resume_command(run: RunPath, settings: SetOptions = None, as_json: AsJson = False) -> None:
    """Continue a stopped or killed run, or extend one.

    The result has the same bytes as that of a run without a stop. If the data has moved, give its
    new place with --set, also for a finished run; its content must be the same.

    Examples:
        submodel resume runs/digits
        submodel resume runs/digits --set train.rounds=300
        submodel resume runs/table --set data.name=csv:/new/place.csv
    JSON:
        run: folder of the run
        summary: scores and costs, as in submodel train
        curves: picture of the curves; null without matplotlib
    """
    from submodel.config import read
    from submodel.config.meaning import differences, paths_in
    from submodel.report.tables import plain_end
    from submodel.runs.open import Run

    past_run = Run(run)
    folder = past_run.folder
    config = past_run.with_changes(read(folder.config_file, settings or [], of_run=True))
    has_changes = bool(differences(past_run.config, config))
    if past_run.is_done_with(config):
        past_run.move(config)
        if has_changes:
            talk(as_json).print(
                f"{run}: the same data, found at {', '.join(map(str, paths_in(config).values()))}"
            )
        talk(as_json).print(f"{run} is finished; 'submodel show {run}' shows it")
        if as_json:
            print_json(plain_end(folder))
        return
    if config.engine.name == "flower":
        from submodel.federation.flower.serving import ServingPlace

        place = ServingPlace.load(folder)
        if has_changes:
            with folder.lock():
                folder.update_config(config)
        devices.follow(config, folder, place, as_json)
        return
    past_run.require_material()
    _train(config, folder, as_json, past_run)
