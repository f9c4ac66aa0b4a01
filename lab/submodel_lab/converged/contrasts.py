"""All contrasts between converged runs beside published figures, as a table and a figure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from submodel.comparison import (
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
from submodel.drawing import (
    DOUBLE,
    FRAME,
    GROUND,
    INK,
    LINES,
    SMALL_TEXT,
    markdown_table,
    new_figure,
    save_figure,
    with_style,
)
from submodel_lab.converged.arms import SETTINGS
from submodel_lab.converged.questions import Contrast, OpenQuestion
from submodel_lab.converged.report import ArmRecords, base_measure, judge_question

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot
    from matplotlib.figure import Figure

CITED_SOURCES = ("paper", "FedRolex", "FIARSE", "FedLASE")
"""Sources of published figures, in the order of the columns."""
CONTRAST_HEADINGS = (
    *("contrast", "setting", "measure", *CITED_SOURCES),
    *("ours", "95 % interval", "seeds", "verdict"),
)
NOT_RUN = "not run yet"
_BY_SIZE = ("accuracy", "mean over sizes", "smallest size")
_BY_SIZE_ASKED = ("static", "exclusive", "smallest", "table3", "wide")
"""Questions that use all measures of `_BY_SIZE`; others use the first only."""
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
"""Printed differences of accuracy in points by setting, methods and measure, with their terms."""
_ROW, _BELOW = 0.152, 0.75  # inches of a line of text, and of the scale with the legend
_MARK = 3.4  # points
_LINEAR = 5  # points of accuracy on either side of zero
_TICKS = (2, 5, 15, 40)
_MARKS = dict(zip(CITED_SOURCES, ("v", "D", "s", "^"), strict=True))


_BESIDE = ("loss gap", "accuracy gap", BY_TEST_BATCH)


@dataclass(frozen=True)
class ContrastOutcome:
    """A contrast of a question with its judgement."""

    question: OpenQuestion
    contrast: Contrast
    judgement: Judgement | None  # None: not run

    @property
    def words(self) -> str:
        """Text of the statement."""
        better, worse = self.contrast.sides
        return f"{better.title} beats {worse.title}"

    @property
    def published_figures(self) -> Mapping[str, str]:
        """Published figures by source."""
        methods = (self.contrast.better, self.contrast.worse)
        return PUBLISHED_FIGURES.get((self.contrast.setting, methods, self.contrast.measure), {})

    @property
    def is_early(self) -> bool:
        """Whether planned seeds are missing, so that the verdict is preliminary."""
        planned = SETTINGS[self.contrast.setting].seeds
        return self.judgement is not None and len(self.judgement.differences) < planned

    def row(self) -> list[str]:
        """Return the cells under `CONTRAST_HEADINGS`."""
        figures = (self.published_figures.get(source, "") for source in CITED_SOURCES)
        setting = SETTINGS[self.contrast.setting]
        return [self.words, setting.title, self.contrast.measure, *figures, *self._answer()]

    def _answer(self) -> list[str]:
        if self.judgement is None or not self.judgement.differences:
            return [NOT_RUN, "", "", ""]
        measure = base_measure(self.contrast.measure)
        planned = SETTINGS[self.contrast.setting].seeds
        interval, _ = describe_judgement(measure, self.judgement)
        count = len(self.judgement.differences)
        return [
            number(measure, [spread(self.judgement.differences)[0]], sign=True),
            interval,
            f"{count} of {planned}" if self.is_early else f"{count}",
            f"{self.judgement.verdict} so far" if self.is_early else self.judgement.verdict,
        ]


def contrast_outcomes(
    questions: Iterable[OpenQuestion], results: ArmRecords
) -> list[ContrastOutcome]:
    """List the contrasts of questions by their deciding measures, run or not."""
    outcomes = []
    for question in questions:
        judgements = dict(judge_question(question, results))
        measures = _BY_SIZE[: 3 if question.name in _BY_SIZE_ASKED else 1]
        outcomes += [
            ContrastOutcome(question, contrast, judgements.get(contrast))
            for contrast in question.contrasts
            if base_measure(contrast.measure) in (*measures, *_BESIDE)
        ]
    return outcomes


def published_differences(words: str) -> list[float]:
    """Extract printed differences in points.

    >>> published_differences("-8.8 down to 1/64, +1.2 down to 1/25 (65.09 - 73.88, 73.75 - 72.51)")
    [-8.8, 1.2]
    """
    return [float(word) for word in re.findall(r"(?<!\w)[+-][\d.]+", words.partition("(")[0])]


def words_of_state(rows: Sequence[Sequence[str]]) -> str:
    """Count the contrasts by verdict, in a sentence.

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


_COLOURS = {HOLDS: LINES[0], REVERSED: LINES[1]}


def contrast_lines(outcomes: Sequence[ContrastOutcome], picture: str) -> list[str]:
    """Format the counts, a figure and a table as Markdown."""
    rows = [outcome.row() for outcome in outcomes]
    return [
        words_of_state(rows),
        "",
        f"![Every contrast with its interval]({picture})",
        "",
        *markdown_table(CONTRAST_HEADINGS, rows),
    ]


