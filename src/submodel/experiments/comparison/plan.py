"""Comparing ways: everything is checked and counted first, then run, then reported."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from submodel.algorithm.types import Setup
from submodel.amounts import si
from submodel.config import Config, override, parse, read
from submodel.errors import ConfigError, SubmodelError
from submodel.experiments.budgets import (
    UNITS,
    BudgetKind,
    cost_of,
    parse_budget,
    rounds_within,
    with_rounds,
)
from submodel.experiments.comparison import report
from submodel.experiments.comparison.findings import Findings, WayRecord
from submodel.experiments.comparison.ways import Way, describe_duplicates, parse_ways
from submodel.experiments.paper.variants import DATASETS, Scale, Variant
from submodel.experiments.runner import Runner
from submodel.prepare.parts import load_data
from submodel.prepare.setup import prepare

Base = Callable[[Sequence[str]], Config]
"""What all ways have in common: from ``key.path=value`` settings to a configuration."""


@dataclass(frozen=True)
class ComparisonPlan:
    """What will run: for every way a configuration per seed, all of them checked."""

    ways: Sequence[Way]
    configs: Mapping[str, Sequence[Config]]  # by the way's slug
    budget: str  # in words

    def rounds(self) -> str:
        """How many each way has, in words."""
        parts = []
        for way in self.ways:
            round_counts = [config.train.rounds for config in self.configs[way.slug]]
            several = "" if min(round_counts) == max(round_counts) else f" to {max(round_counts)}"
            parts.append(f"{way.title}: {min(round_counts)}{several}")
        return "; ".join(parts)


def base_of(config: Config | Mapping[str, Any] | Path | str | None) -> Base:
    """A configuration, its plain values, its file, or the defaults, as what ways are put into."""
    if config is None or isinstance(config, str | Path):
        return partial(read, None if config is None else Path(config))
    plain = config.model_dump(exclude_none=True) if isinstance(config, Config) else dict(config)
    return lambda settings: parse(override(plain, settings))


def scale_base(scale: Scale) -> Base:
    """The setting of `reproduce` at a scale: low heterogeneity, capacities 1 to 1/16.

    >>> scale_base(Scale.PAPER)(["scheme.name=static"]).clients.capacities
    [1.0, 0.5, 0.25, 0.125, 0.0625]
    """
    settings = Variant(DATASETS[scale][0], "low", "rolling").settings(scale, seed=0)
    return base_of({**settings, "name": scale.value})


def plan_comparison(
    ways: Sequence[Way], base: Base, kind: BudgetKind, amount: int | None, seeds: int
) -> ComparisonPlan:
    """Prepare every run, so that whatever cannot run is said now, and find its rounds."""
    common = base([])
    if common.train.output_step is not None:
        raise ConfigError(["train.output_step: no book holds what it costs; compare without it"])
    way_configs = [way.config(base) for way in ways]
    if problems := describe_duplicates(ways, way_configs):
        raise ConfigError(problems)
    configs = {
        way.slug: [_of_run(config, way, seed) for seed in range(common.seed, common.seed + seeds)]
        for way, config in zip(ways, way_configs, strict=True)
    }
    setups = _prepare_runs(ways, configs, common)
    if kind is BudgetKind.ROUNDS:
        return ComparisonPlan(ways, configs, f"{common.train.rounds} rounds each")
    first, rounds = ways[0], common.train.rounds
    if amount is None:
        amounts = [cost_of(setup, kind, rounds) for setup in setups[first.slug]]
        least, most = (si(cost, UNITS[kind]) for cost in (min(amounts), max(amounts)))
        amount_text = least if least == most else f"{least} to {most} by seed"
        budget = f"equal {kind.value}: what {first.title} takes for {rounds} rounds, {amount_text}"
    else:
        amounts = [amount] * seeds
        budget = f"equal {kind.value}: {si(amount, UNITS[kind])}"
    fitted_configs = {way.slug: _fit_to_budget(way, configs, setups, kind, amounts) for way in ways}
    return ComparisonPlan(ways, fitted_configs, budget)


def _of_run(config: Config, way: Way, seed: int) -> Config:
    """One run: alone on its core, as others run beside it, unless the configuration says more."""
    engine = config.engine
    if engine.name == "auto":
        engine = engine.with_values(name="local")
    return config.model_copy(update={"name": way.slug, "seed": seed, "engine": engine})


def _prepare_runs(
    ways: Sequence[Way], configs: Mapping[str, Sequence[Config]], common: Config
) -> dict[str, list[Setup]]:
    """The setups of all runs, on one and the same dataset; raises with every way's problems."""
    data = load_data(common)
    setups: dict[str, list[Setup]] = {}
    problems: list[str] = []
    for way in ways:
        try:
            setups[way.slug] = [prepare(config, data=data) for config in configs[way.slug]]
        except ConfigError as error:
            problems += way.blame(error).problems
        except SubmodelError as error:
            problems.append(f"way {way.text!r}: {error}")
    if problems:
        raise ConfigError(problems)
    return setups


