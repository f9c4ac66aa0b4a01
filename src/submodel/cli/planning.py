"""Commands before training: config, data, inspect and cost."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from submodel.cli import completion
from submodel.cli.common import AsJson, ConfigFile, SetOptions, console, print_json
from submodel.core.amounts import parse_amount, parse_capacity
from submodel.core.errors import ConfigError

MemoryLimit = Annotated[
    str | None, typer.Option(help="Memory limit for training, such as 2GB or 512MiB.")
]
FlopsLimit = Annotated[str | None, typer.Option(help="FLOPs limit per training step, such as 1e9.")]
TrafficLimit = Annotated[
    str | None, typer.Option(help="Traffic limit per round, down and up, such as 10MB.")
]


def cost_command(
    config: ConfigFile = None,
    settings: SetOptions = None,
    memory: MemoryLimit = None,
    flops: FlopsLimit = None,
    traffic: TrafficLimit = None,
    as_json: AsJson = False,
) -> None:
    """Show the cost of each capacity, or the largest within a budget.

    Nothing is trained: parameters, bytes and FLOPs follow from shapes. With a limit, the exit
    status is 1 if not even the smallest sub-model fits. `submodel train --dry-run` estimates time.

    Examples:
        submodel cost
        submodel cost examples/mnist.toml --set 'clients.capacities=["1/2", "1/16"]'
        submodel cost --memory 1MB
        submodel cost examples/mnist.toml --flops 1e8 --traffic 100kB --json
    JSON:
        capacities: for each capacity its parameters and their share of the full model, bytes of a
            round (down and up), FLOPs of training on one example and their share
        capacity: with a limit, and without capacities: largest capacity that fits; null if none
        limits: with a limit, the budget in bytes and FLOPs
        batch_size: with a limit, batch size that memory and FLOPs are counted for
        needs: with a limit, memory with its terms in bytes, FLOPs of a step, traffic of a round
        next_larger: with a limit, needs of the next larger capacity, which does not fit; null if
            all fit
    """
    limits = {"memory": memory, "flops": flops, "traffic": traffic}
    if any(limit is not None for limit in limits.values()):
        fit_budget(config, settings, limits, as_json)
        return
    from submodel.config import read
    from submodel.config.setup import prepare
    from submodel.report.tables import cost_rows, cost_table

    rows = cost_rows(prepare(read(config, settings or [])))
    if as_json:
        print_json({"capacities": rows})
    else:
        console.print(cost_table(rows))


def inspect_command(
    model: Annotated[
        str,
        typer.Argument(
            help="Built-in name, package.module:factory, or Hugging Face config class such as "
            "transformers:GPT2Config.",
            autocompletion=completion.names_of("model.name"),
        ),
    ],
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Argument of the factory; repeatable."),
    ] = None,
    shape: Annotated[
        str | None, typer.Option("--input", help="Shape of one input, such as 3,32,32.")
    ] = None,
    capacities: Annotated[
        str, typer.Option(help="Capacities to show the cost of.")
    ] = "1,1/2,1/4,1/8,1/16",
    meta: Annotated[
        bool, typer.Option(help="Allocate no memory: for models too large for this machine.")
    ] = False,
    rank_share: Annotated[
        str | None,
        typer.Option(help="Factorise the model at this share of the full rank (model.factorised)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the axes of a model: dimensions cut together or frozen.

    Every axis is verified: permuting its units leaves the outputs unchanged. Every frozen dimension
    comes with the reason and, if there is one, the line of the model's code to change.

    Examples:
        submodel inspect cnn
        submodel inspect preresnet18 --set width=16 --input 3,32,32
        submodel inspect transformers:GPT2Config --set n_layer=2 --meta
    JSON:
        axes: for each axis its size, its members, whether a capacity cuts it, the reason if it is
            kept whole and the reason if cutting it is not masking
        frozen: dimensions that are never cut, with reasons
        lines: lines of the model's code that cause frozen dimensions and whole axes
        unused_tensors: tensors that the forward pass never reads
        exact: whether a sub-model equals the masked model; null if unknown
        measured: capacities at which that was measured
        doubt: why it is unknown; null if it is known
        notes: choices of the code that a cut changes, and reasons why a cut of unequal shares
            cannot be built
        verified: whether every axis was permuted
        capacities: cost of each capacity, as in submodel cost
    """
    from submodel.config import override
    from submodel.model.inspect import axes_remarks, inspect_axes, subject
    from submodel.model.zoo import factorised, only_ranks
    from submodel.report.tables import cost_table, module_cost_rows

    model_subject = subject(model, override({}, options or []), _shape(shape), meta)
    if rank_share is None:
        axes = inspect_axes(model_subject)
    else:
        low = factorised(model_subject.module, parse_capacity(rank_share))
        model_subject = replace(model_subject, module=low)
        axes = only_ranks(low, inspect_axes(model_subject))
    rows = []
    if axes.cut_by_capacity:
        shares = [parse_capacity(text) for text in capacities.split(",")]
        rows = module_cost_rows(model_subject.module, axes, model_subject.inputs, shares)
    if as_json:
        from submodel.report.tables import plain_axes

        print_json(plain_axes(axes, not meta, rows))
        return
    print(axes.table())
    print(axes_remarks(axes, is_verified=not meta))
    if rows:
        console.print(cost_table(rows))


