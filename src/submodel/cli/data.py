"""Describing data and who has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from submodel.cli import completion
from submodel.cli.base import AsJson, SetOptions
from submodel.cli.json_output import print_json
from submodel.errors import ConfigError


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
    from submodel.presentation.style import DOUBLE, SINGLE, format_of, save_figure
    from submodel.report import partition as words
    from submodel.report.plots.figures import MOST_NAMES, draw_partition
    from submodel.report.plots.series import MOST_CLIENTS, LabelShares

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
    shares = words.share_out(config, words.data_of(config))
    config, dataset = shares.config, shares.data
    if out is not None and dataset.classes is None:
        raise ConfigError([f"--out: {config.data.name} has no classes to draw; leave it out"])
    count = min(shares.clients, MOST_CLIENTS)
    of = "" if count == shares.clients else f", of which the first {count:,} are shown"
    counts = shares.label_counts(count)
    if out is not None and counts is not None:
        title = f"{config.data.name}: {config.data.partition}, {shares.clients:,} clients{of}"
        width = SINGLE if counts.shape[1] <= MOST_NAMES else DOUBLE
        save_figure(draw_partition(LabelShares(title, counts), width), out, dpi=300)
    if as_json:
        content = words.plain_data(shares, counts, count)
        print_json(
            {
                "name": config.data.name,
                **content,
                "partition": config.data.partition,
                "clients": shares.clients,
                "picture": out,
            }
        )
        return
    print(config.data.name)
    print("\n".join(f"  {line}" for line in words.describe_data(dataset)))
    print(f"partition {config.data.partition} over {shares.clients:,} clients{of}")
    if counts is None:
        print(f"  {words.describe_sizes(shares.partition, count)}")
        return
    print("\n".join(f"  {line}" for line in words.describe_partition(counts)))
    if out is not None:
        print(f"picture: {out}")


def _quote(text: str) -> str:
    """The text as a TOML string, so that a setting takes it literally."""
    return json.dumps(text, ensure_ascii=False)
