"""Advice for a fleet from what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from submodel.cli import AsJson, SetOptions, config_files, console, print_json
from submodel.comparison import BudgetKind, parse_budget
from submodel.core import ConfigError, parse_amount
from submodel_lab.advice.fleet import Case, Goal, case_of, parse_fleet

if TYPE_CHECKING:
    from submodel.config import Config


def advise_command(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG.toml]",
            help="Whose clients, model and data it is for.",
            autocompletion=config_files,
        ),
    ] = None,
    settings: SetOptions = None,
    fleet: Annotated[
        str | None, typer.Option(help="Or capacities with their shares, as 1:0.2,1/4:0.8.")
    ] = None,
    goal: Annotated[Goal, typer.Option(help="What is to be good.")] = Goal.FULL_MODEL,
    budget: Annotated[
        BudgetKind | None,
        typer.Option(help="What is scarce; default: nothing, runs go on until they are flat."),
    ] = None,
    amount: Annotated[
        str | None,
        typer.Option(help="Of it: rounds (default: train.rounds of CONFIG.toml), or as 2GB."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say which scheme suits a fleet, by which records, how surely.

    And where no record reaches: then nothing is advised.

    Examples:
        submodel advise --fleet 1:0.2,1/4:0.8
        submodel advise --fleet 1/2:0.5,1/8:0.5 --goal devices
        submodel advise examples/mnist.toml --budget bytes --amount 2GB --json
    JSON:
        fleet, goal, budget, rounds: what was asked
        measure: what schemes are compared by
        any_scheme: whether all devices hold all, and any scheme will do
        recommended, settings, afterwards: the way, its keys, and the command that follows training
        learning_rates: by setting, what that way was tuned to
        beats, not_told_apart: ways that it is better than, and ways that it may not be
        sureness, limits: how sure that is, and where records do not reach
        evidence: every contrast with its difference, interval, p-value and verdict
    """
    from submodel.config import read
    from submodel_lab.advice.evidence import read_evidence
    from submodel_lab.advice.recommend import advise
    from submodel_lab.advice.wording import (
        answer_lines,
        evidence_tables,
        plain_advice,
        question_words,
    )

    if (fleet is None) == (config is None and not settings):
        raise ConfigError("give a configuration, or --fleet 1:0.2,1/4:0.8, and not both")
    if amount is not None and budget is None:
        raise ConfigError("--amount: say of what, as --budget rounds")
    if fleet is not None:
        case = Case(parse_fleet(fleet), goal, budget, _rounds_of(None, budget, amount))
    else:
        plan = read(config, settings or [])
        case = case_of(plan, goal, budget, _rounds_of(plan, budget, amount))
    evidence = read_evidence()
    advice = advise(evidence, case)
    if as_json:
        print_json(plain_advice(evidence, advice))
        return
    console.print(question_words(case))
    console.print()
    console.print("\n".join(answer_lines(evidence, advice)))
    for table in evidence_tables(advice):
        console.print()
        console.print(table)


def _rounds_of(config: Config | None, budget: BudgetKind | None, amount: str | None) -> int | None:
    """How many rounds a budget is, where that can be told."""
    if budget is BudgetKind.ROUNDS:
        if amount is not None:
            return parse_amount(amount)
        if config is None:
            raise ConfigError("--budget rounds: give their number as --amount")
        return config.train.rounds
    if budget is None or amount is None:
        return None
    if config is None:
        raise ConfigError(
            f"--amount: how many rounds these {budget.value} are follows from a CONFIG.toml"
        )
    from submodel.comparison import rounds_within
    from submodel.config import prepare

    number = parse_budget(budget, amount)
    assert number is not None
    return rounds_within(prepare(config), budget, number)
