"""The command line: train, resume, show, cost, config."""

from __future__ import annotations

import signal
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from submodel.config import Config, describe, read
from submodel.errors import SubmodelError
from submodel.prepare import prepare
from submodel.report.progress import show_progress
from submodel.report.tables import cost_table, history_table
from submodel.run import Interrupted, RunFolder, new_folder
from submodel.run import train as train_run

app = typer.Typer(
    help="Train one model over devices that cannot hold it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
# a pipe or a file has no width of its own: leave room for whole tables
console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)

ConfigFile = Annotated[
    Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Without it, the digits default.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key; repeatable.")
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]


def _train(config: Config, folder: RunFolder, resume: bool) -> None:
    """Train in the folder, show progress, end with the result."""
    setup = prepare(config)
    if not resume:
        folder.create(config)
    console.print(
        f"{'resuming' if resume else 'training'} {folder.path}: {config.model.name} on "
        f"{config.data.name}, scheme {config.scheme.name}, {config.clients.sampled} of "
        f"{config.clients.count} clients per round, {config.train.rounds} rounds"
    )
    try:
        with folder.locked(), show_progress(config.train.rounds, console) as on_round:
            train_run(config, setup, folder, on_round, resume)
    except Interrupted as stop:
        console.print(f"{stop}; continue with: submodel resume {folder.path}")
        raise typer.Exit(130) from None
    console.print(cost_table(setup))
    summary = folder.summary() or {}
    if "test_accuracy" in summary:
        console.print(f"test accuracy {summary['test_accuracy']:.1%}", end=", ")
    console.print(f"test loss {summary['test_loss']:.4f} after {summary['rounds']} rounds")
    console.print(f"curves: {folder.curves_file}")


@app.command()
def train(
    config: ConfigFile = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder.")] = None,
) -> None:
    """Train a model through sub-models; the run's folder holds all there is to know of it."""
    resolved = read(config, settings or [])
    _train(resolved, RunFolder(out) if out else new_folder(resolved.name), resume=False)


@app.command()
def resume(run: RunPath) -> None:
    """Go on with a run that was stopped or killed, from its newest checkpoint."""
    folder = RunFolder(run)
    config = folder.config()
    if folder.summary() is not None:
        console.print(f"{run} is finished; 'submodel show {run}' shows it")
        return
    _train(config, folder, resume=True)


@app.command()
def show(run: RunPath) -> None:
    """Show a run: its evaluated rounds and where it stands."""
    folder = RunFolder(run)
    config, history = folder.config(), folder.metrics()
    scheme = f"{config.scheme.name}, {config.merge.rule}"
    console.print(history_table(history, f"{config.name}: {config.model.name}, {scheme}"))
    summary = folder.summary()
    if summary is None:
        done = history[-1]["round"] if history else 0
        console.print(f"round {done} of {config.train.rounds}; 'submodel resume {run}' goes on")
    else:
        console.print(f"finished; model sha256 {summary['model_sha256']}")


@app.command()
def cost(config: ConfigFile = None, settings: Settings = None) -> None:
    """Say what each capacity costs against the full model, before anything runs."""
    console.print(cost_table(prepare(read(config, settings or []))))


@app.command(name="config")
def config_(config: ConfigFile = None, settings: Settings = None) -> None:
    """Print a configuration with every key, its value and what it means."""
    print(describe(read(config, settings or [])), end="")


@app.callback(invoke_without_command=True)
def version(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Train one model over devices that cannot hold it."""
    if show_version:
        print(f"submodel {metadata.version('submodel')}")
        raise typer.Exit


def _stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> None:
    """Run the command; a user's mistake is a sentence and exit status 2, never a traceback."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        app()
    except SubmodelError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
