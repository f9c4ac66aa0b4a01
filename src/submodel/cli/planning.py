"""Before training: what a configuration says, what a model is made of, costs, and what fits."""

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
            help="A built-in name, package.module:factory, or a Hugging Face config class "
            "such as transformers:GPT2Config.",
            autocompletion=completion.names_of("model.name"),
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
    rank_share: Annotated[
        str | None,
        typer.Option(help="Factorise, with this share of the full rank, as model.factorised does."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the axes of a model: what is cut together, what is frozen.

    Every axis is verified: permuting its units leaves the outputs unchanged. What is frozen is
    said with the reason, and with the line of the model's code to change where there is one.

    Examples:
        submodel inspect cnn
        submodel inspect preresnet18 --set width=16 --input 3,32,32
        submodel inspect transformers:GPT2Config --set n_layer=2 --meta
    JSON:
        axes: each with its size, its members, whether a capacity cuts it, why it is kept whole and
            why cutting it is not masking
        frozen: dimensions that are never cut, and why
        lines: of these and of axes that are kept whole, the lines of the model's code
        unused_tensors: what the forward never read
        exact: whether a sub-model is the masked model; null if not known
        measured: the capacities at which that was tried
        doubt: why it is not known; null if it is
        notes: where the code leaves a choice what a cut changes, and why a cut of unequal shares
            cannot be built
        verified: whether permuting every axis was tried
        capacities: what each costs, as of submodel cost
    """
    from submodel.config import override
    from submodel.model.inspect import findings, inspect_axes, subject
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
    print(findings(axes, is_verified=not meta))
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
    """Print a configuration: every key, its value, what it means.

    Comments of your own stay where they are.

    Examples:
        submodel config > my.toml
        submodel config examples/mnist.toml --set scheme.name=rolling
        submodel config --json
    JSON:
        name, seed: what stands above all sections
        model, task, axes, data, clients, scheme, merge, server, local, train, engine, devices: the
            sections with their keys; one that is not set is null
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
        typer.Option(
            help="Who has what; data.partition.",
            autocompletion=completion.names_of("data.partition"),
        ),
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
        "clients.per_round": None if clients is None else 1,  # shares nothing out: any will do
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
    """A number as it is, all else as a TOML string, so that a setting takes it literally."""
    if isinstance(value, int | float):
        return str(value)
    return json.dumps(str(value), ensure_ascii=False)
