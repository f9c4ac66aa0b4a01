"""Former names of commands: hidden from the help, with the options, output and exit codes of old.

Each calls the function of the command that replaced it; `generate` became an example.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from submodel.cli import completion
from submodel.cli.common import AsJson, ConfigFile, RunPath, SetOptions, print_json
from submodel.cli.planning import FlopsLimit, MemoryLimit, TrafficLimit, fit_budget
from submodel.cli.results import show_scores
from submodel.cli.watching import draw_figure
from submodel.core.amounts import parse_capacity
from submodel.core.errors import ConfigError
from submodel.report.plots.figure_kinds import FIGURES


def score_command(run: RunPath, as_json: AsJson = False) -> None:
    """Score a finished run in full; now `submodel show RUN --full`.

    Examples:
        submodel score runs/digits
        submodel score runs/digits --json
    JSON:
        test_*: loss and metrics on the test part
        train_eval_*: loss and metrics on the training part
        held_out_*: loss and metrics on the held-out part, if there is one
        capacity_*: loss and metrics on the test part, by capacity
        client_count: number of scored clients
        client_*: mean over clients, mean of the worst quarter, and mean by capacity
    """
    from submodel.runs.open import Run

    scores = Run(run).score()
    if as_json:
        print_json(scores)
    else:
        show_scores(scores)


def plan_command(
    config: ConfigFile = None,
    settings: SetOptions = None,
    memory: MemoryLimit = None,
    flops: FlopsLimit = None,
    traffic: TrafficLimit = None,
    as_json: AsJson = False,
) -> None:
    """Find the largest capacity that fits a budget; now `submodel cost --memory ...`.

    Fails with exit status 1 if not even the smallest sub-model fits.

    Examples:
        submodel plan --memory 1MB
        submodel plan examples/mnist.toml --flops 1e8 --traffic 100kB
    JSON:
        capacity: largest capacity that fits; null if none does
        limits: budget, in bytes and FLOPs
        batch_size: batch size that memory and FLOPs are counted for
        needs: memory with its terms in bytes, FLOPs of a step, traffic of a round
        next_larger: needs of the next larger capacity, which does not fit; null if all fit
    """
    limits = {"memory": memory, "flops": flops, "traffic": traffic}
    if all(limit is None for limit in limits.values()):
        raise ConfigError("give a budget: --memory 2GB, --flops 1e9 or --traffic 10MB")
    fit_budget(config, settings, limits, as_json)


def plot_command(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help=f"One of {', '.join(FIGURES)}.")
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN...",
            help="Folders of runs, comparisons or reproductions.",
            autocompletion=completion.run_folders,
        ),
    ] = None,
    file_format: Annotated[
        Literal["png", "svg", "pdf"] | None,
        typer.Option("--format", help="Default: the ending of --out, else png."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write (default: NAME.png).")] = None,
    column: Annotated[
        Literal["single", "double"], typer.Option(help="Width in a paper: 3.3 or 6.9 inches.")
    ] = "double",
    show_list: Annotated[bool, typer.Option("--list", help="List the figures.")] = False,
    as_json: AsJson = False,
) -> None:
    """Draw a figure of runs; now `submodel report RUN --figure NAME --format pdf`.

    Examples:
        submodel plot accuracy runs/digits
        submodel plot traffic runs/rolling runs/static --format pdf --column single
        submodel plot comparison runs/compare-digits --out ways.svg
        submodel plot --list
    JSON:
        figure: the file
        figures: with --list, every figure by name with its description
    """
    if show_list:
        if as_json:
            print_json({"figures": {key: kind.about for key, kind in FIGURES.items()}})
            return
        width = max(map(len, FIGURES))
        for key, kind in FIGURES.items():
            print(f"{key:{width}}  {kind.about}")
        return
    if name is None:
        raise ConfigError(f"give the name of a figure: {', '.join(FIGURES)}")
    draw_figure(name, runs or [], file_format, out, column, as_json)


def generate_command(
    run: RunPath,
    prompt: Annotated[
        str, typer.Option(help="Text to begin with; default: a new line.", show_default=False)
    ] = "\n",
    tokens: Annotated[int, typer.Option(help="Number of tokens to add.")] = 200,
    capacity: Annotated[str, typer.Option(help="Capacity of the sub-model, such as 1/4.")] = "1",
    temperature: Annotated[
        float, typer.Option(help="Below 1: likelier tokens; 0: always the likeliest.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Generate text with a trained language model; now `examples/generate_text.py`.

    Examples:
        submodel generate runs/shakespeare --prompt "To be, or"
        submodel generate runs/shakespeare --capacity 1/4 --temperature 0.5
    JSON:
        text: the prompt and its continuation
        prompt: the prompt
        tokens: number of added tokens
        capacity: capacity of the model
        temperature: as given
        seed: as given
    """
    from submodel.runs.open import Run

    share = parse_capacity(capacity)
    text = Run(run).generate(prompt, tokens, capacity=share, temperature=temperature, seed=seed)
    if not as_json:
        print(text)
        return
    options = {"capacity": share, "temperature": temperature, "seed": seed}
    print_json({"text": text, "prompt": prompt, "tokens": tokens, **options})
