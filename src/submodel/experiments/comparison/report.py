"""Saying what came out of a comparison: a table, a page and a figure with bands over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from submodel.experiments.comparison.findings import Findings, WayRecord
from submodel.experiments.statistics import Judgement
from submodel.experiments.wording import JUDGEMENT_HEADINGS, describe_judgement, how_to_read, number
from submodel.presentation.figures import draw_band, new_figure, save_figure
from submodel.presentation.tables import markdown_table, text_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot

_HEADINGS = (
    *("way", "rounds", "GB (down + up)", "TFLOPs", "test accuracy", "test loss"),
    *("difference to the best", *JUDGEMENT_HEADINGS, "behind the best"),
)
_COSTS = {
    "round": ("round", None),
    "bytes": ("traffic (down + up)", "B"),
    "flops": ("clients' work, FLOPs", ""),
}
_COLORS, _STYLES = 10, ("-", "--", ":", "-.")  # as many colours as matplotlib has before it repeats
_COLUMNS = 3  # of the legend


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
        f"{way.cost('bytes') / 1e9:.3g}",
        f"{way.cost('flops') / 1e12:.3g}",
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


def _seeds(findings: Findings) -> str:
    count = len(findings.seeds)
    return "one seed" if count == 1 else f"{count} seeds"


def remarks(findings: Findings) -> str:
    """How to read the verdicts, in words."""
    text = how_to_read(len(findings.seeds), len(findings.ways) - 1)
    if any(judgement.p is not None for judgement in findings.judgements().values()):
        text += " The best was chosen by these same runs, which flatters it."
    return text


def draw_comparison(findings: Findings, path: Path) -> None:
    """Test accuracy against rounds, bytes and FLOPs, in one PNG."""
    lines = -(-len(findings.ways) // _COLUMNS)
    figure = new_figure(13, 4.2 + 0.17 * lines)
    from matplotlib.ticker import EngFormatter, MaxNLocator

    plots: Sequence[Plot] = figure.subplots(1, len(_COSTS), sharey=True)
    for (cost, (label, unit)), plot in zip(_COSTS.items(), plots, strict=True):
        for place, way in enumerate(findings.ways):
            x, values = shared_grid(way.record.against(cost, "accuracy"))
            style = _STYLES[place // _COLORS % len(_STYLES)]
            draw_band(plot, x.tolist(), values, way.title, style)
        plot.set_xlabel(label)
        plot.set_xlim(left=0)
        plot.xaxis.set_major_locator(MaxNLocator(5, integer=unit is None))
        if unit is not None:
            plot.xaxis.set_major_formatter(EngFormatter(unit))
        plot.grid(alpha=0.3)
    plots[0].set_ylabel("test accuracy (global model)")
    handles, labels = plots[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=_COLUMNS, fontsize=8)
    figure.suptitle(
        f"{findings.budget}\nline: mean over {_seeds(findings)}, band: least to most", fontsize=10
    )
    save_figure(figure, path)


Curve = tuple[Sequence[float], Sequence[float]]


def shared_grid(curves: Sequence[Curve]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Curves over the stretch that all of them cover, in between interpolated: x, and y by curve.

    The same round costs different bytes with different seeds.

    >>> x, y = shared_grid([([1, 3], [0.0, 1.0]), ([2, 4], [0.0, 1.0])])
    >>> x.tolist(), y.tolist()
    ([2.0, 3.0], [[0.5, 1.0], [0.0, 0.5]])
    """
    first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if first > last:  # one evaluation each, at different costs
        places = np.array([np.mean([x[-1] for x, _ in curves])])
    else:
        every = np.unique(np.concatenate([np.asarray(x, np.float64) for x, _ in curves]))
        places = every[(every >= first) & (every <= last)]
    return places, np.array([np.interp(places, x, y) for x, y in curves])


def write_comparison(findings: Findings, folder: Path) -> Path:
    """The figure and the table as one Markdown page; returns its path."""
    picture, page = folder / "comparison.png", folder / "comparison.md"
    draw_comparison(findings, picture)
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
        "Means ± standard deviations over seeds, after the last round of each way; curves go as "
        "far as all seeds went. The same seed means the same data at the same clients, and the "
        "same sampling and initial model unless a way sets them itself.",
        "",
    ]
    page.write_text("\n".join(lines), "utf-8")
    return page
