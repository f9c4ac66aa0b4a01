"""The whole plan: what is run for some questions, in which order, what it takes and can show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median

from submodel.comparison import LEAST_SEEDS, LEVEL, ArmRecord, Runner, put_together, spread
from submodel.core import SubmodelError, needs_extra
from submodel.drawing import markdown_table
from submodel_lab.converged.candidates import SETTINGS, Candidate, Contender
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
"""The chance that a difference is found, if it is there."""
_MOST_SEEDS = 1000
ONE_POINT = 0.01
COST_HEADINGS = (
    *("question", "setting", "ways", "seeds", "runs", "rounds each", "core-seconds a round"),
    *("core-hours: rates", "with runs, at least", "at most"),
)
POWER_HEADINGS = (
    *("setting", "seeds", "deviation of a difference", "seeds for one point"),
    *("chance to find one point", "found four times in five"),
)


def power_of_test(seeds: int, difference: float, deviation: float, tests: int = 1) -> float:
    """The chance that a paired t-test finds a difference of this size.

    ``deviation`` is that of differences over seeds. Of several tests it is that of Holm's first.

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
    """How many seeds find such a difference four times in five.

    >>> seeds_needed(0.01, 0.007), seeds_needed(0.01, 0.023), seeds_needed(0.01, 0.007, tests=4)
    (7, 44, 9)
    """
    for seeds in range(LEAST_SEEDS, _MOST_SEEDS):
        if power_of_test(seeds, difference, deviation, tests) >= POWER:
            return seeds
    return _MOST_SEEDS


def typical_deviation(records: Sequence[ArmRecord], measure: str = "accuracy") -> float | None:
    """The median over all pairs of ways of how much their difference varies over seeds.

    Returns:
        None where no pair has enough seeds in common.
    """
    deviations = [
        spread(differences)[1]
        for one, other in combinations(records, 2)
        if len(differences := one.ahead_of(other, measure)) >= LEAST_SEEDS
    ]
    return median(deviations) if deviations else None


def _blocks(questions: Sequence[OpenQuestion]) -> list[list[Candidate]]:
    """For each question its candidates that no question before it has."""
    earlier: set[Candidate] = set()
    blocks = []
    for question in questions:
        block = [candidate for candidate in question.candidates if candidate not in earlier]
        earlier.update(block)
        blocks.append(block)
    return blocks


def contenders_of(block: Sequence[Candidate], seeds: int | None = None) -> list[Contender]:
    """All that has to be run for some candidates, with so many seeds or those of each setting."""
    return [contender for candidate in block for contender in candidate.contenders(seeds)]


def run_agenda(
    runner: Runner, questions: Sequence[OpenQuestion], records: Path, seeds: int | None = None
) -> None:
    """Run all that the questions need, question by question, of each the cheaper settings first.

    In a setting, rates come first, then runs seed by seed: what is stopped has answers to show.
    """
    blocks = [contenders_of(block, seeds) for block in _blocks(questions)]
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


def _by_effort(block: Sequence[Contender]) -> list[list[Contender]]:
    """The contenders of each setting, cheap settings first."""
    groups: dict[str, list[Contender]] = {}
    for contender in block:
        groups.setdefault(contender.group, []).append(contender)
    return sorted(groups.values(), key=lambda group: sum(c.least_seconds for c in group))


def words_of_rest(questions: Sequence[OpenQuestion], records: Path, seeds: int | None) -> str:
    """What is left to run beyond some records."""
    contenders = [c for block in _blocks(questions) for c in contenders_of(block, seeds)]
    missing = sum(len(missing_seeds(c, read_earlier(c, records))) for c in contenders)
    hours = seconds_left(contenders, records) / 3600
    return f"Beyond the records in {records}: {missing} runs, at least {hours:.1f} core-hours."


