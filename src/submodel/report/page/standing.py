"""Measures, groups of runs, and rankings of groups by measure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from submodel.comparison.statistics import (
    BEST_IS_CHOSEN,
    PLUS_MINUS,
    Judgement,
    behind_best,
    confidence,
    how_to_read,
    spread,
)
from submodel.config.reading import shorten
from submodel.core.extras import MissingExtraError
from submodel.report.grouping import group_arms, group_equal
from submodel.report.page.types import MeasureInfo, PageGroup, PageRun, Standing, StandingRow

_COSTS = ("round", "bytes", "flops", "seconds")  # x axes of curves
_CAPACITY_PARTS = ("capacity_accuracy.", "capacity_loss.")  # shown in a separate chart
_PARTS = {
    "test_": "test ",
    "held_out_": "held-out ",
    "train_eval_": "train ",
    "client_": "clients' ",
    "observed.": "",
}
_LABELS = {
    "train_loss": "training loss of clients",
    "coverage.units": "units covered",
    "coverage.weights": "weights covered",
    "clients": "clients in the round",
    "refused": "refused updates",
    "missing": "missing devices",
}
_LESS = ("loss", "perplexity", "bits_per_byte", "error")
_MORE = ("accuracy", "f1", "auc", "r2", "top5", "precision", "recall", "correlation")
_FIRST = ("test_accuracy", "test_loss", "test_", "held_out_", "train_eval_", "train_loss",
          "client_", "observed.", "coverage.", "clients", "refused", "missing")  # fmt: skip
_MOST_MEASURES = 60  # on one page
_MOST_LABELS = 4  # keys in a label; the table of differences has all


def measures_of(runs: Iterable[PageRun]) -> list[MeasureInfo]:
    """Return the measures of runs, the most important first."""
    table_of: dict[str, str] = {}
    for run in runs:
        for table, columns in (("scores", run.scores), ("every", run.every)):
            for key in columns:
                if key not in (*_COSTS, "rows") and not key.startswith(_CAPACITY_PARTS):
                    table_of.setdefault(key, table)
    ranked_keys = sorted(table_of, key=_rank)
    return [MeasureInfo(key, label_of(key), form_of(key), better_of(key), table_of[key])
            for key in ranked_keys[:_MOST_MEASURES]]  # fmt: skip


def _rank(key: str) -> int:
    return next((place for place, part in enumerate(_FIRST) if key.startswith(part)), len(_FIRST))


def label_of(key: str) -> str:
    """Return the name of a measure.

    >>> label_of("test_bits_per_byte"), label_of("client_accuracy.worst_quarter")
    ('test bits per byte', "clients' accuracy, worst quarter")
    """
    if key in _LABELS:
        return _LABELS[key]
    for part, word in _PARTS.items():
        if key.startswith(part):
            key = word + key.removeprefix(part)
            break
    return key.replace(".", ", ").replace("_", " ")


def form_of(key: str) -> str:
    """Return the form of a measure's values: count, percent or number."""
    if key in ("clients", "refused", "missing"):
        return "count"
    return "percent" if "accuracy" in key or key.startswith("coverage.") else "number"


def better_of(key: str) -> str:
    """Return whether more or less of a measure is better; empty if unknown.

    >>> better_of("test_loss"), better_of("test_accuracy"), better_of("observed.norm")
    ('less', 'more', '')
    """
    if key.startswith(("observed.", "coverage.")):
        return ""
    name = key.partition(".")[0]
    if name.endswith(_LESS):
        return "less"
    return "more" if name.endswith(_MORE) else ""


def group_runs(runs: Sequence[PageRun]) -> list[PageGroup]:
    """Group runs, in their order, and name groups by their differing settings."""
    groups = [
        (places, {key: shorten(value) for key, value in differing.items()})
        for places, differing in group_arms(
            (run.settings for run in runs), (run.title for run in runs)
        )
    ]
    firsts = [runs[places[0]] for places, _ in groups]
    labels = [
        first.title or _label(own) or first.name
        for first, (_, own) in zip(firsts, groups, strict=True)
    ]
    return [
        PageGroup(label if labels.count(label) == 1 else f"{label} ({number})", own, places)
        for number, (label, (places, own)) in enumerate(zip(labels, groups, strict=True), 1)
    ]


def _label(settings: Mapping[str, str]) -> str:
    """Return settings as a label; of components only their names."""
    parts = [
        value if key.endswith((".name", ".rule")) else f"{key} = {value}"
        for key, value in settings.items()
    ]
    more = f", and {len(parts) - _MOST_LABELS} more" if len(parts) > _MOST_LABELS else ""
    return ", ".join(parts[:_MOST_LABELS]) + more


def standings(runs: Sequence[PageRun], groups: Sequence[PageGroup]) -> list[Standing]:
    """Rank groups by every common measure that has a better direction.

    Groups tested on different data are not compared: each dataset has its own ranking.
    """
    datasets = [runs[group.runs[0]].settings.get("data.name", "") for group in groups]
    by_data = group_equal(datasets)
    is_one = len(by_data) == 1
    return [
        _standing(key, "" if is_one else datasets[places[0]], runs, {p: groups[p] for p in places})
        for places in by_data
        if is_one or len(places) > 1
        for key in _shared_keys([runs[r] for place in places for r in groups[place].runs])
    ]


def _shared_keys(runs: Sequence[PageRun]) -> list[str]:
    return [
        key
        for key in runs[0].final
        if better_of(key)
        and not key.startswith(_CAPACITY_PARTS)
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
            scores.setdefault(run.seed, sign * (run.final[key] or 0.0))  # keep the first of a seed
    seeds = min(len(scores) for scores in by_seed.values())
    note, judgements = "", dict[str, Judgement]()
    try:
        judgements = behind_best(by_seed)
        note = how_to_read(seeds, len(groups) - 1)
        if any(judgement.p is not None for judgement in judgements.values()):
            note += f" {BEST_IS_CHOSEN}"
    except MissingExtraError as error:  # the numbers are shown without tests
        note = f"Differences were not tested: {error}. {PLUS_MINUS}"
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