def write_contrasts(outcomes: Sequence[ContrastOutcome], folder: Path) -> Path:
    """Write all contrasts as a page with a figure, and return its path."""
    page, picture = folder / "claims.md", folder / "claims.png"
    save_figure(draw_contrasts(outcomes), picture)
    page.write_text(
        "\n".join(["# Contrasts", "", *contrast_lines(outcomes, picture.name), ""]), "utf-8"
    )
    return page


@with_style
def draw_contrasts(outcomes: Sequence[ContrastOutcome]) -> Figure:
    """Draw the differences of accuracy in points of all run contrasts, by question and setting."""
    run_claims = [
        outcome
        for outcome in outcomes
        if outcome.judgement and outcome.judgement.differences
        if "loss" not in base_measure(outcome.contrast.measure)
    ]
    lines = list(_lines(run_claims))
    figure = new_figure(DOUBLE, _BELOW + _ROW * len(lines))
    plot = figure.subplots()
    plot.axvline(0, color=FRAME, linewidth=0.8)
    for row, (words, outcome) in enumerate(lines):
        if outcome is None:
            _write_heading(plot, words, row)
        else:
            _draw_contrast(plot, outcome, row)
    names = {row: words for row, (words, outcome) in enumerate(lines) if outcome}
    plot.set_yticks(list(names), list(names.values()))
    plot.set_ylim(len(lines) - 0.4, -0.6)
    plot.tick_params("y", length=0)
    plot.grid(visible=False, axis="y")
    _scale(plot)
    _explain(figure)
    return figure


def _lines(outcomes: Sequence[ContrastOutcome]) -> Iterator[tuple[str, ContrastOutcome | None]]:
    """Yield lines from top to bottom: headings without an outcome, then their outcomes."""
    for _, of_question in groupby(outcomes, key=lambda outcome: outcome.question.name):
        group = list(of_question)
        title = group[0].question.title
        if len({(outcome.contrast.better, outcome.contrast.worse) for outcome in group}) == 1:
            yield title, None
            for outcome in group:
                yield _name(SETTINGS[outcome.contrast.setting].title, outcome), outcome
            continue
        for setting, of_setting in groupby(group, key=lambda outcome: outcome.contrast.setting):
            yield f"{title}; {SETTINGS[setting].title}", None
            for outcome in of_setting:
                sides = (side.title.replace(" capacities", "") for side in outcome.contrast.sides)
                yield _name(" - ".join(sides), outcome), outcome


def _name(words: str, outcome: ContrastOutcome) -> str:
    measure = outcome.contrast.measure
    return words if measure == "accuracy" else f"{words}; {measure}"


def _write_heading(plot: Plot, words: str, row: int) -> None:
    """Write a heading over the whole width of the figure."""
    from matplotlib.transforms import blended_transform_factory

    place = blended_transform_factory(plot.figure.transFigure, plot.transData)
    ground = {"facecolor": GROUND, "edgecolor": "none", "pad": 0.6}
    text = plot.text(0.005, row, words, transform=place, va="center", size=SMALL_TEXT, bbox=ground)
    text.set_fontweight("bold")
    text.set_in_layout(False)


def _draw_contrast(plot: Plot, outcome: ContrastOutcome, row: int) -> None:
    if outcome.judgement is None:
        return
    mean = spread(outcome.judgement.differences)[0]
    colour = FRAME if outcome.is_early else _COLOURS.get(outcome.judgement.verdict, FRAME)
    if outcome.judgement.interval is not None:
        low, high = outcome.judgement.interval
        plot.hlines(row, 100 * low, 100 * high, color=colour, linewidth=1.4)
    plot.plot([100 * mean], [row], "o", color=colour, markersize=4)
    result = " ".join(outcome.row()[-4:-2]).replace(" points", "")
    plot.text(1.03, row, result, transform=plot.get_yaxis_transform(), va="center", size=SMALL_TEXT)
    for source, words in outcome.published_figures.items():
        values = published_differences(words)
        (marks,) = plot.plot(values, [row] * len(values), linestyle="", marker=_MARKS[source])
        marks.set(markersize=_MARK, markerfacecolor=GROUND, markeredgecolor=INK)


def _scale(plot: Plot) -> None:
    """Set a scale that shows differences of one point and of forty."""
    plot.set_xscale("symlog", linthresh=_LINEAR, linscale=1.0)
    reach = [n for n in _TICKS if n <= max(map(abs, plot.get_xlim()))]
    plot.set_xticks([*(-n for n in reversed(reach)), 0, *reach])
    plot.xaxis.set_major_formatter(lambda value, _: f"{value:+.0f}" if value else "0")
    plot.minorticks_off()
    plot.set_xlabel(f"points of accuracy in its favour (logarithmic beyond {_LINEAR})")


def _explain(figure: Figure) -> None:
    from matplotlib.lines import Line2D

    verdicts = {**_COLOURS, "undecided, or seeds are missing": FRAME}
    lines = [
        Line2D([], [], color=c, marker="o", markersize=4, label=w) for w, c in verdicts.items()
    ]
    lines += [
        Line2D([], [], linestyle="", marker=mark, markersize=_MARK, label=f"{source}, as printed",
               markerfacecolor=GROUND, markeredgecolor=INK)
        for source, mark in _MARKS.items()
    ]  # fmt: skip
    figure.legend(handles=lines, loc="outside lower center", ncols=4, fontsize=SMALL_TEXT)
