"""Comparing ways to train under one budget."""

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

if TYPE_CHECKING:  # what needs PyTorch is imported where it is used
    from submodel.comparison.results import ComparisonResult
    from submodel.config import Config


def compare_command(
    ways: Annotated[
        str | None,
        typer.Argument(
            metavar="WAY[,WAY...]",
            help="As rolling,random:sampling=fixed,rolling:merge.rule=fill_in: schemes with what "
            "else they set; mine:Mine: a class of mine.py; exclusive: every width by those who can "
            "hold it.",
            autocompletion=completion.ways,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG.toml",
            help="What all have in common; default: digits.",
            autocompletion=completion.config_files,
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="[smoke|small|converged|paper]",
            help="Or the setting of reproduce at this scale.",
        ),
    ] = None,
    settings: SetOptions = None,
    budget: Annotated[
        BudgetKind, typer.Option(help="What every way gets the same amount of.")
    ] = BudgetKind.ROUNDS,
    amount: Annotated[
        str | None,
        typer.Option(help="As 2GB or 1e12; default: what the first way takes for train.rounds."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each way.", min=1)] = 3,
    jobs: Annotated[
        int | None, typer.Option(help="Runs at a time (default: one per core).", min=1)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where everything goes.")] = None,
    records: Annotated[
        Path | None,
        typer.Option(
            help="Tell again what these records say; trains nothing, and writes only to --out."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare schemes on the same data, seeds and budget.

    The same command goes on where it was stopped. Differences are tested over seeds.

    Examples:
        submodel compare rolling,static,random
        submodel compare rolling,static --budget bytes --amount 50MB --seeds 5
        submodel compare random,random:sampling=fixed,rolling:merge.rule=fill_in
        submodel compare --records results/compare-rounds --json
    JSON:
        command, budget, seeds: what was compared, and under which budget
        ways: each with its rounds by seed, bytes and FLOPs (means over seeds), accuracy and loss
            by seed, and behind, how it stands to the best; null of the best
        page: the page with the table and the figure; null of --records without --out
    """
    from submodel.comparison.arms import parse_arms
    from submodel.comparison.plan import ComparisonScale, base_of, find_scale, plan_comparison
    from submodel.comparison.results import ComparisonResult, write_comparison

    if records is not None:
        findings = ComparisonResult.read(records)
        if ways is not None:
            findings = findings.only([way.text for way in parse_arms(ways)])
        folder = None if out is None else make_folder(out)
        _show(findings, folder and write_comparison(findings, folder), as_json)
        return
    if ways is None:
        raise ConfigError("give the ways to compare, as rolling,static,random")
    if config is not None and scale is not None:
        raise ConfigError("--scale: give a configuration or a scale, not both")
    setting = ComparisonScale(base_of(config)) if scale is None else find_scale(scale)
    if not setting.has_budget and budget is not BudgetKind.ROUNDS:
        raise ConfigError(
            f"--budget: ways of --scale {scale} run until they are flat; their costs are told"
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
        findings = setting.run(plan, folder, jobs, notes, command)
    except Interruption as stop:
        notes.print(str(stop), soft_wrap=True)
        raise typer.Exit(130) from None
    _show(findings, write_comparison(findings, folder), as_json)


def _show(findings: ComparisonResult, page: Path | None, as_json: bool) -> None:
    from submodel.comparison.results import comparison_table, plain_comparison, remarks

    if as_json:
        print_json({**plain_comparison(findings), "page": page})
        return
    console.print(comparison_table(findings))
    console.print(remarks(findings))
    if page is not None:
        print(page)