def _fit_to_budget(
    way: Way,
    configs: Mapping[str, Sequence[Config]],
    setups: Mapping[str, Sequence[Setup]],
    kind: BudgetKind,
    amounts: Sequence[int],
) -> list[Config]:
    """The way's runs with as many rounds as their budgets buy."""
    try:
        return [
            with_rounds(config, rounds_within(setup, kind, amount))
            for config, setup, amount in zip(
                configs[way.slug], setups[way.slug], amounts, strict=True
            )
        ]
    except ConfigError as error:
        raise way.blame(error) from None


def run_plan(
    plan: ComparisonPlan, out: Path, jobs: int | None, console: Console, command: str
) -> Findings:
    """Run what is not finished yet, and keep the records."""
    runner = Runner(out, jobs or os.cpu_count() or 1, console)
    records = runner.run(plan.configs)
    ways = [WayRecord(w.text, w.title, r) for w, r in zip(plan.ways, records, strict=True)]
    findings = Findings(ways, plan.budget, command)
    findings.write(out / "records")
    return findings


def compare(
    ways: str | Sequence[str],
    config: Config | Mapping[str, Any] | Path | str | None = None,
    *,
    out: str | Path,
    budget: str = "rounds",
    amount: str | None = None,
    seeds: int = 3,
    jobs: int | None = None,
) -> Findings:
    """Compare ways to train as ``submodel compare`` does; called again, it goes on where it was.

    Args:
        ways: schemes, and settings that go with them, as the command takes them:
            ``"rolling,static"``, or a list.
        config: what they share: a `submodel.Config`, a dictionary of its sections or a file.
        out: the folder for the runs, the records, a page and a figure.
        budget: what all may spend: ``rounds``, ``bytes`` or ``flops``.
        amount: how much of it, as ``"2GB"``; by default what the first way takes.
        seeds: how many runs of each way.
        jobs: how many runs at a time; by default as many as there are cores.

    >>> compare("rolling,sideways", out="never-made")
    Traceback (most recent call last):
    submodel.errors.ConfigError: way 'sideways': scheme.name: 'sideways' is not one of ...
    """
    if budget not in list(BudgetKind):
        raise ConfigError([f"budget: {budget!r} is not one of {', '.join(BudgetKind)}"])
    if seeds < 1:
        raise ConfigError([f"seeds: {seeds} is less than 1"])
    kind = BudgetKind(budget)
    parsed_ways = parse_ways(ways)
    plan = plan_comparison(parsed_ways, base_of(config), kind, parse_budget(kind, amount), seeds)
    command = f"compare({', '.join(way.text for way in parsed_ways)})"
    findings = run_plan(plan, Path(out), jobs, Console(quiet=True), command)
    report.write_comparison(findings, Path(out))
    return findings
