"""Data and experiments."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from submodel.cli import completion
from submodel.cli.base import AsJson, SetOptions, console, make_folder, talk
from submodel.cli.converged import reproduce_converged
from submodel.cli.json_output import print_json
from submodel.errors import ConfigError
from submodel.experiments.paper.plans import EXPERIMENTS
from submodel.experiments.paper.variants import DATASETS, Scale, Split


def data_command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="As data.name (see submodel config), or the data of a CONFIG.toml.",
            autocompletion=completion.data_names,
        ),
    ] = "digits",
    settings: SetOptions = None,
    path: Annotated[Path | None, typer.Option(help="A local archive; data.path.")] = None,
    source: Annotated[str | None, typer.Option(help="Where it is fetched; data.source.")] = None,
    clients: Annotated[int | None, typer.Option(help="How many; clients.count.")] = None,
    partition: Annotated[
        str | None,
        typer.Option(help="Who has what; data.partition.", autocompletion=completion.partitions),
    ] = None,
    labels_per_client: Annotated[
        int | None, typer.Option(help="Short for data.labels_per_client.")
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="Short for data.alpha.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Draw clients by labels into this file, as who.png.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a dataset, describe it, and show who would have what.

    Examples:
        submodel data
        submodel data mnist --clients 100 --partition dirichlet --alpha 0.3
        submodel data examples/diamonds.toml --json
    JSON:
        name, inputs, classes: what it is, the shape of one example, how many classes (null: none)
        train, test, held_out: how many examples each part has
        partition, clients: who has what, and how many they are
        examples_per_client: of each client, the first 1,000
        labels_per_client: of each of them, its examples by label; null without classes
        picture: the file of --out; null without it
    """
    from submodel.config import read
    from submodel.data.held_out import hold_out
    from submodel.prepare.objective import settle_clients
    from submodel.prepare.parts import load_data, split_data
    from submodel.presentation.figures import format_of, save_figure
    from submodel.presentation.style import DOUBLE, SINGLE
    from submodel.report import partition as words
    from submodel.report.plots.partition import MOST_CLIENTS, MOST_NAMES, Shares, partition_figure

    short_settings = {
        "data.path": path,
        "data.source": source,
        "clients.count": clients,
        "clients.per_round": None if clients is None else 1,  # shares nothing out: any will do
        "data.partition": partition,
        "data.labels_per_client": labels_per_client,
        "data.alpha": alpha,
    }
    if out is not None:
        if out.is_dir():
            raise ConfigError([f"--out: {out} is a folder; give the file of a picture"])
        format_of(out)
    file = Path(name) if name.endswith(".toml") else None
    overrides = [] if file else [f"data.name={_quote(name)}"]
    overrides += [
        f"{key}={value if isinstance(value, int | float) else _quote(str(value))}"
        for key, value in short_settings.items()
        if value is not None
    ]
    config = read(file, [*overrides, *(settings or [])])
    dataset = hold_out(load_data(config), config.data.held_out, config.seed)
    config = settle_clients(config, dataset)
    split = split_data(config, dataset)
    if out is not None and dataset.classes is None:
        raise ConfigError([f"--out: {config.data.name} has no classes to draw; leave it out"])
    count = min(config.clients.client_count, MOST_CLIENTS)
    of = "" if count == config.clients.client_count else f", of which the first {count:,} are shown"
    title = (
        f"{config.data.name}: {config.data.partition}, {config.clients.client_count:,} clients{of}"
    )
    counts = None
    if dataset.classes is not None:
        counts = words.label_counts(split, dataset.train.y.numpy(), dataset.classes, count)
        if out is not None:
            width = SINGLE if dataset.classes <= MOST_NAMES else DOUBLE
            save_figure(partition_figure(Shares(title, counts), width), out, dpi=300)
    if as_json:
        content = words.plain_data(dataset, split, counts, count)
        print_json(
            {
                "name": config.data.name,
                **content,
                "partition": config.data.partition,
                "clients": config.clients.client_count,
                "picture": out,
            }
        )
        return
    print(config.data.name)
    print("\n".join(f"  {line}" for line in words.describe_data(dataset)))
    print(f"partition {config.data.partition} over {config.clients.client_count:,} clients{of}")
    if counts is None:
        print(f"  {words.describe_sizes(split, count)}")
        return
    print("\n".join(f"  {line}" for line in words.describe_partition(counts)))
    if out is not None:
        print(f"picture: {out}")


