"""The command `submodel advise`: recommend a scheme for a fleet from recorded measurements."""

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
            help="Configuration whose clients, model and data the advice is for.",
            autocompletion=config_files,
        ),
    ] = None,
    settings: SetOptions = None,
    fleet: Annotated[
        str | None,
        typer.Option(help="Capacities with their shares instead, such as 1:0.2,1/4:0.8."),
    ] = None,
    goal: Annotated[Goal, typer.Option(help="Which models should be good.")] = Goal.FULL_MODEL,
    budget: Annotated[
        BudgetKind | None,
        typer.Option(help="Scarce resource (default: none; runs continue until they are flat)."),
    ] = None,
    amount: Annotated[
        str | None,
        typer.Option(
            help="Size of the budget, such as 2GB (default: train.rounds of CONFIG.toml)."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recommend a scheme for a fleet, with the records behind it and their uncertainty.

    Nothing is recommended where no record is near enough to the fleet.

    Examples:
        submodel advise --fleet 1:0.2,1/4:0.8
        submodel advise --fleet 1/2:0.5,1/8:0.5 --goal devices
        submodel advise examples/mnist.toml --budget bytes --amount 2GB --json
    JSON:
        fleet, goal, budget, rounds: the question
        measure: the measure by which schemes are compared
        any_scheme: whether all devices hold the whole model, so that any scheme will do
        recommended, settings, afterwards: the method, its keys, and a command to run after training
        learning_rates: by setting, the tuned learning rate of that method
        beats, not_told_apart: methods that are worse, and methods with no known difference
        sureness, limits: the uncertainty of the answer, and the cases without records
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
        raise ConfigError("--amount: needs the kind of budget, such as --budget rounds")
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
    """Return the number of rounds of a budget, or None if it is unknown."""
    if budget is BudgetKind.ROUNDS:
        if amount is not None:
            return parse_amount(amount)
        if config is None:
            raise ConfigError("--budget rounds: give the number of rounds as --amount")
        return config.train.rounds
    if budget is None or amount is None:
        return None
    if config is None:
        raise ConfigError(f"--amount: to convert {budget.value} to rounds, give a CONFIG.toml")
    from submodel.comparison import rounds_within
    from submodel.config import prepare

    number = parse_budget(budget, amount)
    assert number is not None
    return rounds_within(prepare(config), budget, number)
