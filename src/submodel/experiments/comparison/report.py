"""Saying what came out of a comparison: a table, a page and a figure with bands over seeds."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from submodel.amounts import si
from submodel.experiments.comparison.drawing import draw_comparison
from submodel.experiments.comparison.findings import Findings, WayRecord
from submodel.experiments.statistics import Judgement, spread
from submodel.experiments.wording import JUDGEMENT_HEADINGS, describe_judgement, how_to_read, number
from submodel.presentation.style import save_figure
from submodel.presentation.tables import (
    bold_cell,
    card,
    cell,
    grid_of_cells,
    line_of_text,
    markdown_table,
    strip,
    text_table,
)

_HEADINGS = (
    *("way", "rounds", "traffic (down + up)", "FLOPs", "test accuracy", "test loss"),
    *("difference to the best", *JUDGEMENT_HEADINGS, "behind the best"),
)
_BAR_CELLS = 60  # of a bar in a notebook


def rows(findings: Findings) -> list[list[str]]:
    """The table's cells, way by way."""
    judgements = findings.judgements()
    return [_row(way, judgements.get(way.text)) for way in findings.ways]


def _row(way: WayRecord, judgement: Judgement | None) -> list[str]:
    least, most = min(way.rounds), max(way.rounds)
    scores = [number(m, list(way.record.final(m).values())) for m in ("accuracy", "loss")]
    return [
        way.title,
        f"{least}" if least == most else f"{least} to {most}",
        si(way.cost("bytes"), "B"),
        si(way.cost("flops")),
        *scores,
        *(["", "", "", "best"] if judgement is None else _behind(judgement)),
    ]


def _behind(judgement: Judgement) -> list[str]:
    differences = [-difference for difference in judgement.differences]
    return [
        number("accuracy", differences, sign=True),
        *describe_judgement("accuracy", judgement, flip_sign=True),
        judgement.verdict,
    ]


def comparison_table(findings: Findings) -> Table:
    """The comparison, for the terminal."""
    title = f"{_seeds(findings)}, {findings.budget}"
    return text_table(title, _HEADINGS, rows(findings), words=(_HEADINGS[0], _HEADINGS[-1]))


def plain_comparison(findings: Findings) -> dict[str, Any]:
    """The comparison as plain values, for programs.

    Args:
        findings: of all ways.
    """
    judgements = findings.judgements()
    return {
        "command": findings.command,
        "budget": findings.budget,
        "seeds": findings.seeds,
        "ways": [
            {
                "way": way.text,
                "title": way.title,
                "rounds": {
                    run.seed: rounds
                    for run, rounds in zip(way.record.runs, way.rounds, strict=True)
                },
                "bytes": way.cost("bytes"),
                "flops": way.cost("flops"),
                "accuracy": way.record.final("accuracy"),
                "loss": way.record.final("loss"),
                "behind": asdict(judgements[way.text]) if way.text in judgements else None,
            }
            for way in findings.ways
        ],
    }


def comparison_html(findings: Findings) -> str:
    """The comparison, for a notebook: the table, with bars for the accuracies, the best in bold."""
    parts = []
    for way, cells in zip(findings.ways, rows(findings), strict=True):
        accuracy = spread(list(way.record.final("accuracy").values()))[0]
        share = round(_BAR_CELLS * accuracy) if math.isfinite(accuracy) else 0
        bar = strip([1.0] * share + [0.0] * (_BAR_CELLS - share), f"{accuracy:.1%}")
        texts = [bold_cell(text) if cells[-1] == "best" else cell(text) for text in cells]
        parts.append([texts[0], bar, *texts[1:]])
    headings = [_HEADINGS[0], "", *_HEADINGS[1:]]
    table = grid_of_cells(headings, parts, numbers=range(2, len(headings) - 1))
    title = f"Comparison: {_seeds(findings)}, {findings.budget}"
    return card(title, table, line_of_text(remarks(findings)))


def _seeds(findings: Findings) -> str:
    count = len(findings.seeds)
    return "one seed" if count == 1 else f"{count} seeds"


def remarks(findings: Findings) -> str:
    """How to read the verdicts, in words."""
    text = how_to_read(len(findings.seeds), len(findings.ways) - 1)
    if any(judgement.p is not None for judgement in findings.judgements().values()):
        text += " The best was chosen by these same runs, which flatters it."
    return text


def write_comparison(findings: Findings, folder: Path) -> Path:
    """The figure and the table as one Markdown page; returns its path."""
    picture, page = folder / "comparison.png", folder / "comparison.md"
    save_figure(draw_comparison(findings), picture)
    seconds = sum(run.seconds for way in findings.ways for run in way.record.runs)
    lines = [
        f"# {', '.join(way.title.partition(',')[0] for way in findings.ways)}: a comparison",
        "",
        f"`{findings.command}`: {_seeds(findings)}, {findings.budget}; "
        f"{seconds / 3600:.2f} hours of one core in all.",
        "",
        f"![test accuracy against rounds, traffic and work]({picture.name})",
        "",
        *markdown_table(_HEADINGS, rows(findings)),
        "",
        remarks(findings),
        "",
        "Scores are means over seeds, after the last round of each way. In the figure, "
        "lines and dots are means, bands and bars go from the least to the most, and curves go as "
        "far as all seeds went. The same seed means the same data at the same clients, and the "
        "same sampling and initial model unless a way sets them itself.",
        "",
    ]
    page.write_text("\n".join(lines), "utf-8")
    return page
