"""How groups stand by each measure: means, intervals and the paired tests of all experiments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from submodel.experiments.statistics import Judgement, behind_best, confidence, spread
from submodel.experiments.wording import PLUS_MINUS, how_to_read
from submodel.extras import MissingExtraError
from submodel.report.page.measures import CAPACITY_PARTS, better_of
from submodel.report.page.types import PageGroup, PageRun, Standing, StandingRow

_CAUTION = " The best was chosen by these same runs, which flatters it."


def standings(runs: Sequence[PageRun], groups: Sequence[PageGroup]) -> list[Standing]:
    """The groups by every measure that all of them have and of which more or less is better.

    Groups that were tested on different data are not compared: each data set has its own.

    Args:
        runs: all of a page.
        groups: of these.
    """
    places_by_data: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        data = runs[group.runs[0]].settings.get("data.name", "")
        places_by_data.setdefault(data, []).append(place)
    is_one = len(places_by_data) == 1
    return [
        _standing(key, "" if is_one else data, runs, {place: groups[place] for place in places})
        for data, places in places_by_data.items()
        if is_one or len(places) > 1
        for key in _shared_keys([runs[r] for place in places for r in groups[place].runs])
    ]


def _shared_keys(runs: Sequence[PageRun]) -> list[str]:
    return [
        key
        for key in runs[0].final
        if better_of(key)
        and not key.startswith(CAPACITY_PARTS)
        and all(run.final.get(key) is not None for run in runs)
    ]


def _standing(
    key: str, data: str, runs: Sequence[PageRun], groups: Mapping[int, PageGroup]
) -> Standing:
    sign = -1.0 if better_of(key) == "less" else 1.0
    by_seed: dict[str, dict[int, float]] = {}
    for place, group in groups.items():
        scores = by_seed.setdefault(str(place), {})
        for run in (runs[r] for r in group.runs):
            scores.setdefault(run.seed, sign * (run.final[key] or 0.0))  # the first of a seed
    seeds = min(len(scores) for scores in by_seed.values())
    note, judgements = "", dict[str, Judgement]()
    try:
        judgements = behind_best(by_seed)
        note = how_to_read(seeds, len(groups) - 1)
        if any(judgement.p is not None for judgement in judgements.values()):
            note += _CAUTION
    except MissingExtraError as error:  # the numbers are shown all the same
        note = f"Nothing was tested: {error}. {PLUS_MINUS}"
    best = next(place for place in by_seed if place not in judgements)
    rows = [
        _row(int(place), [sign * v for v in scores.values()], judgements.get(place), sign)
        for place, scores in by_seed.items()
    ]
    return Standing(key, data, int(best), rows, note)


def _row(place: int, values: list[float], judgement: Judgement | None, sign: float) -> StandingRow:
    mean, deviation = spread(values)
    has_mean = math.isfinite(mean)
    interval = None
    if len(values) > 1 and has_mean:
        try:
            interval = confidence(values)
        except MissingExtraError:
            interval = None
    difference, ends = None, None
    if judgement is not None and judgement.differences:
        behind = spread(judgement.differences)[0]
        difference = -sign * behind if math.isfinite(behind) else None
    if judgement is not None and judgement.interval is not None:
        low, high = sorted(-sign * end for end in judgement.interval)
        ends = low, high
    return StandingRow(
        group=place,
        mean=mean if has_mean else None,
        deviation=deviation if has_mean else None,
        interval=interval,
        difference=difference,
        difference_interval=ends,
        p=None if judgement is None else judgement.p,
        verdict="best" if judgement is None else judgement.verdict,
    )
