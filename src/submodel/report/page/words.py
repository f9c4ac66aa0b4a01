"""What was trained and the result, in a sentence or two."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from submodel.experiments.statistics import HOLDS, PLUS_MINUS, number
from submodel.report.page.standing import form_of, label_of
from submodel.report.page.types import PageGroup, PageRun, PageStudy, Standing

_HEADLINES = ("test_accuracy", "test_loss")  # the first of them that all have


def sentence(
    runs: Sequence[PageRun],
    studies: Sequence[PageStudy],
    groups: Sequence[PageGroup],
    by: Sequence[Standing],
) -> str:
    """The sentence of a page.

    Args:
        runs: all of the page.
        studies: all of the page.
        groups: of the runs.
        by: how the groups stand, measure by measure.
    """
    parts = [_of_studies(studies)] if studies else []
    if len(groups) == 1:
        parts.append(_of_group(runs, groups[0]))
    elif groups:
        parts.append(_of_groups(runs, groups, by))
    return " ".join(parts)


def title_of(
    runs: Sequence[PageRun], studies: Sequence[PageStudy], groups: Sequence[PageGroup]
) -> str:
    """The title of a page."""
    if not runs:
        return ", ".join(study.name for study in studies)
    if len(groups) == 1:
        first = runs[0]
        is_alone = len(runs) == 1 and not re.fullmatch(r"seed-\d+", Path(first.path).name)
        return first.name if is_alone else first.settings.get("name") or first.name
    data = _common(runs, "data.name")
    return f"{len(groups)} ways to train" + (f" on {data}" if data else "")


def _of_group(runs: Sequence[PageRun], group: PageGroup) -> str:
    first = runs[group.runs[0]]
    text = f"{_subject(runs)} was trained {_how(runs)}"
    seeds = len({run.seed for run in runs})
    rounds = max(run.rounds for run in runs)
    text += f", {rounds:,} round{'s' if rounds != 1 else ''}"
    if rounds < first.planned_rounds:
        text += f" of {first.planned_rounds:,} so far"
    text += f", over {seeds} seeds" if seeds > 1 else ""
    key = next((k for k in _HEADLINES if all(run.final.get(k) is not None for run in runs)), None)
    if key is None:
        return f"{text}. It has not been evaluated yet."
    value = _value(key, [run.final[key] or 0.0 for run in runs])
    return f"{text}. It reached {label_of(key)} {value}." + (f" {PLUS_MINUS}" if seeds > 1 else "")


def _value(key: str, values: Sequence[float]) -> str:
    return number("accuracy" if form_of(key) == "percent" else "loss", values)


def _subject(runs: Sequence[PageRun]) -> str:
    model, data = _common(runs, "model.name"), _common(runs, "data.name")
    subject = _with_article(model) if model else "A model"
    return subject + (f" on {data}" if data else "")


def _with_article(name: str) -> str:
    """A name after "A" or "An", as it is spoken: one without vowels is spelt out.

    >>> _with_article("mlp"), _with_article("cnn"), _with_article("resnet18")
    ('An mlp', 'A cnn', 'A resnet18')
    """
    is_spelt_out = not set(name.lower()) & set("aeiouy")
    letters = "aefhilmnorsx" if is_spelt_out else "aeio"
    return f"{'An' if name[0].lower() in letters else 'A'} {name}"


def _how(runs: Sequence[PageRun]) -> str:
    scheme, per_round = _common(runs, "scheme.name"), _common(runs, "clients.per_round")
    text = f"by the {scheme} scheme" if scheme else "by several schemes"
    if not per_round:
        return text
    if float(per_round) < 1:
        return f"{text}, {float(per_round):.0%} of the clients in a round"
    count = _common(runs, "clients.count")
    of = f" of {count}" if count else ""
    return f"{text}, {per_round.removesuffix('.0')}{of} clients in a round"


def _common(runs: Sequence[PageRun], key: str) -> str:
    values = {run.settings.get(key, "") for run in runs}
    return values.pop() if len(values) == 1 else ""


def _of_groups(runs: Sequence[PageRun], groups: Sequence[PageGroup], by: Sequence[Standing]) -> str:
    seeds = {len({runs[place].seed for place in group.runs}) for group in groups}
    least, most = min(seeds), max(seeds)
    count = f"{most}" if least == most else f"{least} to {most}"
    text = f"{len(groups)} ways to train {_subject(runs).replace('A', 'a', 1)}"
    text += f", each with {count} seed{'s' if most > 1 else ''}"
    standings = [s for key in _HEADLINES for s in by if s.measure == key]
    if not standings:
        return f"{text}. They have no score in common yet."
    firsts = [s for s in standings if s.measure == standings[0].measure]
    return ". ".join([text, *(_best_of(runs, groups, standing) for standing in firsts)]) + "."


def _best_of(runs: Sequence[PageRun], groups: Sequence[PageGroup], standing: Standing) -> str:
    """Which way is the best of those that were tested on the same data, and how sure that is."""
    best = groups[standing.best]
    values = [runs[place].final[standing.measure] or 0.0 for place in best.runs]
    on = f" on {standing.data}" if standing.data else ""
    text = f"Best by {label_of(standing.measure)}{on}: {best.label}, "
    text += _value(standing.measure, values)
    tests = [row for row in standing.rows if row.p is not None]
    if not tests:
        return f"{text}; too few seeds to tell differences from chance"
    behind = sum(row.verdict == HOLDS for row in tests)
    others = len(standing.rows) - 1
    which = "the other" if others == 1 else f"{behind} of the {others} others"
    if others == 1 and not behind:
        return f"{text}; that the other is behind is not shown by a paired test"
    verb = "are" if behind != 1 else "is"
    return f"{text}; {which} {verb} behind by a paired test"


def _of_studies(studies: Sequence[PageStudy]) -> str:
    counts: Counter[str] = Counter()
    for study in studies:
        counts.update(str(row[-1]).removesuffix(" *") for row in study.claims.rows)
    judged_counts = {verdict: count for verdict, count in counts.items() if verdict != "-"}
    total = sum(judged_counts.values())
    words = ", ".join(f"{count} {verdict}" for verdict, count in judged_counts.items())
    several = "studies judge" if len(studies) > 1 else "study judges"
    text = f"{len(studies)} {several} {total} statements: {words}."
    failures = sum(len(study.failures) for study in studies)
    return text + (f" In {failures} places trials disagree with exact values." if failures else "")
