"""The plan of converged runs: order, cost and statistical power."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median

from submodel.comparison import LEAST_SEEDS, LEVEL, ArmRecord, Runner, put_together, spread
from submodel.core import SubmodelError, needs_extra
from submodel.drawing import markdown_table
from submodel_lab.converged.arms import SETTINGS, ConvergedArm, RunSpec
from submodel_lab.converged.converge import (
    Outlook,
    RateTable,
    converge,
    missing_seeds,
    read_earlier,
    read_rates,
    seconds_left,
)
from submodel_lab.converged.questions import OpenQuestion

POWER = 0.8
"""Required probability of finding an existing difference."""
_MOST_SEEDS = 1000
ONE_POINT = 0.01
COST_HEADINGS = (
    *("question", "setting", "arms", "seeds", "runs", "rounds each", "core-seconds a round"),
    *("core-hours: rates", "with runs, at least", "at most"),
)
POWER_HEADINGS = (
    *("setting", "seeds", "deviation of a difference", "seeds for one point"),
    *("chance to find one point", "found four times in five"),
)


def power_of_test(seeds: int, difference: float, deviation: float, tests: int = 1) -> float:
    """Return the power of a paired t-test for a difference of this size.

    ``deviation`` is the standard deviation of differences over seeds. With several tests, the power
    is that of Holm's first test.

    >>> round(power_of_test(3, 0.01, 0.01), 2), round(power_of_test(10, 0.01, 0.01), 2)
    (0.18, 0.8)
    """
    with needs_extra("server", "a test"):
        from scipy import stats

    if seeds < 2:
        return 0.0
    shift = math.sqrt(seeds) * abs(difference) / deviation
    limit = float(stats.t.ppf(1 - LEVEL / tests / 2, seeds - 1))
    above = float(stats.nct.sf(limit, seeds - 1, shift))
    below = float(stats.nct.cdf(-limit, seeds - 1, shift))
    return above + (below if math.isfinite(below) else 0.0)


def seeds_needed(difference: float, deviation: float, tests: int = 1) -> int:
    """Return the number of seeds that find a difference with probability `POWER`.

    >>> seeds_needed(0.01, 0.007), seeds_needed(0.01, 0.023), seeds_needed(0.01, 0.007, tests=4)
    (7, 44, 9)
    """
    for seeds in range(LEAST_SEEDS, _MOST_SEEDS):
        if power_of_test(seeds, difference, deviation, tests) >= POWER:
            return seeds
    return _MOST_SEEDS


def typical_deviation(records: Sequence[ArmRecord], measure: str = "accuracy") -> float | None:
    """Return the median over pairs of arms of the deviation of their difference over seeds.

    Returns:
        The median, or None if no pair has enough seeds in common.
    """
    deviations = [
        spread(differences)[1]
        for one, other in combinations(records, 2)
        if len(differences := one.ahead_of(other, measure)) >= LEAST_SEEDS
    ]
    return median(deviations) if deviations else None


def _blocks(questions: Sequence[OpenQuestion]) -> list[list[ConvergedArm]]:
    """List the arms of each question that no earlier question has."""
    earlier: set[ConvergedArm] = set()
    blocks = []
    for question in questions:
        block = [arm for arm in question.arms if arm not in earlier]
        earlier.update(block)
        blocks.append(block)
    return blocks


def specs_of(block: Sequence[ConvergedArm], seeds: int | None = None) -> list[RunSpec]:
    """List the runs of some arms, with a number of seeds or the seeds of each setting."""
    return [spec for arm in block for spec in arm.specs(seeds)]


def run_agenda(
    runner: Runner, questions: Sequence[OpenQuestion], records: Path, seeds: int | None = None
) -> None:
    """Run all arms of the questions, question by question, cheaper settings first.

    In a setting, rates are tried first, then runs go seed by seed, so that a stopped campaign has
    preliminary answers.
    """
    blocks = [specs_of(block, seeds) for block in _blocks(questions)]
    seconds = [seconds_left(block, records) for block in blocks]
    outlook = Outlook(sum(seconds), runner.console)
    for place, block in enumerate(blocks):
        if not seconds[place]:
            continue
        hours = sum(seconds[place:]) / 3600
        runner.console.print(
            f"part {place + 1} of {len(blocks)}; from its beginning to the end of the plan at "
            f"least {hours:.1f} core-hours: {hours / runner.parallel:.1f} hours with "
            f"{runner.parallel} at a time"
        )
        for group in _by_effort(block):
            converge(runner, group, records, outlook)


def _by_effort(block: Sequence[RunSpec]) -> list[list[RunSpec]]:
    """Group run specs by setting, cheap settings first."""
    groups: dict[str, list[RunSpec]] = {}
    for spec in block:
        groups.setdefault(spec.group, []).append(spec)
    return sorted(groups.values(), key=lambda group: sum(c.least_seconds for c in group))


def words_of_rest(questions: Sequence[OpenQuestion], records: Path, seeds: int | None) -> str:
    """Describe the runs that are missing in some records."""
    specs = [c for block in _blocks(questions) for c in specs_of(block, seeds)]
    missing = sum(len(missing_seeds(c, read_earlier(c, records))) for c in specs)
    hours = seconds_left(specs, records) / 3600
    return f"Beyond the records in {records}: {missing} runs, at least {hours:.1f} core-hours."


def read_results(
    questions: Sequence[OpenQuestion], records: Path
) -> tuple[dict[ConvergedArm, ArmRecord], dict[ConvergedArm, list[RateTable]]]:
    """Read the records of the questions' arms and their tables of learning rates.

    Raises `SubmodelError` if there are none.
    """
    results, tables = read_available(questions, records)
    if not results:
        raise SubmodelError(f"{records}: no records of these questions")
    return results, tables


def read_available(
    questions: Sequence[OpenQuestion], records: Path
) -> tuple[dict[ConvergedArm, ArmRecord], dict[ConvergedArm, list[RateTable]]]:
    """Read records like `read_results`, but accept that there are none."""
    results: dict[ConvergedArm, ArmRecord] = {}
    tables: dict[ConvergedArm, list[RateTable]] = {}
    for arm in (arm for block in _blocks(questions) for arm in block):
        slugs = list(arm.members.values()) or [arm.slug]
        tables[arm] = [t for slug in slugs if (t := read_rates(records, slug)) is not None]
        if not all((records / f"{slug}.json").is_file() for slug in slugs):
            continue
        parts = [ArmRecord.read(records / f"{slug}.json") for slug in slugs]
        if arm.members:
            whole = put_together(arm.slug, dict(zip(arm.members, parts, strict=True)))
            if whole.runs:
                results[arm] = whole
        else:
            results[arm] = parts[0]
    return results, tables


def spread_over_seeds(questions: Sequence[OpenQuestion], records: Path) -> dict[str, float]:
    """Return the recorded deviation of differences over seeds, by setting."""
    by_setting: dict[str, list[ArmRecord]] = {}
    for arm, record in read_available(questions, records)[0].items():
        by_setting.setdefault(arm.setting, []).append(record)
    deviations = {setting: typical_deviation(methods) for setting, methods in by_setting.items()}
    return {setting: value for setting, value in deviations.items() if value is not None}


def budget_rows(questions: Sequence[OpenQuestion], seeds: int | None = None) -> list[list[str]]:
    """Tabulate the runs and cost that each question adds, setting by setting."""
    rows, totals, runs = [], [0.0, 0.0, 0.0], 0
    for question, block in zip(questions, _blocks(questions), strict=True):
        for name in dict.fromkeys(arm.setting for arm in block):
            setting = SETTINGS[name]
            group = [arm for arm in block if arm.setting == name]
            specs = specs_of(group, seeds)
            hours = _hours(specs)
            totals = [total + one for total, one in zip(totals, hours, strict=True)]
            count = sum(len(spec.seeds) for spec in specs)
            runs += count
            least = min(spec.course.shortest for spec in specs)
            most = max(spec.course.longest for spec in specs)
            rows.append(
                [
                    question.name,
                    setting.title,
                    ", ".join(arm.method for arm in group),
                    f"{seeds or setting.seeds}",
                    f"{count}",
                    f"{least}" if least == most else f"{least} to {most}",
                    f"{setting.seconds:g}",
                    *(f"{h:.1f}" for h in hours),
                ]
            )
    return [*rows, ["all", "", "", "", f"{runs}", "", "", *(f"{t:.1f}" for t in totals)]]


def _hours(specs: Sequence[RunSpec]) -> list[float]:
    rates = sum(c.tuning_seconds for c in specs)
    least = sum(c.least_seconds for c in specs)
    most = sum(c.most_seconds for c in specs)
    return [rates / 3600, (rates + least) / 3600, (rates + most) / 3600]


def power_rows(
    questions: Sequence[OpenQuestion], deviations: Mapping[str, float], seeds: int | None = None
) -> list[list[str]]:
    """Tabulate the statistical power of every setting.

    Deviations over seeds are by setting; the default is the deviation stated in the setting.
    """
    rows = []
    for name in dict.fromkeys(c.setting for block in _blocks(questions) for c in block):
        setting, count = SETTINGS[name], seeds or SETTINGS[name].seeds
        deviation = deviations.get(name, setting.deviation)
        row = [setting.title, f"{count}"]
        if deviation is None:
            rows.append([*row, "no records yet", "", "", ""])
            continue
        sizes = (size / 1000 for size in range(1, 1001))
        least_size = next((s for s in sizes if power_of_test(count, s, deviation) >= POWER), 1.0)
        rows.append(
            [
                *row,
                f"{100 * deviation:.2f} points",
                f"{seeds_needed(ONE_POINT, deviation)}",
                f"{100 * power_of_test(count, ONE_POINT, deviation):.0f} %",
                f"{100 * least_size:.1f} points",
            ]
        )
    return rows


def plan_lines(
    questions: Sequence[OpenQuestion], deviations: Mapping[str, float], seeds: int | None = None
) -> list[str]:
    """Format the plan as Markdown: runs, cost and statistical power."""
    return [
        *(f"- {q.name}: {q.title}, {len(q.contrasts)} contrasts" for q in questions),
        "",
        *markdown_table(COST_HEADINGS, budget_rows(questions, seeds)),
        "",
        *markdown_table(POWER_HEADINGS, power_rows(questions, deviations, seeds)),
        "",
    ]
