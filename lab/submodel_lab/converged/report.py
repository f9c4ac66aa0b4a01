"""Saying what converged runs came to: answers with intervals, results, rates, a figure each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from submodel.amounts import si
from submodel.experiments import (
    JUDGEMENT_HEADINGS,
    Judgement,
    VariantRecord,
    describe_judgement,
    judge,
    number,
)
from submodel.presentation import (
    DOUBLE,
    SINGLE,
    Band,
    draw_band,
    even_ticks,
    label_ends,
    markdown_table,
    new_figure,
    save_figure,
    shared_grid,
    styles_of,
    whole_ticks,
    with_style,
)
from submodel_lab.converged.candidates import Candidate
from submodel_lab.converged.equal_loss import differences_at_equal_loss
from submodel_lab.converged.questions import AT_ROUND, EQUAL_LOSS, Contrast, OpenQuestion
from submodel_lab.converged.rates import RateTable
from submodel_lab.converged.remarks import (
    CandidateRecords,
    effort_words,
    flatness_words,
    reading_words,
    rest_words,
)
from submodel_lab.converged.settings import SETTINGS

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot
    from matplotlib.figure import Figure

_TITLE = 44  # characters of a line over one of two plots
ANSWER_HEADINGS = (
    *("setting", "difference", "measure", "in its favour", "seeds that agree"),
    *(*JUDGEMENT_HEADINGS, "verdict"),
)
_RESULT_HEADINGS = (
    *("setting", "way", "rounds", "flat", "traffic", "FLOPs", "test accuracy", "train accuracy"),
    *("mean over sizes", "smallest size", "worst quarter"),
)


def judge_question(
    question: OpenQuestion, results: CandidateRecords
) -> list[tuple[Contrast, Judgement]]:
    """The contrasts of a question that were run; those of a measure are judged together.

    Args:
        question: whose contrasts.
        results: what came out, by candidate.
    """
    judgements: dict[Contrast, Judgement] = {}
    for family in question.families:
        contrasts = [c for c in family if all(side in results for side in c.sides)]
        differences = [differences_of(c, results) for c in contrasts]
        judgements |= dict(zip(contrasts, judge(differences), strict=True))
    return [(c, judgements[c]) for c in question.contrasts if c in judgements]


def answer_rows(question: OpenQuestion, results: CandidateRecords) -> list[list[str]]:
    """What each contrast of a question came to; those not run are left out.

    Args:
        question: whose contrasts.
        results: what came out, by candidate.
    """
    rows = []
    for contrast, one in judge_question(question, results):
        better, worse = contrast.sides
        base = base_measure(contrast.measure)
        rows.append(
            [
                SETTINGS[contrast.setting].title,
                f"{better.title} - {worse.title}",
                contrast.measure,
                number(base, one.differences, sign=True) if one.differences else "",
                f"{sum(d > 0 for d in one.differences)} of {len(one.differences)}",
                *describe_judgement(base, one),
                one.verdict,
            ]
        )
    return rows


def plain_answers(question: OpenQuestion, results: CandidateRecords) -> list[dict[str, Any]]:
    """What each contrast of a question came to, as plain values.

    Args:
        question: whose contrasts.
        results: what came out, by candidate.
    """
    return [
        {
            "setting": SETTINGS[contrast.setting].title,
            "better": contrast.sides[0].title,
            "worse": contrast.sides[1].title,
            "measure": contrast.measure,
            **asdict(one),
        }
        for contrast, one in judge_question(question, results)
    ]


def differences_of(contrast: Contrast, results: CandidateRecords) -> list[float]:
    """What a contrast came to, seed by seed.

    Args:
        contrast: of two candidates that have results.
        results: what came out, by candidate.
    """
    better, worse = (results[side] for side in contrast.sides)
    if contrast.measure.endswith(EQUAL_LOSS):
        measure = contrast.measure.removesuffix(EQUAL_LOSS)
        return differences_at_equal_loss(better, worse, measure)
    base, at_round, round_ = contrast.measure.partition(AT_ROUND)
    if at_round:
        return better.until(int(round_)).ahead_of(worse.until(int(round_)), base)
    return better.ahead_of(worse, contrast.measure)


def base_measure(measure: str) -> str:
    """What is measured, wherever it is read.

    Args:
        measure: of a contrast.

    >>> base_measure("accuracy at round 100"), base_measure("loss gap at equal train loss")
    ('accuracy', 'loss gap')
    """
    return measure.removesuffix(EQUAL_LOSS).partition(AT_ROUND)[0]


def result_rows(results: CandidateRecords) -> list[list[str]]:
    """Every candidate after its last round.

    Args:
        results: what came out, by candidate.
    """
    return [_result_row(candidate, record) for candidate, record in results.items()]


def _result_row(candidate: Candidate, record: VariantRecord) -> list[str]:
    rounds = [int(r) for r in record.final("round").values()]
    flat_count = sum(run.is_flat is True for run in record.runs)
    costs = [
        si(sum(record.final(cost).values()) / len(rounds), unit)
        for cost, unit in (("bytes", "B"), ("flops", ""))
    ]
    measures = ("accuracy", "train accuracy", "mean over sizes", "smallest size", "worst quarter")
    return [
        SETTINGS[candidate.setting].title,
        candidate.title,
        f"{min(rounds)}" if min(rounds) == max(rounds) else f"{min(rounds)} to {max(rounds)}",
        f"{flat_count} of {len(rounds)}",
        *costs,
        *(number(m, list(record.final(m).values())) for m in measures),
    ]


def rate_rows(tables: Sequence[RateTable]) -> list[list[str]]:
    """The learning rates that were tried, by held-out accuracy, and the one that was taken.

    Args:
        tables: of all contenders.
    """
    return [
        [
            table.slug,
            ", ".join(
                f"{rate:g}: " + ("diverged" if score is None else f"{100 * score:.1f} %")
                for rate, score in table.scores
            ),
            f"{table.best:g}" + (" (edge of the grid)" if table.is_at_edge else ""),
        ]
        for table in tables
    ]


@with_style
def draw_question(results: CandidateRecords) -> Figure:
    """Test accuracy to the end, a plot for each setting.

    Args:
        results: what came out of a question's candidates.
    """
    settings = list(dict.fromkeys(candidate.setting for candidate in results))
    columns = min(2, len(settings))
    rows = -(-len(settings) // columns)
    figure = new_figure(DOUBLE if columns == 2 else SINGLE + 1, 1.95 * rows)
    plots = figure.subplots(rows, columns, squeeze=False).ravel()
    for setting, plot in zip(settings, plots, strict=False):
        _draw_setting(plot, {c: r for c, r in results.items() if c.setting == setting})
        plot.set_title(fill(SETTINGS[setting].title, _TITLE))
    for plot in plots[len(settings) :]:
        plot.axis("off")
    label_ends(list(plots[: len(settings)]))
    return figure


def _draw_setting(plot: Plot, results: CandidateRecords) -> None:
    finals = [float(np.mean(list(r.final("accuracy").values()))) for r in results.values()]
    for (candidate, record), style in zip(results.items(), styles_of(finals), strict=True):
        x, values = shared_grid(record.against("round", "accuracy"), to_the_last_end=True)
        draw_band(plot, Band(candidate.title, x.tolist(), values, *(style or ("", ""))), not style)
    plot.set(xlabel="round", ylabel="test accuracy")
    plot.set_xlim(left=0)
    whole_ticks(plot.xaxis)
    even_ticks(plot.yaxis)


def results_of(question: OpenQuestion, results: CandidateRecords) -> CandidateRecords:
    """What came out of a question's own candidates.

    Args:
        question: whose candidates.
        results: of these and others.
    """
    return {c: results[c] for c in question.candidates if c in results}


def question_lines(
    question: OpenQuestion,
    results: CandidateRecords,
    tables: Sequence[RateTable],
    command: str,
    picture: str,
) -> list[str]:
    """The answers, the results behind them and the rates as Markdown, below a heading.

    Args:
        question: what was asked.
        results: what came out of its candidates, as far as they were run.
        tables: of learning rates.
        command: what runs it.
        picture: where the figure is, from the page.
    """
    lines = [f"`{command}`: {effort_words(results, tables)}.", ""]
    if not results:
        lines = [f"`{command}`: not run yet.", ""]
    if question.paper:
        lines += [f"Published: {question.paper}.", ""]
    if not results:
        return lines
    rows = answer_rows(question, results)
    return [
        *lines,
        *rest_words(question, results),
        f"![{question.title}]({picture})",
        "",
        "Lines are means over seeds, bands go from the least to the most; a run that ended before "
        "others counts with its last value from there on. Steep ends are the lower learning rate.",
        "",
        *_table(ANSWER_HEADINGS, rows),
        reading_words([judgement for _, judgement in judge_question(question, results)]),
        "",
        *markdown_table(_RESULT_HEADINGS, result_rows(results)),
        "",
        *flatness_words(results),
        "",
        *_table(("learning rates", "held-out accuracy", "taken"), rate_rows(tables)),
    ]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table and a blank line; nothing where there are no rows."""
    return [*markdown_table(headings, rows), ""] if rows else []


def write_question(
    question: OpenQuestion,
    results: CandidateRecords,
    tables: Sequence[RateTable],
    command: str,
    folder: Path,
) -> Path:
    """The answers, the results behind them, the rates and a figure as one page; its path.

    Args:
        question: what was asked.
        results: what came out of candidates, as far as they were run.
        tables: of learning rates.
        command: what runs it.
        folder: where the page goes.
    """
    page, picture = folder / f"{question.name}.md", folder / f"{question.name}.png"
    own_results = results_of(question, results)
    if own_results:
        save_figure(draw_question(own_results), picture)
    lines = question_lines(question, own_results, tables, command, picture.name)
    page.write_text("\n".join([f"# {question.title}", "", *lines]), "utf-8")
    return page
