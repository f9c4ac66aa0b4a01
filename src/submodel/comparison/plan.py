"""Comparison of arms: check and count everything, run it, report the result."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from submodel.algorithm.types import Setup
from submodel.comparison.arms import Arm, ArmRuns, describe_duplicates, parse_arms, runs_of
from submodel.comparison.budgets import (
    UNITS,
    BudgetKind,
    cost_of,
    parse_budget,
    rounds_within,
    with_rounds,
)
from submodel.comparison.records import ArmRecord
from submodel.comparison.results import ArmResult, ComparisonResult, write_comparison
from submodel.comparison.runner import Runner
from submodel.config import Config, given_names, override, parse, read
from submodel.config.parts import load_data
from submodel.config.setup import prepare
from submodel.core.amounts import si
from submodel.core.errors import ConfigError, SubmodelError, refuse
from submodel.core.extensions import FROM_LAB, SCALES, extensions, load_extension
from submodel.schemes.builtin_schemes import SCHEMES

Base = Callable[[Sequence[str]], Config]
"""A function from ``key.path=value`` settings to a configuration; it is common to all arms."""


@dataclass(frozen=True)
class ComparisonPlan:
    """Plan of a comparison: for every arm a checked configuration per seed."""

    runs: Sequence[ArmRuns]
    configs: Mapping[str, Sequence[Config]]  # by the slug of the arm that is run
    budget: str  # in words

    def keep(
        self, records: Mapping[str, ArmRecord], folder: Path, budget: str, command: str
    ) -> ComparisonResult:
        """Make the result from the records of all runs, and write it to a folder."""
        arms = [ArmResult(r.arm.text, r.arm.title, r.record(records)) for r in self.runs]
        result = ComparisonResult(arms, budget, command)
        result.write(folder)
        return result

    def rounds(self) -> str:
        """Describe the number of rounds of each arm."""
        parts = []
        for runs in self.runs:
            arm = runs.arm
            round_counts = [c.train.rounds for c in self.configs[runs.parts[0].slug]]
            several = "" if min(round_counts) == max(round_counts) else f" to {max(round_counts)}"
            parts.append(f"{arm.title}: {min(round_counts)}{several}")
        return "; ".join(parts)


def base_of(config: Config | Mapping[str, Any] | Path | str | None) -> Base:
    """Make the base of a comparison from a configuration, plain values, a file, or the defaults."""
    if config is None or isinstance(config, str | Path):
        return partial(read, None if config is None else Path(config))
    plain = config.model_dump(exclude_none=True) if isinstance(config, Config) else dict(config)
    return lambda settings: parse(override(plain, settings))


def plan_comparison(
    arms: Sequence[Arm], base: Base, kind: BudgetKind, amount: int | None, seeds: int
) -> ComparisonPlan:
    """Prepare every run, so that problems are reported now, and count its rounds."""
    common = base([])
    if common.train.output_step is not None:
        raise ConfigError("train.output_step: its cost is not counted; compare without it")
    if common.train.finish is not None and kind is not BudgetKind.ROUNDS:
        raise ConfigError("train.finish: counts from the last round, which a budget would change")
    runs = [runs_of(arm, base) for arm in arms]
    parts = [part for arm_runs in runs for part in arm_runs.parts]
    part_configs = [part.config(base) for part in parts]
    refuse(describe_duplicates(parts, part_configs))
    configs = {
        part.slug: [_of_run(config, part, seed) for seed in range(common.seed, common.seed + seeds)]
        for part, config in zip(parts, part_configs, strict=True)
    }
    setups = _prepare_runs(parts, configs, common)
    if kind is BudgetKind.ROUNDS:
        return ComparisonPlan(runs, configs, f"{common.train.rounds} rounds each")
    first, rounds = arms[0], common.train.rounds
    if amount is None:
        together = _by_seed(runs[0], setups)
        amounts = [cost_of(some_setups, kind, rounds) for some_setups in together]
        least, most = (si(cost, UNITS[kind]) for cost in (min(amounts), max(amounts)))
        amount_text = least if least == most else f"{least} to {most} by seed"
        budget = f"equal {kind.value}: as {first.title} takes for {rounds} rounds, {amount_text}"
    else:
        amounts = [amount] * seeds
        budget = f"equal {kind.value}: {si(amount, UNITS[kind])}"
    fitted_configs: dict[str, list[Config]] = {}
    for arm_runs in runs:
        fitted_configs |= _fit_to_budget(arm_runs, configs, setups, kind, amounts)
    return ComparisonPlan(runs, fitted_configs, budget)


def _by_seed(runs: ArmRuns, setups: Mapping[str, Sequence[Setup]]) -> list[list[Setup]]:
    """Group the setups of all runs of an arm by seed."""
    return [list(together) for together in zip(*(setups[p.slug] for p in runs.parts), strict=True)]


def _of_run(config: Config, arm: Arm, seed: int) -> Config:
    """Configure one run: in one process, as others run beside it, unless configured otherwise."""
    engine = config.engine
    if engine.name == "auto":
        engine = engine.with_values(name="local")
    return config.model_copy(update={"name": arm.slug, "seed": seed, "engine": engine})


def _prepare_runs(
    arms: Sequence[Arm], configs: Mapping[str, Sequence[Config]], common: Config
) -> dict[str, list[Setup]]:
    """Prepare the setups of all runs on one dataset; raise with the problems of every arm."""
    data = load_data(common)
    setups: dict[str, list[Setup]] = {}
    problems: list[str] = []
    for arm in arms:
        try:
            setups[arm.slug] = [prepare(config, data=data) for config in configs[arm.slug]]
        except ConfigError as error:
            problems += arm.blame(error).problems
        except SubmodelError as error:
            problems.append(f"arm {arm.text!r}: {error}")
    refuse(problems)
    return setups


def _fit_to_budget(
    runs: ArmRuns,
    configs: Mapping[str, Sequence[Config]],
    setups: Mapping[str, Sequence[Setup]],
    kind: BudgetKind,
    amounts: Sequence[int],
) -> dict[str, list[Config]]:
    """Set the rounds of an arm's runs to the number that the budget buys for all of them."""
    try:
        rounds = [
            rounds_within(some_setups, kind, amount)
            for some_setups, amount in zip(_by_seed(runs, setups), amounts, strict=True)
        ]
    except ConfigError as error:
        raise runs.arm.blame(error) from None
    return {
        part.slug: [with_rounds(c, n) for c, n in zip(configs[part.slug], rounds, strict=True)]
        for part in runs.parts
    }


