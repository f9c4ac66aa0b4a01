"""Comparing arms: everything is checked and counted first, then run, then reported."""

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
"""What all arms have in common: from ``key.path=value`` settings to a configuration."""


@dataclass(frozen=True)
class ComparisonPlan:
    """What will run: for every arm a configuration per seed, all of them checked."""

    runs: Sequence[ArmRuns]
    configs: Mapping[str, Sequence[Config]]  # by the slug of what is run
    budget: str  # in words

    def keep(
        self, records: Mapping[str, ArmRecord], folder: Path, budget: str, command: str
    ) -> ComparisonResult:
        """What it came to, by the records of all that was run, kept in a folder."""
        arms = [ArmResult(r.arm.text, r.arm.title, r.record(records)) for r in self.runs]
        result = ComparisonResult(arms, budget, command)
        result.write(folder)
        return result

    def rounds(self) -> str:
        """How many each arm has, in words."""
        parts = []
        for runs in self.runs:
            arm = runs.arm
            round_counts = [c.train.rounds for c in self.configs[runs.parts[0].slug]]
            several = "" if min(round_counts) == max(round_counts) else f" to {max(round_counts)}"
            parts.append(f"{arm.title}: {min(round_counts)}{several}")
        return "; ".join(parts)


def base_of(config: Config | Mapping[str, Any] | Path | str | None) -> Base:
    """A configuration, its plain values, its file, or the defaults, as what arms are put into."""
    if config is None or isinstance(config, str | Path):
        return partial(read, None if config is None else Path(config))
    plain = config.model_dump(exclude_none=True) if isinstance(config, Config) else dict(config)
    return lambda settings: parse(override(plain, settings))


def plan_comparison(
    arms: Sequence[Arm], base: Base, kind: BudgetKind, amount: int | None, seeds: int
) -> ComparisonPlan:
    """Prepare every run, so that whatever cannot run is said now, and find its rounds."""
    common = base([])
    if common.train.output_step is not None:
        raise ConfigError("train.output_step: no book holds what it costs; compare without it")
    if common.train.finish is not None and kind is not BudgetKind.ROUNDS:
        raise ConfigError("train.finish: counts from the last round, which a budget would move")
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
        budget = f"equal {kind.value}: what {first.title} takes for {rounds} rounds, {amount_text}"
    else:
        amounts = [amount] * seeds
        budget = f"equal {kind.value}: {si(amount, UNITS[kind])}"
    fitted_configs: dict[str, list[Config]] = {}
    for arm_runs in runs:
        fitted_configs |= _fit_to_budget(arm_runs, configs, setups, kind, amounts)
    return ComparisonPlan(runs, fitted_configs, budget)


def _by_seed(runs: ArmRuns, setups: Mapping[str, Sequence[Setup]]) -> list[list[Setup]]:
    """The setups of all runs that an arm has for a seed, seed by seed."""
    return [list(together) for together in zip(*(setups[p.slug] for p in runs.parts), strict=True)]


def _of_run(config: Config, arm: Arm, seed: int) -> Config:
    """One run: alone on its core, as others run beside it, unless the configuration says more."""
    engine = config.engine
    if engine.name == "auto":
        engine = engine.with_values(name="local")
    return config.model_copy(update={"name": arm.slug, "seed": seed, "engine": engine})


def _prepare_runs(
    arms: Sequence[Arm], configs: Mapping[str, Sequence[Config]], common: Config
) -> dict[str, list[Setup]]:
    """The setups of all runs, on one and the same dataset; raises with every arm's problems."""
    data = load_data(common)
    setups: dict[str, list[Setup]] = {}
    problems: list[str] = []
    for arm in arms:
        try:
            setups[arm.slug] = [prepare(config, data=data) for config in configs[arm.slug]]
        except ConfigError as error:
            problems += arm.blame(error).problems
        except SubmodelError as error:
            problems.append(f"way {arm.text!r}: {error}")
    refuse(problems)
    return setups


def _fit_to_budget(
    runs: ArmRuns,
    configs: Mapping[str, Sequence[Config]],
    setups: Mapping[str, Sequence[Setup]],
    kind: BudgetKind,
    amounts: Sequence[int],
) -> dict[str, list[Config]]:
    """The arm's runs, by slug, with as many rounds as their budgets buy all of them together."""
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
    """Run what is not finished yet, and keep the records."""
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
    """Compare ways to train as ``submodel compare`` does; called again, it goes on where it was.

    Args:
        ways: schemes, and settings that go with them, as the command takes them:
            ``"rolling,static"``, or a list, in which classes that can be imported may stand, too.
        config: what they share: a `submodel.Config`, a dictionary of its sections or a file.
        out: the folder for the runs, the records, a page and a figure.
        budget: what all may spend: ``rounds``, ``bytes`` or ``flops``.
        amount: how much of it, as ``"2GB"``; by default what the first arm takes.
        seeds: how many runs of each arm.
        jobs: how many runs at a time; by default as many as there are cores.

    >>> compare("rolling,sideways", out="never-made")
    Traceback (most recent call last):
    submodel.core.errors.ConfigError: way 'sideways': scheme.name: 'sideways' is not one of ...
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
                f"{key}: {name!r} has no path by which the processes of a comparison could import "
                "it; put it into a module"
                for key, name in given.items()
            ]
        )
    command = f"compare({', '.join(arm.text for arm in arms)})"
    result = run_plan(plan, Path(out), jobs, Console(quiet=True), command)
    write_comparison(result, Path(out))
    return result


RunComparison = Callable[[ComparisonPlan, Path, int | None, Console, str], ComparisonResult]
"""Runs a plan: its folder, the number of jobs, the console for progress and the command."""


@dataclass(frozen=True)
class ComparisonScale:
    """A setting in which arms are compared."""

    base: Base  # what all arms share
    run: RunComparison = run_plan  # trains what is not finished yet and keeps the records
    # whether all arms get the same budget; otherwise `run` decides when each ends
    has_budget: bool = True


def find_scale(name: str) -> ComparisonScale:
    """Return the scale of a name; raises `ConfigError` where no installed package offers it."""
    offered = extensions(SCALES)
    if name not in offered:
        names = f"is not one of {', '.join(offered)}" if offered else FROM_LAB
        raise ConfigError(f"--scale: {name!r} {names}")
    scale: ComparisonScale = load_extension(offered[name])
    return scale
