"""Command compare: arms of an experiment under one budget."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from submodel.cli import completion
from submodel.cli.common import AsJson, SetOptions, console, make_folder, print_json, talk
from submodel.comparison.budgets import BudgetKind, parse_budget
from submodel.core.errors import ConfigError, Interruption

if TYPE_CHECKING:  # imports of PyTorch stay inside the functions
    from submodel.comparison.results import ComparisonResult
    from submodel.config import Config


def compare_command(
    ways: Annotated[
        str | None,
        typer.Argument(
            metavar="ARM[,ARM...]",
            help="Arms, such as rolling,random:sampling=fixed,rolling:merge.rule=fill_in: schemes "
            "with further settings; mine:Mine is a class of mine.py; exclusive trains every width "
            "on the clients that can hold it.",
            autocompletion=completion.arms,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG.toml",
            help="Common configuration (default: the digits example).",
            autocompletion=completion.config_files,
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="[smoke|small|converged|paper]",
            help="Instead of --config: setting of reproduce at this scale.",
        ),
    ] = None,
    settings: SetOptions = None,
    budget: Annotated[
        BudgetKind, typer.Option(help="Resource that every arm gets the same amount of.")
    ] = BudgetKind.ROUNDS,
    amount: Annotated[
        str | None,
        typer.Option(help="Amount, such as 2GB or 1e12 (default: cost of the first arm's rounds)."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each arm.", min=1)] = 3,
    jobs: Annotated[
        int | None, typer.Option(help="Parallel runs (default: one per core).", min=1)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the results.")] = None,
    records: Annotated[
        Path | None,
        typer.Option(help="Report these records again, without training; writes only to --out."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare schemes on the same data, seeds and budget.

    After a stop, the same command continues. Differences are tested over seeds.

    Examples:
        submodel compare rolling,static,random
        submodel compare rolling,static --budget bytes --amount 50MB --seeds 5
        submodel compare random,random:sampling=fixed,rolling:merge.rule=fill_in
        submodel compare --records results/compare-rounds --json
    JSON:
        command, budget, seeds: the command, the budget and the number of seeds
        ways: for each arm rounds by seed, bytes and FLOPs (means over seeds), accuracy and loss by
            seed, and behind, the contrast with the best arm; null for the best
        page: page with the table and the figure; null for --records without --out
    """
    from submodel.comparison.arms import parse_arms
    from submodel.comparison.plan import ComparisonScale, base_of, find_scale, plan_comparison
    from submodel.comparison.results import ComparisonResult, write_comparison

    if records is not None:
        result = ComparisonResult.read(records)
        if ways is not None:
            result = result.only([arm.text for arm in parse_arms(ways)])
        folder = None if out is None else make_folder(out)
        _show(result, folder and write_comparison(result, folder), as_json)
        return
    if ways is None:
        raise ConfigError("give the arms to compare, such as rolling,static,random")
    if config is not None and scale is not None:
        raise ConfigError("--scale: does not go with --config")
    setting = ComparisonScale(base_of(config)) if scale is None else find_scale(scale)
    if not setting.has_budget and budget is not BudgetKind.ROUNDS:
        raise ConfigError(
            f"--budget: arms of --scale {scale} train until curves are flat; costs are reported"
        )

    def base(way_settings: Sequence[str]) -> Config:
        return setting.base([*(settings or []), *way_settings])

    plan = plan_comparison(parse_arms(ways), base, budget, parse_budget(budget, amount), seeds)
    notes = talk(as_json)
    if setting.has_budget:
        notes.print(plan.budget)
    if budget is not BudgetKind.ROUNDS:
        notes.print(f"rounds: {plan.rounds()}")
    folder = make_folder(out or Path("runs") / f"compare-{base([]).name}")
    options = {
        "--config": config,
        "--scale": scale,
        "--budget": budget,
        "--amount": amount,
        "--seeds": seeds,
    }
    option_words = [
        word for key, value in options.items() if value is not None for word in (key, str(value))
    ]
    option_words += [word for text in settings or [] for word in ("--set", text)]
    command = shlex.join(["submodel", "compare", ways, *option_words])
    try:
        result = setting.run(plan, folder, jobs, notes, command)
    except Interruption as stop:
        notes.print(str(stop), soft_wrap=True)
        raise typer.Exit(130) from None
    _show(result, write_comparison(result, folder), as_json)


def _show(result: ComparisonResult, page: Path | None, as_json: bool) -> None:
    from submodel.comparison.results import comparison_table, plain_comparison, remarks

    if as_json:
        print_json({**plain_comparison(result), "page": page})
        return
    console.print(comparison_table(result))
    console.print(remarks(result))
    if page is not None:
        print(page)
