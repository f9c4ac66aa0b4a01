"""What is said around the tables of a question: its cost, what is left to run, how to read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from submodel.experiments import LEAST_SEEDS, LEVEL, PLUS_MINUS, Judgement, VariantRecord, counted
from submodel_lab.converged.candidates import Candidate
from submodel_lab.converged.questions import OpenQuestion
from submodel_lab.converged.rates import RateTable
from submodel_lab.converged.settings import SETTINGS

CandidateRecords = Mapping[Candidate, VariantRecord]
"""What came out, by candidate."""
_GRIDS = ("grid of rates", "grids of rates")


def effort_words(results: CandidateRecords, tables: Sequence[RateTable]) -> str:
    """How many runs there were, what they took of a core with their rates, and where.

    Args:
        results: what came out, by candidate.
        tables: of learning rates.
    """
    runs = [run for record in results.values() for run in record.runs]
    run_seconds = [run.core_seconds for run in runs if run.core_seconds is not None]
    grid_seconds = [t.core_seconds for t in tables if t.core_seconds is not None]
    text = f"{len(runs)} runs"
    if len(run_seconds) < len(runs):  # what rounds took by the clock, whoever had the core
        return f"{text}, {sum(run.seconds for run in runs) / 3600:.2f} hours of rounds by the clock"
    if grid_seconds:
        text += f" and {counted(len(grid_seconds), *_GRIDS)}"
    machines = " and ".join(dict.fromkeys(run.machine for run in runs if run.machine))
    hours = (sum(run_seconds) + sum(grid_seconds)) / 3600
    others = len(tables) - len(grid_seconds)
    was = "was" if others == 1 else "were"
    rest = f"; {counted(others, *_GRIDS)} {was} not timed" if others else ""
    return f"{text}, {hours:.2f} core-hours on {machines}{rest}"


def rest_words(question: OpenQuestion, results: CandidateRecords) -> list[str]:
    """What of a question has not been run, if anything: ways that lack seeds, setting by setting.

    Args:
        question: what was asked.
        results: what came out, by candidate.
    """
    missing: dict[str, list[str]] = {}
    for candidate in question.candidates:
        setting = SETTINGS[candidate.setting]
        count = len(results[candidate].runs) if candidate in results else 0
        if count < setting.seeds:
            text = f"{candidate.title} {count} of {setting.seeds}"
            missing.setdefault(setting.title, []).append(text)
    if not missing:
        return []
    words = "; ".join(f"{title}: {', '.join(ways)}" for title, ways in missing.items())
    return [f"**Still to run** (seeds there are of those planned). {words}.", ""]


def reading_words(judgements: Sequence[Judgement]) -> str:
    """What the verdicts of a question mean, whose contrasts may have several numbers of seeds.

    Args:
        judgements: of the contrasts that were run.
    """
    counts = sorted({len(one.differences) for one in judgements if one.p is not None})
    if not counts:
        return f"Nothing is decided yet: a verdict takes {LEAST_SEEDS} seeds of both ways."
    return (
        f"'holds': a paired t-test over the seeds that both ways have "
        f"({' or '.join(map(str, counts))}) finds p < {LEVEL:g}, corrected for all contrasts of "
        "the same measure here (Holm); 'reversed': it finds so of the opposite; 'undecided' "
        "does not mean equal. An interval is that of the mean difference, each by itself, not "
        f"corrected. {PLUS_MINUS}"
    )


def flatness_words(results: CandidateRecords) -> list[str]:
    """When runs count as flat, setting by setting.

    Args:
        results: what came out, by candidate.
    """
    words = []
    for name in dict.fromkeys(candidate.setting for candidate in results):
        setting = SETTINGS[name]
        course, every = setting.course, setting.sections["train"]["evaluate_every"]
        words.append(
            f"- {setting.title}: flat where {course.rule.describe(every)}, on the held-out part; "
            f"asked from round {course.least} on, at most {course.most} rounds, then "
            f"{course.final} at a tenth of the learning rate."
        )
    return words