def read_results(
    questions: Sequence[OpenQuestion], records: Path
) -> tuple[dict[Candidate, ArmRecord], dict[Candidate, list[RateTable]]]:
    """What is recorded of the questions' candidates, and their tables of learning rates.

    Raises `SubmodelError` where that is nothing.
    """
    results, tables = read_available(questions, records)
    if not results:
        raise SubmodelError(f"{records}: no records of these questions")
    return results, tables


def read_available(
    questions: Sequence[OpenQuestion], records: Path
) -> tuple[dict[Candidate, ArmRecord], dict[Candidate, list[RateTable]]]:
    """As `read_results`, but there need be none."""
    results: dict[Candidate, ArmRecord] = {}
    tables: dict[Candidate, list[RateTable]] = {}
    for candidate in (candidate for block in _blocks(questions) for candidate in block):
        slugs = list(candidate.members.values()) or [candidate.slug]
        tables[candidate] = [t for slug in slugs if (t := read_rates(records, slug)) is not None]
        if not all((records / f"{slug}.json").is_file() for slug in slugs):
            continue
        parts = [ArmRecord.read(records / f"{slug}.json") for slug in slugs]
        if candidate.members:
            whole = put_together(candidate.slug, dict(zip(candidate.members, parts, strict=True)))
            if whole.runs:
                results[candidate] = whole
        else:
            results[candidate] = parts[0]
    return results, tables


def spread_over_seeds(questions: Sequence[OpenQuestion], records: Path) -> dict[str, float]:
    """By setting, how much differences vary over seeds, where records can tell."""
    by_setting: dict[str, list[ArmRecord]] = {}
    for candidate, record in read_available(questions, records)[0].items():
        by_setting.setdefault(candidate.setting, []).append(record)
    deviations = {setting: typical_deviation(ways) for setting, ways in by_setting.items()}
    return {setting: value for setting, value in deviations.items() if value is not None}


def budget_rows(questions: Sequence[OpenQuestion], seeds: int | None = None) -> list[list[str]]:
    """What is run for every question that no question before it needs, setting by setting."""
    rows, totals, runs = [], [0.0, 0.0, 0.0], 0
    for question, block in zip(questions, _blocks(questions), strict=True):
        for name in dict.fromkeys(candidate.setting for candidate in block):
            setting = SETTINGS[name]
            group = [candidate for candidate in block if candidate.setting == name]
            contenders = contenders_of(group, seeds)
            hours = _hours(contenders)
            totals = [total + one for total, one in zip(totals, hours, strict=True)]
            count = sum(len(contender.seeds) for contender in contenders)
            runs += count
            least = min(contender.course.shortest for contender in contenders)
            most = max(contender.course.longest for contender in contenders)
            rows.append(
                [
                    question.name,
                    setting.title,
                    ", ".join(candidate.way for candidate in group),
                    f"{seeds or setting.seeds}",
                    f"{count}",
                    f"{least}" if least == most else f"{least} to {most}",
                    f"{setting.seconds:g}",
                    *(f"{h:.1f}" for h in hours),
                ]
            )
    return [*rows, ["all", "", "", "", f"{runs}", "", "", *(f"{t:.1f}" for t in totals)]]


def _hours(contenders: Sequence[Contender]) -> list[float]:
    rates = sum(c.tuning_seconds for c in contenders)
    least = sum(c.least_seconds for c in contenders)
    most = sum(c.most_seconds for c in contenders)
    return [rates / 3600, (rates + least) / 3600, (rates + most) / 3600]


def power_rows(
    questions: Sequence[OpenQuestion], deviations: Mapping[str, float], seeds: int | None = None
) -> list[list[str]]:
    """How many seeds a difference of one point takes in every setting, and what ours can find.

    Deviations over seeds are by setting; where none is given, the setting has one.
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
    """The plan as Markdown: what is run, what it takes, what it can show."""
    return [
        *(f"- {q.name}: {q.title}, {len(q.contrasts)} contrasts" for q in questions),
        "",
        *markdown_table(COST_HEADINGS, budget_rows(questions, seeds)),
        "",
        *markdown_table(POWER_HEADINGS, power_rows(questions, deviations, seeds)),
        "",
    ]
