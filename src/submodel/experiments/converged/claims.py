"""The table of claims: what was published on each contrast, what our runs say, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from submodel.experiments.converged.questions import QUESTIONS, Contrast
from submodel.experiments.converged.remarks import CandidateRecords
from submodel.experiments.converged.report import base_measure, judge_question
from submodel.experiments.converged.settings import SETTINGS
from submodel.experiments.statistics import EQUAL, FAILS, HOLDS, UNDECIDED, Judgement, spread
from submodel.experiments.wording import describe_judgement, number

CITED_SOURCES = ("paper", "FedRolex", "FIARSE", "FedLASE")
"""Whose figures are shown, in this order."""
CLAIM_HEADINGS = (
    *("claim", "setting", "measure", *CITED_SOURCES),
    *("ours", "95 % interval", "seeds", "verdict"),
)
NOT_RUN = "not run yet"
_BY_SIZE = ("accuracy", "mean over sizes", "smallest size")
"""The measures that the main question is answered by; others by the first, or by the loss gap."""
_ROLLING_STATIC, _ROLLING_RANDOM = ("rolling", "static"), ("rolling", "random")
PUBLISHED_FIGURES: dict[tuple[str, tuple[str, str], str], dict[str, str]] = {
    ("cifar-low", _ROLLING_STATIC, "accuracy"): {
        "FedRolex": "+11.3 (84.45 - 73.19)",
        "FIARSE": "+5.3 (79.08 - 73.76)",
        "FedLASE": "-8.8 down to 1/64, +1.2 down to 1/25 (65.09 - 73.88, 73.75 - 72.51)",
    },
    ("cifar-high", _ROLLING_STATIC, "accuracy"): {"FedRolex": "+5.5 (69.44 - 63.90)"},
    ("cifar-low", _ROLLING_STATIC, "mean over sizes"): {"FIARSE": "-0.1 (65.98 - 66.05)"},
    ("cifar-low", _ROLLING_STATIC, "smallest size"): {
        "FIARSE": "-5.6, 1/64 of the parameters (54.60 - 60.24)"
    },
    ("cifar-low", _ROLLING_RANDOM, "accuracy"): {
        "paper": "above (Fig. 1 and 2)",
        "FedRolex": "+8.3, not aligned (84.45 - 76.20)",
        "FedLASE": "+44.7, +27.8 (65.09 - 20.40, 73.75 - 45.94)",
    },
    ("cifar-high", _ROLLING_RANDOM, "accuracy"): {
        "paper": "above (Fig. 1 and 2)",
        "FedRolex": "+22.8, not aligned (69.44 - 46.64)",
    },
    ("table3", _ROLLING_STATIC, "accuracy"): {"paper": "+0.9, CIFAR-100 (35.30 - 34.37)"},
    ("overfit", ("dropout-at-1-2", "full"), "loss gap"): {
        "paper": "0.0064, 0.0176 less (Tab. 1 and 2)"
    },
}
"""By setting, ways and measure: differences of accuracy in points, as printed, and of what."""


def claim_rows_of(results: CandidateRecords) -> list[list[str]]:
    """A row for every contrast that decides something, run or not.

    Args:
        results: what came out, by candidate.
    """
    rows = []
    for question in QUESTIONS.values():
        judgements = dict(judge_question(question, results))
        for contrast in question.contrasts:
            base = base_measure(contrast.measure)
            if base in (*_BY_SIZE[: 3 if question.name == "static" else 1], "loss gap"):
                rows.append([*_claim(contrast), *_answer(contrast, judgements.get(contrast))])
    return rows


def words_of_state(rows: Sequence[Sequence[str]]) -> str:
    """How many claims are decided, are not, and have not been run.

    Args:
        rows: of `claim_rows_of`.

    >>> words_of_state([["a", "not run yet", "", "", ""], ["b", "+1.0 points", "", "3", "holds"]])
    'Of 2 contrasts 1 holds, 0 do not hold, 0 are undecided, 0 lack seeds, and 1 has not been run.'
    """
    verdicts = Counter(NOT_RUN if row[-4] == NOT_RUN else row[-1] for row in rows)
    known_verdicts = (HOLDS, FAILS, UNDECIDED, EQUAL, NOT_RUN)
    few = sum(count for verdict, count in verdicts.items() if verdict not in known_verdicts)
    return (
        f"Of {len(rows)} contrasts {_count(verdicts[HOLDS], 'holds', 'hold')}, "
        f"{_count(verdicts[FAILS], 'does not hold', 'do not hold')}, "
        f"{_count(verdicts[UNDECIDED] + verdicts[EQUAL], 'is undecided', 'are undecided')}, "
        f"{_count(few, 'lacks seeds', 'lack seeds')}, and "
        f"{_count(verdicts[NOT_RUN], 'has not been run', 'have not been run')}."
    )


def _count(number_: int, one: str, several: str) -> str:
    return f"{number_} {one if number_ == 1 else several}"


def _claim(contrast: Contrast) -> list[str]:
    better, worse = contrast.sides
    figures = PUBLISHED_FIGURES.get(
        (contrast.setting, (better.way, worse.way), contrast.measure), {}
    )
    return [
        f"{better.title} beats {worse.title}",
        SETTINGS[contrast.setting].title,
        contrast.measure,
        *(figures.get(source, "") for source in CITED_SOURCES),
    ]


def _answer(contrast: Contrast, judgement: Judgement | None) -> list[str]:
    if judgement is None or not judgement.differences:
        return [NOT_RUN, "", "", ""]
    measure, planned = base_measure(contrast.measure), SETTINGS[contrast.setting].seeds
    count = len(judgement.differences)
    interval, _ = describe_judgement(measure, judgement)
    mean = spread(judgement.differences)[0]
    return [
        number(measure, [mean], sign=True),
        interval,
        f"{count} of {planned}" if count < planned else f"{count}",
        judgement.verdict,
    ]