def run_plan(
    plan: ComparisonPlan, out: Path, jobs: int | None, console: Console, command: str
) -> ComparisonResult:
    """Run everything that is not finished yet, and keep the records."""
    runner = Runner(out, jobs or os.cpu_count() or 1, console)
    records = dict(zip(plan.configs, runner.run(plan.configs), strict=True))
    return plan.keep(records, out / "records", plan.budget, command)


def compare(
    ways: str | Sequence[Any],
    config: Config | Mapping[str, Any] | Path | str | None = None,
    *,
    out: str | Path,
    budget: str = "rounds",
    amount: str | None = None,
    seeds: int = 3,
    jobs: int | None = None,
) -> ComparisonResult:
    """Compare arms as ``submodel compare`` does; a repeated call continues where it stopped.

    Args:
        ways: the arms, schemes with optional settings in the syntax of the command, as
            ``"rolling,static"``, or a list, which may also contain importable classes.
        config: the common configuration: a `submodel.Config`, a dictionary of its sections or the
            path of a file.
        out: folder for the runs, the records, a page and a figure.
        budget: quantity that is equal for all arms: ``rounds``, ``bytes`` or ``flops``.
        amount: amount of the budget, as ``"2GB"``; by default the amount that the first arm takes.
        seeds: number of seeds per arm.
        jobs: number of concurrent runs; by default the number of cores.

    >>> compare("rolling,sideways", out="never-made")
    Traceback (most recent call last):
    submodel.core.errors.ConfigError: arm 'sideways': scheme.name: 'sideways' is not one of ...
    """
    if budget not in list(BudgetKind):
        raise ConfigError(f"budget: {budget!r} is not one of {', '.join(BudgetKind)}")
    if seeds < 1:
        raise ConfigError(f"seeds: {seeds} is less than 1")
    kind = BudgetKind(budget)
    arms = parse_arms(ways if isinstance(ways, str) else [SCHEMES.named(way) for way in ways])
    plan = plan_comparison(arms, base_of(config), kind, parse_budget(kind, amount), seeds)
    given: dict[str, str] = {}
    for configs in plan.configs.values():
        given |= given_names(configs[0])
    if given:
        raise ConfigError(
            [
                f"{key}: the processes of a comparison cannot import {name!r}; define it in a "
                "module"
                for key, name in given.items()
            ]
        )
    command = f"compare({', '.join(arm.text for arm in arms)})"
    result = run_plan(plan, Path(out), jobs, Console(quiet=True), command)
    write_comparison(result, Path(out))
    return result


RunComparison = Callable[[ComparisonPlan, Path, int | None, Console, str], ComparisonResult]
"""A function that runs a plan, given its folder, number of jobs, console and command."""


@dataclass(frozen=True)
class ComparisonScale:
    """A predefined setting of comparisons."""

    base: Base  # common configuration of all arms
    run: RunComparison = run_plan
    # whether all arms get the same budget; otherwise `run` decides when each ends
    has_budget: bool = True


def find_scale(name: str) -> ComparisonScale:
    """Return the scale of a name; raise `ConfigError` if no installed package provides it."""
    scales = extensions(SCALES)
    if name not in scales:
        names = f"is not one of {', '.join(scales)}" if scales else FROM_LAB
        raise ConfigError(f"--scale: {name!r} {names}")
    scale: ComparisonScale = load_extension(scales[name])
    return scale
