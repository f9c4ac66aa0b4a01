"""Reports on converged runs: answers with intervals, results, rates, and a figure each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from submodel.comparison import (
    JUDGEMENT_HEADINGS,
    LEAST_SEEDS,
    LEVEL,
    MEASURES,
    PLUS_MINUS,
    ArmRecord,
    Judgement,
    Line,
    counted,
    describe_judgement,
    judge,
    number,
)
from submodel.core import si
from submodel.drawing import (
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
from submodel_lab.converged.arms import SETTINGS, ConvergedArm
from submodel_lab.converged.converge import RateTable
from submodel_lab.converged.questions import AT_ROUND, EQUAL_LOSS, Contrast, OpenQuestion

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot
    from matplotlib.figure import Figure

_GRIDS = ("grid of rates", "grids of rates")
_TITLE = 44  # characters of a title line over one of two plots
RESULT_HEADINGS = (
    *("setting", "arm", "rounds", "flat", "traffic", "FLOPs", "test accuracy", "train accuracy"),
    *("mean over sizes", "smallest size", "worst quarter"),
)


def differences_at_equal_loss(better: ArmRecord, worse: ArmRecord, measure: str) -> list[float]:
    """Return the differences of gaps at equal train loss, by seed.

    The loss is the lowest that both runs reached; each gap is interpolated between the evaluations
    around the first time that the run reached it.
    """
    others = {run.seed: run.lines for run in worse.runs}
    differences = []
    for run in better.runs:
        if run.seed in others:
            pair = run.lines, others[run.seed]
            loss = max(min(line["train_eval_loss"] for line in lines) for lines in pair)
            first, second = (value_at_loss(lines, loss, measure) for lines in pair)
            differences.append(second - first)
    return differences


def value_at_loss(lines: Sequence[Line], loss: float, measure: str) -> float:
    """Return a measure of a run at the first time that its train loss reached a value.

    >>> losses, tests = (1.0, 0.5, 0.7), (1.0, 0.75, 0.9)
    >>> lines = [{"train_eval_loss": a, "test_loss": b} for a, b in zip(losses, tests)]
    >>> value_at_loss(lines, 0.75, "loss gap")
    0.125
    """
    values = [MEASURES[measure](line) for line in lines]
    losses = [line["train_eval_loss"] for line in lines]
    place = next(i for i, value in enumerate(losses) if value <= loss)
    if place == 0:
        return values[0]
    ends = losses[place], losses[place - 1]  # np.interp needs rising values
    return float(np.interp(loss, ends, (values[place], values[place - 1])))


ArmRecords = Mapping[ConvergedArm, ArmRecord]


def effort_words(results: ArmRecords, tables: Sequence[RateTable]) -> str:
    """Describe the number of runs, their core-hours with those of the grids, and the machines."""
    runs = [run for record in results.values() for run in record.runs]
    run_seconds = [run.core_seconds for run in runs if run.core_seconds is not None]
    grid_seconds = [t.core_seconds for t in tables if t.core_seconds is not None]
    text = f"{len(runs)} runs"
    if len(run_seconds) < len(runs):  # some records have wall-clock times only
        return f"{text}, {sum(run.seconds for run in runs) / 3600:.2f} hours of rounds by the clock"
    if grid_seconds:
        text += f" and {counted(len(grid_seconds), *_GRIDS)}"
    machines = " and ".join(dict.fromkeys(run.machine for run in runs if run.machine))
    hours = (sum(run_seconds) + sum(grid_seconds)) / 3600
    others = len(tables) - len(grid_seconds)
    was = "was" if others == 1 else "were"
    rest = f"; {counted(others, *_GRIDS)} {was} not timed" if others else ""
    return f"{text}, {hours:.2f} core-hours on {machines}{rest}"


def rest_words(question: OpenQuestion, results: ArmRecords) -> list[str]:
    """List the arms of a question that lack seeds, setting by setting."""
    missing: dict[str, list[str]] = {}
    for arm in question.arms:
        setting = SETTINGS[arm.setting]
        count = len(results[arm].runs) if arm in results else 0
        if count < setting.seeds:
            text = f"{arm.title} {count} of {setting.seeds}"
            missing.setdefault(setting.title, []).append(text)
    if not missing:
        return []
    words = "; ".join(f"{title}: {', '.join(methods)}" for title, methods in missing.items())
    return [f"**Still to run** (recorded seeds of the planned ones). {words}.", ""]


def reading_words(judgements: Sequence[Judgement]) -> str:
    """Explain the verdicts of a question."""
    counts = sorted({len(one.differences) for one in judgements if one.p is not None})
    if not counts:
        return f"Nothing is decided yet: a verdict needs {LEAST_SEEDS} seeds of both arms."
    return (
        f"'holds': a paired t-test over the seeds that both arms have "
        f"({' or '.join(map(str, counts))}) finds p < {LEVEL:g}, corrected for all contrasts of "
        "the same measure here (Holm); 'reversed': it finds so of the opposite; 'undecided' "
        "does not mean equal. An interval is that of the mean difference, each by itself, not "
        f"corrected. {PLUS_MINUS}"
    )


def flatness_words(results: ArmRecords) -> list[str]:
    """Explain when runs count as flat, setting by setting."""
    words = []
    for name in dict.fromkeys(arm.setting for arm in results):
        setting = SETTINGS[name]
        course, every = setting.course, setting.sections["train"]["evaluate_every"]
        words.append(
            f"- {setting.title}: flat where {course.rule.describe(every)}, on the held-out part; "
            f"tested from round {course.least} on, at most {course.most} rounds, then "
            f"{course.final} at a tenth of the learning rate."
        )
    return words


ANSWER_HEADINGS = (
    *("setting", "difference", "measure", "in its favour", "seeds that agree"),
    *(*JUDGEMENT_HEADINGS, "verdict"),
)


def judge_question(question: OpenQuestion, results: ArmRecords) -> list[tuple[Contrast, Judgement]]:
    """Judge the recorded contrasts of a question; contrasts of a measure are judged together."""
    judgements: dict[Contrast, Judgement] = {}
    for family in question.families:
        contrasts = [c for c in family if all(side in results for side in c.sides)]
        differences = [differences_of(c, results) for c in contrasts]
        judgements |= dict(zip(contrasts, judge(differences), strict=True))
    return [(c, judgements[c]) for c in question.contrasts if c in judgements]


def answer_rows(question: OpenQuestion, results: ArmRecords) -> list[list[str]]:
    """Tabulate the judgements of the recorded contrasts of a question."""
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


def plain_answers(question: OpenQuestion, results: ArmRecords) -> list[dict[str, Any]]:
    """Return the judgements of the recorded contrasts of a question as plain values."""
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


def differences_of(contrast: Contrast, results: ArmRecords) -> list[float]:
    """Return the differences of a contrast, seed by seed."""
    better, worse = (results[side] for side in contrast.sides)
    if contrast.measure.endswith(EQUAL_LOSS):
        measure = contrast.measure.removesuffix(EQUAL_LOSS)
        return differences_at_equal_loss(better, worse, measure)
    base, at_round, round_ = contrast.measure.partition(AT_ROUND)
    if at_round:
        return better.until(int(round_)).ahead_of(worse.until(int(round_)), base)
    return better.ahead_of(worse, contrast.measure)


def base_measure(measure: str) -> str:
    """Return a measure without the point at which it is read.

    >>> base_measure("accuracy at round 100"), base_measure("loss gap at equal train loss")
    ('accuracy', 'loss gap')
    """
    return measure.removesuffix(EQUAL_LOSS).partition(AT_ROUND)[0]


def result_row(arm: ConvergedArm, record: ArmRecord) -> list[str]:
    """Return the costs and scores of an arm, under `RESULT_HEADINGS`."""
    rounds = [int(r) for r in record.final("round").values()]
    flat_count = sum(run.is_flat is True for run in record.runs)
    costs = [
        si(sum(record.final(cost).values()) / len(rounds), unit)
        for cost, unit in (("bytes", "B"), ("flops", ""))
    ]
    measures = ("accuracy", "train accuracy", "mean over sizes", "smallest size", "worst quarter")
    return [
        SETTINGS[arm.setting].title,
        arm.title,
        f"{min(rounds)}" if min(rounds) == max(rounds) else f"{min(rounds)} to {max(rounds)}",
        f"{flat_count} of {len(rounds)}",
        *costs,
        *(number(m, list(record.final(m).values())) for m in measures),
    ]


def rate_rows(tables: Sequence[RateTable]) -> list[list[str]]:
    """Tabulate the tried learning rates with held-out accuracy, and the chosen one."""
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
def draw_question(results: ArmRecords) -> Figure:
    """Draw test accuracy over rounds, with a plot for each setting."""
    settings = list(dict.fromkeys(arm.setting for arm in results))
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


def _draw_setting(plot: Plot, results: ArmRecords) -> None:
    finals = [float(np.mean(list(r.final("accuracy").values()))) for r in results.values()]
    for (arm, record), style in zip(results.items(), styles_of(finals), strict=True):
        x, values = shared_grid(record.against("round", "accuracy"), to_the_last_end=True)
        draw_band(plot, Band(arm.title, x.tolist(), values, *(style or ("", ""))), not style)
    plot.set(xlabel="round", ylabel="test accuracy")
    plot.set_xlim(left=0)
    whole_ticks(plot.xaxis)
    even_ticks(plot.yaxis)


def results_of(question: OpenQuestion, results: ArmRecords) -> ArmRecords:
    """Select the records of a question's arms."""
    return {c: results[c] for c in question.arms if c in results}