def _shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        shape = tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        shape = (0,)
    if min(shape) < 1:
        raise ConfigError(f"--input: {text!r} is not a shape such as 3,32,32")
    return shape


def fit_budget(
    config: Path | None,
    settings: Sequence[str] | None,
    amounts: Mapping[str, str | None],
    as_json: bool,
) -> None:
    """Print the largest capacity within a budget; exit with status 1 if none fits.

    Args:
        config: file of the configuration.
        settings: overrides of its keys.
        amounts: budget by memory, flops and traffic; None where there is no limit.
        as_json: print one JSON object.
    """
    from submodel.config import read
    from submodel.config.setup import prepare
    from submodel.report.tables import describe_fit, plain_fit
    from submodel.runs.forecast import budget_of

    limits = {key: parse_amount(text) for key, text in amounts.items() if text is not None}
    full_config = read(config, settings or [])
    setup = prepare(full_config)
    batch = full_config.local.batch_size or len(setup.clients.examples(0))
    fit = budget_of(setup, batch).largest(
        lambda needs: all(getattr(needs, key) <= most for key, most in limits.items())
    )
    if as_json:
        print_json(plain_fit(fit, limits, batch))
    else:
        print("\n".join(describe_fit(fit, limits, batch)))
    if fit.capacity is None:
        raise typer.Exit(1)


def config_command(
    config: ConfigFile = None, settings: SetOptions = None, as_json: AsJson = False
) -> None:
    """Print a configuration: every key with its value and meaning.

    Comments in the file are kept.

    Examples:
        submodel config > my.toml
        submodel config examples/mnist.toml --set scheme.name=rolling
        submodel config --json
    JSON:
        name, seed: the keys outside all sections
        model, task, axes, data, clients, scheme, merge, server, local, train, engine, devices: the
            sections with their keys; null if not set
    """
    from submodel.config import describe, keep_comments, read

    full_config = read(config, settings or [])
    if as_json:
        print_json(full_config.model_dump(mode="json"))
        return
    text = describe(full_config)
    print(text if config is None else keep_comments(text, config.read_text("utf-8")), end="")


def data_command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Name as in data.name (see submodel config), or a CONFIG.toml.",
            autocompletion=completion.data_names,
        ),
    ] = "digits",
    settings: SetOptions = None,
    path: Annotated[Path | None, typer.Option(help="Local archive (data.path).")] = None,
    source: Annotated[str | None, typer.Option(help="Where to download (data.source).")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients (clients.count).")] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            help="Partition over clients (data.partition).",
            autocompletion=completion.names_of("data.partition"),
        ),
    ] = None,
    labels_per_client: Annotated[
        int | None, typer.Option(help="Labels per client (data.labels_per_client).")
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="Skew of dirichlet (data.alpha).")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Picture of clients by labels to write, such as who.png.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Download and describe a dataset and its partition over clients.

    Examples:
        submodel data
        submodel data mnist --clients 100 --partition dirichlet --alpha 0.3
        submodel data examples/diamonds.toml --json
    JSON:
        name, inputs, classes: name, shape of one example, number of classes (null: none)
        train, test, held_out: number of examples of each part
        partition, clients: name of the partition, number of clients
        examples_per_client: number of examples of the first 1,000 clients
        labels_per_client: number of examples of these clients by label; null without classes
        picture: file of --out; null without it
    """
    from submodel.config import read
    from submodel.drawing.style import format_of
    from submodel.report.partition import (
        data_of,
        describe_shares,
        draw_shares,
        plain_shares,
        share_out,
    )

    if out is not None:
        if out.is_dir():
            raise ConfigError(f"--out: {out} is a folder; give the file of a picture")
        format_of(out)
    file = Path(name) if name.endswith(".toml") else None
    short_settings = {
        "data.name": name if file is None else None,
        "data.path": path,
        "data.source": source,
        "clients.count": clients,
        "clients.per_round": None if clients is None else 1,  # has no effect on the partition
        "data.partition": partition,
        "data.labels_per_client": labels_per_client,
        "data.alpha": alpha,
    }
    overrides = [f"{key}={_toml(v)}" for key, v in short_settings.items() if v is not None]
    config = read(file, [*overrides, *(settings or [])])
    shares = share_out(config, data_of(config))
    if out is not None:
        draw_shares(shares, out)
    if as_json:
        print_json({**plain_shares(shares), "picture": out})
        return
    print("\n".join(describe_shares(shares)))
    if out is not None:
        print(f"picture: {out}")


def _toml(value: object) -> str:
    """Write a value as TOML: numbers as they are, anything else as a quoted string."""
    if isinstance(value, int | float):
        return str(value)
    return json.dumps(str(value), ensure_ascii=False)
