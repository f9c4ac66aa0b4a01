"""Models: what they are made of, what they cost, what fits, what leaves the house."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from submodel.amounts import parse_amount, parse_capacity, si
from submodel.cli.base import ConfigFile, RunPath, SetOptions, console, make_folder
from submodel.errors import ConfigError


class ExportFormat(StrEnum):
    """The formats of `export`."""

    SAFETENSORS = "safetensors"
    PROGRAM = "program"
    ONNX = "onnx"
    HUGGINGFACE = "huggingface"
    PEFT = "peft"


def cost_command(config: ConfigFile = None, settings: SetOptions = None) -> None:
    """Say what each capacity costs against the full model, before anything runs."""
    from submodel.config import read
    from submodel.prepare.setup import prepare
    from submodel.report.tables import cost_rows, cost_table

    console.print(cost_table(cost_rows(prepare(read(config, settings or [])))))


def inspect_command(
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
    rank_share: Annotated[
        str | None,
        typer.Option(help="Factorise, with this share of the full rank, as model.factorised does."),
    ] = None,
) -> None:
    """Find the axes of a model: what is cut together, what is frozen and why, what cuts cost."""
    from submodel.config import override
    from submodel.model.inspect import findings, subject
    from submodel.model.inspect import inspect as inspect_axes
    from submodel.model.zoo import factorised, only_ranks
    from submodel.report.tables import cost_table, module_cost_rows

    model_subject = subject(model, override({}, options or []), _shape(shape), meta)
    if rank_share is None:
        axes = inspect_axes(model_subject)
    else:
        low = factorised(model_subject.module, parse_capacity(rank_share))
        model_subject = replace(model_subject, module=low)
        axes = only_ranks(low, inspect_axes(model_subject))
    print(axes.table())
    print(findings(axes, is_verified=not meta))
    if axes.cut_by_capacity:
        shares = [parse_capacity(text) for text in capacities.split(",")]
        rows = module_cost_rows(model_subject.module, axes, model_subject.inputs, shares)
        console.print(cost_table(rows))


def _shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        shape = tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        shape = (0,)
    if min(shape) < 1:
        raise ConfigError([f"--input: {text!r} is not a shape such as 3,32,32"])
    return shape


def plan_command(
    config: ConfigFile = None,
    settings: SetOptions = None,
    memory: Annotated[str | None, typer.Option(help="For training, as 2GB or 512MiB.")] = None,
    flops: Annotated[str | None, typer.Option(help="Per training step, as 1e9.")] = None,
    traffic: Annotated[str | None, typer.Option(help="Bytes per round, down + up.")] = None,
) -> None:
    """Turn a device's budget into the largest capacity that fits, and show the arithmetic."""
    from submodel.config import read
    from submodel.local.slots import kept_copies
    from submodel.model.budget import Budget
    from submodel.prepare.setup import prepare

    limits = {
        what: parse_amount(text)
        for what, text in {"memory": memory, "flops": flops, "traffic": traffic}.items()
        if text is not None
    }
    if not limits:
        raise ConfigError(["give a budget: --memory 2GB, --flops 1e9 or --traffic 10MB"])
    full_config = read(config, settings or [])
    setup = prepare(full_config)
    batch = full_config.local.batch_size or len(setup.clients.examples(0))
    example = setup.clients.dataset.example
    optimiser = setup.work.optimiser
    copies = kept_copies(optimiser) if setup.keeps_slots else optimiser.copies
    budget = Budget(setup.module, setup.axes, example, batch, copies, setup.least)
    fit = budget.largest(lambda n: all(getattr(n, what) <= most for what, most in limits.items()))
    limit_text = ", ".join(f"{what} {si(most)}" for what, most in limits.items())
    if fit.capacity is None or fit.needs is None:
        print(f"no capacity fits {limit_text}: one unit of every axis needs")
    else:
        print(f"capacity {fit.capacity:g} fits {limit_text}: at batch size {batch} it needs")
    for needs, text in ((fit.needs, "  "), (fit.too_large, "  the next larger one: ")):
        if needs is not None:
            print(f"{text}memory {needs.arithmetic()}; {si(needs.flops)} FLOPs per step; "
                  f"{si(needs.traffic, 'B')} per round")  # fmt: skip
    if fit.capacity is None:
        raise typer.Exit(1)


def export_command(
    run: RunPath,
    capacity: Annotated[str, typer.Option(help="Of the sub-model, as 1/4.")] = "1",
    kind: Annotated[
        ExportFormat, typer.Option("--format", help="How to write the model.")
    ] = ExportFormat.SAFETENSORS,
    out: Annotated[Path | None, typer.Option(help="The folder to write to.")] = None,
) -> None:
    """Write a trained model, or the sub-model of a capacity, for use elsewhere."""
    from submodel.report.fitting import advice_of_export
    from submodel.runs.open import Run

    share = parse_capacity(capacity)
    past_run = Run(run)  # or it is no run, and nothing is made in it
    path, score = past_run.export(share, kind.value, None if out is None else make_folder(out))
    accuracy = "" if score.accuracy is None else f"test accuracy {score.accuracy:.1%}, "
    is_fitted = past_run.fitted_model(share) is not None
    fit_note = ", fitted" if is_fitted else ""
    print(f"{path}: capacity {share:g}{fit_note}, {accuracy}test loss {score.loss:.4f}")
    if share < 1 and (advice := advice_of_export(past_run, share, score, is_fitted)):
        print(advice)


def fit_command(
    run: RunPath,
    capacities: Annotated[
        list[str], typer.Option("--capacity", help="Of a sub-model, as 1/4; repeatable.")
    ],
    rounds: Annotated[
        int | None, typer.Option(help="For each; without it, a quarter of the run's.")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="The clients' learning rate; without it, the run's.")
    ] = None,
    cut: Annotated[
        str, typer.Option(help="The units to begin with: search, importance, prefix or scheme.")
    ] = "search",
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Train the sub-models that devices will keep, each for itself; the global model stays."""
    from submodel.report.fitting import fit_table
    from submodel.runs.loop import Interruption
    from submodel.runs.open import Run

    past_run = Run(run)
    try:
        results = past_run.fit(capacities, rounds=rounds, lr=lr, cut=cut, progress=not as_json)
    except Interruption as stop:
        print(f"{stop}; the same command goes on with it", file=sys.stderr, flush=True)
        raise typer.Exit(130) from None
    if as_json:
        print(json.dumps(results, indent=2))
    else:
        console.print(fit_table(results))


def generate_command(
    run: RunPath,
    prompt: Annotated[str, typer.Option(help="What the text begins with.")] = "\n",
    tokens: Annotated[int, typer.Option(help="How many to add.")] = 200,
    capacity: Annotated[str, typer.Option(help="Of the sub-model, as 1/4.")] = "1",
    temperature: Annotated[
        float, typer.Option(help="Below 1: likelier tokens; 0: always the likeliest.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Another one draws another text.")] = 0,
) -> None:
    """Write text with a trained language model, or with the sub-model of a capacity."""
    from submodel.runs.open import Run

    share = parse_capacity(capacity)
    print(Run(run).generate(prompt, tokens, capacity=share, temperature=temperature, seed=seed))


def config_command(config: ConfigFile = None, settings: SetOptions = None) -> None:
    """Print a configuration with every key, its value, what it means, and your own comments."""
    from submodel.config import describe, keep_comments, read

    text = describe(read(config, settings or []))
    print(text if config is None else keep_comments(text, config.read_text("utf-8")), end="")