def question_lines(
    question: OpenQuestion,
    results: ArmRecords,
    tables: Sequence[RateTable],
    command: str,
    picture: str,
) -> list[str]:
    """Format the answers, results and rates of a question as Markdown without a heading.

    Args:
        question: The question.
        results: The records of its arms.
        tables: The tables of tried learning rates.
        command: The command that runs the question.
        picture: The path of its figure.
    """
    lines = [f"`{command}`: {effort_words(results, tables)}.", ""]
    if not results:
        lines = [f"`{command}`: not run yet.", ""]
    if question.paper:
        lines += [f"Published: {question.paper}.", ""]
    if not results:
        return lines
    answers = _table(ANSWER_HEADINGS, answer_rows(question, results))
    rows = markdown_table(RESULT_HEADINGS, [result_row(*pair) for pair in results.items()])
    return [
        *lines,
        *rest_words(question, results),
        f"![{question.title}]({picture})",
        "",
        "Lines are means over seeds, bands go from minimum to maximum; a run that ended before "
        "others keeps its last value from there on. Steep ends are due to the lower learning rate.",
        "",
        *answers,
        reading_words([judgement for _, judgement in judge_question(question, results)]),
        "",
        *rows,
        "",
        *flatness_words(results),
        "",
        *_table(("learning rates", "held-out accuracy", "taken"), rate_rows(tables)),
    ]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format a table and a blank line, or nothing if there are no rows."""
    return [*markdown_table(headings, rows), ""] if rows else []


def write_question(
    question: OpenQuestion,
    results: ArmRecords,
    tables: Sequence[RateTable],
    command: str,
    folder: Path,
) -> Path:
    """Write the answers, results, rates and a figure of a question as a page; return its path."""
    page, picture = folder / f"{question.name}.md", folder / f"{question.name}.png"
    own_results = results_of(question, results)
    if own_results:
        save_figure(draw_question(own_results), picture)
    lines = question_lines(question, own_results, tables, command, picture.name)
    page.write_text("\n".join([f"# {question.title}", "", *lines]), "utf-8")
    return page
