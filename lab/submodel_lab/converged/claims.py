"""The table of claims: what was published on each contrast, what our runs say, and the verdict."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from submodel.experiments import (
    BY_TEST_BATCH,
    EQUAL,
    HOLDS,
    REVERSED,
    UNDECIDED,
    Judgement,
    counted,
    describe_judgement,
    number,
    spread,
)
from submodel_lab.converged.questions import Contrast, OpenQuestion
from submodel_lab.converged.remarks import CandidateRecords
from submodel_lab.converged.report import base_measure, judge_question
from submodel_lab.converged.settings import SETTINGS

CITED_SOURCES = ("paper", "FedRolex", "FIARSE", "FedLASE")
"""Whose figures are shown, in this order."""
CLAIM_HEADINGS = (
    *("claim", "setting", "measure", *CITED_SOURCES),
    *("ours", "95 % interval", "seeds", "verdict"),
)
NOT_RUN = "not run yet"
_BY_SIZE = ("accuracy", "mean over sizes", "smallest size")
_BY_SIZE_ASKED = ("static", "exclusive", "smallest", "table3", "wide")
"""Questions that are answered by all of these; others by the first of them."""
_BESIDE = ("loss gap", "accuracy gap", BY_TEST_BATCH)
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
    ("table3", _ROLLING_STATIC, "accuracy at round 2000"): {
        "paper": "+0.9, CIFAR-100 (35.30 - 34.37)"
    },
    ("overfit", ("dropout-at-1-2", "full"), "loss gap"): {
        "paper": "0.0064, 0.0176 less (Tab. 1 and 2)"
    },
}
"""By setting, ways and measure: differences of accuracy in points, as printed, and of what."""


@dataclass(frozen=True)
class ContrastClaim:
    """A contrast that decides something, and what it came to."""

    question: OpenQuestion
    contrast: Contrast
    judgement: Judgement | None
    """None where it has not been run."""

    @property
    def words(self) -> str:
        """What is claimed."""
        better, worse = self.contrast.sides
        return f"{better.title} beats {worse.title}"

    @property
    def published_figures(self) -> Mapping[str, str]:
        """What others printed of it, by source."""
        ways = (self.contrast.better, self.contrast.worse)
        return PUBLISHED_FIGURES.get((self.contrast.setting, ways, self.contrast.measure), {})

    @property
    def is_early(self) -> bool:
        """Whether seeds are missing that were planned, so that the verdict is not the last word."""
        planned = SETTINGS[self.contrast.setting].seeds
        return self.judgement is not None and len(self.judgement.differences) < planned

    def row(self) -> list[str]:
        """What stands under `CLAIM_HEADINGS`."""
        figures = (self.published_figures.get(source, "") for source in CITED_SOURCES)
        setting = SETTINGS[self.contrast.setting]
        return [self.words, setting.title, self.contrast.measure, *figures, *self._answer()]

    def _answer(self) -> list[str]:
        if self.judgement is None or not self.judgement.differences:
            return [NOT_RUN, "", "", ""]
        measure, planned = (
            base_measure(self.contrast.measure),
            SETTINGS[self.contrast.setting].seeds,
        )
        interval, _ = describe_judgement(measure, self.judgement)
        count = len(self.judgement.differences)
        return [
            number(measure, [spread(self.judgement.differences)[0]], sign=True),
            interval,
            f"{count} of {planned}" if self.is_early else f"{count}",
            f"{self.judgement.verdict} so far" if self.is_early else self.judgement.verdict,
        ]


def claims_of(questions: Iterable[OpenQuestion], results: CandidateRecords) -> list[ContrastClaim]:
    """Every contrast that decides something, run or not.

    Args:
        questions: whose contrasts.
        results: what came out, by candidate.
    """
    claims = []
    for question in questions:
        judgements = dict(judge_question(question, results))
        measures = _BY_SIZE[: 3 if question.name in _BY_SIZE_ASKED else 1]
        claims += [
            ContrastClaim(question, contrast, judgements.get(contrast))
            for contrast in question.contrasts
            if base_measure(contrast.measure) in (*measures, *_BESIDE)
        ]
    return claims


def published_differences(words: str) -> list[float]:
    """The differences that a source printed, in points.

    Args:
        words: as in `PUBLISHED_FIGURES`.

    >>> published_differences("-8.8 down to 1/64, +1.2 down to 1/25 (65.09 - 73.88, 73.75 - 72.51)")
    [-8.8, 1.2]
    """
    return [float(word) for word in re.findall(r"(?<!\w)[+-][\d.]+", words.partition("(")[0])]


def words_of_state(rows: Sequence[Sequence[str]]) -> str:
    """How many claims are decided, are not, and have not been run.

    Args:
        rows: of claims.

    >>> words_of_state([["a", "not run yet", "", "", ""], ["b", "+1.0 points", "", "3", "holds"]])
    'Of 2 contrasts 1 holds, 0 are reversed, 0 are undecided, 0 lack seeds, and 1 has not been run.'
    """
    verdicts = Counter(NOT_RUN if row[-4] == NOT_RUN else row[-1] for row in rows)
    known_verdicts = (HOLDS, REVERSED, UNDECIDED, EQUAL, NOT_RUN)
    few = sum(count for verdict, count in verdicts.items() if verdict not in known_verdicts)
    return (
        f"Of {len(rows)} contrasts {counted(verdicts[HOLDS], 'holds', 'hold')}, "
        f"{counted(verdicts[REVERSED], 'is reversed', 'are reversed')}, "
        f"{counted(verdicts[UNDECIDED] + verdicts[EQUAL], 'is undecided', 'are undecided')}, "
        f"{counted(few, 'lacks seeds', 'lack seeds')}, and "
        f"{counted(verdicts[NOT_RUN], 'has not been run', 'have not been run')}."
    )