def _quote(text: str) -> str:
    """The text as a TOML string, so that a setting takes it literally."""
    return json.dumps(text, ensure_ascii=False)


def reproduce_command(
    name: Annotated[
        str,
        typer.Argument(
            help=f"{', '.join(EXPERIMENTS)}, or all; of --scale converged: a question, or all.",
            metavar="NAME",
        ),
    ],
    scale: Annotated[Scale, typer.Option(help="How much of it.")] = Scale.SMALL,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Runs of each variant (default: 3; smoke: 1; converged: 3 or 10).", min=1
        ),
    ] = None,
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
    keep: Annotated[
        Path | None,
        typer.Option(
            help="Of --scale converged: a folder of records of earlier runs; their seeds are not "
            "run again, new ones are added as they end."
        ),
    ] = None,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Of --scale converged: say what it takes and can show."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run the paper's experiments and say what holds.

    The same command goes on where it was stopped.

    Examples:
        submodel reproduce all --scale smoke
        submodel reproduce heterofl --seeds 5 --jobs 2
        submodel reproduce all --scale converged --plan
        submodel reproduce heterofl --records results/small --json
    JSON:
        scale: how much of it
        experiments: each with its name, title, page and claims: what is claimed, in which setting,
            the differences seed by seed in its favour, their interval, p-value and verdict
        overview: of several questions of --scale converged, the page with all their claims
        plan: with --plan instead of experiments, the lines of the plan
    """
    from submodel.config import parse
    from submodel.experiments.paper import report
    from submodel.experiments.records import VariantRecord
    from submodel.experiments.runner import Runner
    from submodel.runs.loop import Interruption

    if scale is Scale.CONVERGED:
        if datasets is not None or split is not Split.LABELS:
            raise ConfigError(
                ["--scale converged: its questions have data and splits of their own"]
            )
        default = Path("runs") / f"reproduce-{scale.value}"
        reproduce_converged(name, seeds, jobs, out or default, records, keep, plan, as_json)
        return
    if plan or keep is not None:
        option = "--plan" if plan else "--keep"
        raise ConfigError([f"{option}: goes with --scale converged"])
    if name != "all" and name not in EXPERIMENTS:
        raise ConfigError([f"{name!r} is not one of {', '.join(EXPERIMENTS)}, all"])
    count = seeds or (1 if scale is Scale.SMOKE else 3)
    folder = out or Path("runs") / f"reproduce-{scale.value}"
    dataset_names = tuple(datasets.split(",")) if datasets else None
    if dataset_names and (
        unknown := sorted(set(dataset_names) - {d for s in Scale for d in DATASETS[s]})
    ):
        raise ConfigError([f"--datasets: {unknown[0]!r} has no experiments"])
    experiments = [e for e in EXPERIMENTS.values() if name in (e.name, "all")]
    variants_by_experiment = {e.name: e.variants(scale, dataset_names, split) for e in experiments}
    variants = list(dict.fromkeys(v for group in variants_by_experiment.values() for v in group))
    make_folder(folder)
    if records is None:
        configs = {
            v.slug: [parse(v.settings(scale, seed)) for seed in range(count)] for v in variants
        }
        try:
            runner = Runner(folder, jobs or os.cpu_count() or 1, talk(as_json))
            variant_records = runner.run(configs)
        except Interruption as stop:
            talk(as_json).print(str(stop), soft_wrap=True)
            raise typer.Exit(130) from None
        for record in variant_records:
            record.write(folder / "records" / f"{record.slug}.json")
    else:
        variant_records = [
            VariantRecord.read(records / f"{variant.slug}.json") for variant in variants
        ]
    by_variant = dict(zip(variants, variant_records, strict=True))
    command = f"submodel reproduce {name} --scale {scale.value} --seeds {count}"
    command += "" if split is Split.LABELS else f" --split {split.value}"
    answers = []
    for experiment in experiments:
        own_records = {v: by_variant[v] for v in variants_by_experiment[experiment.name]}
        page = report.write_experiment(experiment, own_records, command, folder)
        if as_json:
            claims = report.plain_claims(experiment, own_records)
            about = {"name": experiment.name, "title": experiment.title, "page": page}
            answers.append({**about, "claims": claims})
            continue
        console.print(report.claims_table(experiment, own_records))
        print(page)
    if as_json:
        print_json({"scale": scale.value, "experiments": answers})
