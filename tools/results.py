"""Generate the parts of docs/results, their figures and the evidence from results/."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import compress, groupby
from pathlib import Path

from submodel.comparison import Judgement, describe_judgement, number, spread
from submodel.drawing import markdown_table
from submodel.drawing.style import save_figure
from submodel_lab.advice.evidence import EVIDENCE_FILE
from submodel_lab.advice.gather import gather_evidence
from submodel_lab.converged.agenda import read_available
from submodel_lab.converged.arms import SETTINGS
from submodel_lab.converged.contrasts import (
    ContrastOutcome,
    contrast_outcomes,
    draw_contrasts,
    words_of_state,
)
from submodel_lab.converged.converge import RateTable
from submodel_lab.converged.questions import QUESTIONS, Contrast, OpenQuestion
from submodel_lab.converged.report import (
    RESULT_HEADINGS,
    ArmRecords,
    base_measure,
    draw_question,
    effort_words,
    judge_question,
    rest_words,
    result_row,
    results_of,
)
from submodel_lab.paper.gpu_time import gpu_lines
from tools.packages import ROOT
from tools.pages import RESULTS, replace

RECORDS = ROOT / "results"
FIGURES = "images/results"
"""Folder of the figures in docs/."""


def parts(records: Path = RECORDS) -> dict[str, str]:
    """Generate the parts of the pages in docs/results, by name."""
    questions = list(QUESTIONS.values())
    results, tables = read_available(questions, records / "converged")
    generated = {
        "arms": arms_lines(results),
        "contrasts": published_lines(contrast_outcomes(questions, results)),
        "GPU": gpu_lines(),
    }
    for question in questions:
        own_tables = [t for arm in question.arms for t in tables.get(arm, [])]
        generated[question.name] = question_lines(
            question, results_of(question, results), own_tables
        )
    return {name: "\n".join(lines).strip() for name, lines in generated.items()}


def arms_lines(results: ArmRecords) -> list[str]:
    """Tabulate costs and scores of every arm."""
    ordered = sorted(results.items(), key=lambda pair: list(SETTINGS).index(pair[0].setting))
    lines = []
    for _, group in groupby(ordered, key=lambda pair: pair[0].setting):
        first, *others = [[_compact(cell) for cell in result_row(*pair)] for pair in group]
        lines += [first, *(["", *row[1:]] for row in others)]  # a setting is named once
    return list(markdown_table(RESULT_HEADINGS, lines))


def _compact(cell: str) -> str:
    """A mean with its deviation in brackets, a range and a count, each without blanks.

    >>> _compact("72.4 % ± 0.6"), _compact("440 to 640"), _compact("9 of 10")
    ('72.4 (0.6)', '440-640', '9/10')
    """
    cell = re.sub(r"^(\d+) (to|of) (\d+)$", lambda m: m[1] + "-/"[m[2] == "of"] + m[3], cell)
    return re.sub(r"^(.*?)(?: %)? ± (.*)$", r"\1 (\2)", cell)


def published_lines(outcomes: Sequence[ContrastOutcome]) -> list[str]:
    """Format the counts of all contrasts, and a table of those with published figures."""
    rows = []
    for outcome in outcomes:
        if outcome.published_figures:
            words, setting, measure, *_, ours, interval, _, verdict = outcome.row()
            printed = outcome.published_figures.items()
            figures = "; ".join(f"{name} {text}" for name, text in printed)
            rows.append([words, setting, measure, figures, f"{ours} {interval}", verdict])
    headings = ("contrast", "setting", "measure", "published", "ours", "verdict")
    state = words_of_state([outcome.row() for outcome in outcomes])
    return [state, "", *markdown_table(headings, rows)]


def question_lines(
    question: OpenQuestion, results: ArmRecords, tables: Sequence[RateTable]
) -> list[str]:
    """Format the effort, published figures, a figure and the contrasts of a question."""
    command = f"`submodel reproduce {question.name} --scale converged`"
    effort = effort_words(results, tables).partition(" on ")[0]  # the method names the machine
    lines = [f"{command}: {effort if results else 'not run yet'}.", ""]
    if question.paper:
        lines += [f"Published: {question.paper}.", ""]
    if not results:
        return lines
    lines += [*rest_words(question, results), f"![{question.title}](../{figure(question.name)})"]
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for contrast, judgement in judge_question(question, results):
        setting = SETTINGS[contrast.setting].title
        names = " - ".join(side.title for side in contrast.sides)
        cells.setdefault((setting, names), {})[contrast.measure] = _cell(contrast, judgement)
    if not cells:
        return lines
    measures = list(dict.fromkeys(measure for row in cells.values() for measure in row))
    settings, pairs = zip(*cells, strict=True)
    kept = [len(set(settings)) > 1, len(set(pairs)) > 1]
    shared = compress((settings[0], pairs[0]), [not is_kept for is_kept in kept])
    headings = [*compress(("setting", "contrast"), kept), *measures]
    rows = [
        [*compress(key, kept), *(row.get(measure, "") for measure in measures)]
        for key, row in cells.items()
    ]
    title = [f"{'; '.join(shared)}:", ""] if not all(kept) else []
    return [*lines, "", *title, *markdown_table(headings, rows)]


def _cell(contrast: Contrast, judgement: Judgement) -> str:
    """The verdict, the mean and its interval, p, and the seeds in favour of the first arm."""
    differences = judgement.differences
    if not differences:
        return judgement.verdict
    measure = base_measure(contrast.measure)
    interval, p = describe_judgement(measure, judgement)
    mean = number(measure, [spread(differences)[0]], sign=True).removesuffix(" points")
    agreeing = f"{sum(d > 0 for d in differences)}/{len(differences)}"
    sign = "" if p.startswith("<") else "= "
    test = f" {interval}, p {sign}{p}" if interval else ""
    return f"{judgement.verdict}: {mean}{test}, {agreeing}"


def page_of(name: str) -> Path:
    """Return the page of a generated part."""
    return RESULTS / f"{'method' if name == 'GPU' else name}.md"


def figure(name: str) -> str:
    """Return the path of a figure in docs/."""
    return f"{FIGURES}/converged-{name}.png"


def main() -> None:
    """Write the generated parts, their figures, and the evidence of `submodel advise`."""
    for name, text in parts().items():
        replace(page_of(name), name, text)
    questions = list(QUESTIONS.values())
    results, _ = read_available(questions, RECORDS / "converged")
    for question in questions:
        if own_results := results_of(question, results):
            save_figure(draw_question(own_results), RESULTS.parent / figure(question.name))
    save_figure(
        draw_contrasts(contrast_outcomes(questions, results)), RESULTS.parent / figure("claims")
    )
    gather_evidence(RECORDS).write(EVIDENCE_FILE)


if __name__ == "__main__":
    main()
