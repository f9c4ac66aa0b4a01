"""Results of a comparison: the records of all arms, a table, a page and a figure."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, TypeAdapter
from rich.table import Table

from submodel.comparison.records import COMPARISON_FILE, ArmRecord
from submodel.comparison.statistics import (
    BEST_IS_CHOSEN,
    JUDGEMENT_HEADINGS,
    Judgement,
    behind_best,
    describe_judgement,
    how_to_read,
    number,
    spread,
)
from submodel.core.amounts import si
from submodel.core.errors import SubmodelError
from submodel.core.files import read_typed
from submodel.core.tables import (
    bold_cell,
    card,
    cell,
    grid_of_cells,
    line_of_text,
    markdown_table,
    strip,
    text_table,
)
from submodel.drawing.bands import (
    MOST_LINES,
    IntervalRow,
    draw_bands,
    draw_intervals,
    figure_with_list,
    sorted_rows,
    styles_of,
)
from submodel.drawing.labels import cost_ticks, even_ticks, label_ends, short_label
from submodel.drawing.style import DOUBLE, new_figure, save_figure, with_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot
    from matplotlib.figure import Figure

_LARGEST = 1 << 24  # bytes of the file that lists all arms
_BAR_CELLS = 60  # cells of a bar in a notebook
_HEIGHT = 2.0  # inches, of the curves


@dataclass(frozen=True)
class _Entry:
    """An arm in the file that lists all of them."""

    text: str
    title: str
    slug: Annotated[str, Field(pattern=r"^[\w.-]+$", max_length=200)]  # a name, not a path


@dataclass(frozen=True)
class _Index:
    """The file that lists all arms; their records are beside it."""

    command: str
    budget: str
    ways: Annotated[list[_Entry], Field(min_length=1)]  # the key in the file


_INDEX = TypeAdapter(_Index)


@dataclass(frozen=True)
class ArmResult:
    """One arm and its runs."""

    text: str  # as given
    title: str
    record: ArmRecord

    @property
    def rounds(self) -> list[int]:
        """Number of rounds for each seed."""
        return [int(rounds) for rounds in self.record.final("round").values()]

    def cost(self, what: str) -> float:
        """Return the bytes or flops of a run, averaged over seeds."""
        return spread(list(self.record.final(what).values()))[0]


@dataclass(frozen=True)
class ComparisonResult:
    """All arms of a comparison and their budget."""

    arms: Sequence[ArmResult]
    budget: str  # in words
    command: str

    @property
    def ways(self) -> Sequence[ArmResult]:
        """Former name of ``arms``."""
        return self.arms

    @property
    def seeds(self) -> list[int]:
        """Seeds of every arm."""
        return [run.seed for run in self.arms[0].record.runs]

    def judgements(self) -> dict[str, Judgement]:
        """Judge for every arm but the best whether its final test accuracy is behind the best.

        The keys are the texts of the arms, as given.
        """
        return behind_best({arm.text: arm.record.final("accuracy") for arm in self.arms})

    def _repr_html_(self) -> str:
        return comparison_html(self)

    def write(self, folder: Path) -> None:
        """Write everything that the report needs to a folder."""
        for arm in self.arms:
            arm.record.write(folder / f"{arm.record.slug}.json")
        entries = [_Entry(arm.text, arm.title, arm.record.slug) for arm in self.arms]
        index = _Index(self.command, self.budget, entries)
        (folder / COMPARISON_FILE).write_text(json.dumps(asdict(index), indent=1) + "\n", "utf-8")

    @classmethod
    def read(cls, folder: Path) -> ComparisonResult:
        """Read a result that `write` wrote."""
        path = folder / COMPARISON_FILE
        index = read_typed(_INDEX, path, _LARGEST, "not the records of a comparison")
        arms = [
            ArmResult(arm.text, arm.title, ArmRecord.read(folder / f"{arm.slug}.json"))
            for arm in index.ways
        ]
        return cls(arms, index.budget, index.command)

    def only(self, texts: Sequence[str]) -> ComparisonResult:
        """Select some of the arms, in the given order."""
        by_text = {arm.text: arm for arm in self.arms}
        if unknown := [text for text in texts if text not in by_text]:
            raise SubmodelError(
                f"arm {unknown[0]!r} has no record; recorded are {', '.join(by_text)}"
            )
        return ComparisonResult([by_text[text] for text in texts], self.budget, self.command)


WayRecord = ArmResult  # former name
Findings = ComparisonResult  # former name
_HEADINGS = (
    *("arm", "rounds", "traffic (down + up)", "FLOPs", "test accuracy", "test loss"),
    *("difference to the best", *JUDGEMENT_HEADINGS, "behind the best"),
)


def comparison_rows(result: ComparisonResult) -> list[list[str]]:
    """Make the rows of the table, one per arm."""
    judgements = result.judgements()
    return [_table_row(arm, judgements.get(arm.text)) for arm in result.arms]


def _table_row(arm: ArmResult, judgement: Judgement | None) -> list[str]:
    least, most = min(arm.rounds), max(arm.rounds)
    scores = [number(m, list(arm.record.final(m).values())) for m in ("accuracy", "loss")]
    return [
        arm.title,
        f"{least}" if least == most else f"{least} to {most}",
        si(arm.cost("bytes"), "B"),
        si(arm.cost("flops")),
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


def comparison_table(result: ComparisonResult) -> Table:
    """Make the table of a comparison for the terminal."""
    title = f"{_seeds(result)}, {result.budget}"
    return text_table(
        title, _HEADINGS, comparison_rows(result), words=(_HEADINGS[0], _HEADINGS[-1])
    )


def plain_comparison(result: ComparisonResult) -> dict[str, Any]:
    """Convert a comparison to plain values for JSON."""
    judgements = result.judgements()
    return {
        "command": result.command,
        "budget": result.budget,
        "seeds": result.seeds,
        "ways": [
            {
                "way": arm.text,
                "title": arm.title,
                "rounds": {
                    run.seed: rounds
                    for run, rounds in zip(arm.record.runs, arm.rounds, strict=True)
                },
                "bytes": arm.cost("bytes"),
                "flops": arm.cost("flops"),
                "accuracy": arm.record.final("accuracy"),
                "loss": arm.record.final("loss"),
                "behind": asdict(judgements[arm.text]) if arm.text in judgements else None,
            }
            for arm in result.arms
        ],
    }


def comparison_html(result: ComparisonResult) -> str:
    """Render the table for a notebook, with bars for the accuracies and the best arm in bold."""
    parts = []
    for arm, cells in zip(result.arms, comparison_rows(result), strict=True):
        accuracy = spread(list(arm.record.final("accuracy").values()))[0]
        share = round(_BAR_CELLS * accuracy) if math.isfinite(accuracy) else 0
        bar = strip([1.0] * share + [0.0] * (_BAR_CELLS - share), f"{accuracy:.1%}")
        texts = [bold_cell(text) if cells[-1] == "best" else cell(text) for text in cells]
        parts.append([texts[0], bar, *texts[1:]])
    headings = [_HEADINGS[0], "", *_HEADINGS[1:]]
    table = grid_of_cells(headings, parts, numbers=range(2, len(headings) - 1))
    title = f"Comparison: {_seeds(result)}, {result.budget}"
    return card(title, table, line_of_text(remarks(result)))


def _seeds(result: ComparisonResult) -> str:
    count = len(result.seeds)
    return "one seed" if count == 1 else f"{count} seeds"


def remarks(result: ComparisonResult) -> str:
    """Explain the verdicts."""
    text = how_to_read(len(result.seeds), len(result.arms) - 1)
    if any(judgement.p is not None for judgement in result.judgements().values()):
        text += f" {BEST_IS_CHOSEN}"
    return text


def write_comparison(result: ComparisonResult, folder: Path) -> Path:
    """Write the figure and the table as one Markdown page; return its path."""
    picture, page = folder / "comparison.png", folder / "comparison.md"
    save_figure(draw_comparison(result), picture)
    seconds = sum(run.seconds for arm in result.arms for run in arm.record.runs)
    lines = [
        f"# {', '.join(arm.title.partition(',')[0] for arm in result.arms)}: a comparison",
        "",
        f"`{result.command}`: {_seeds(result)}, {result.budget}; "
        f"{seconds / 3600:.2f} core-hours in total.",
        "",
        f"![test accuracy against rounds, traffic and work]({picture.name})",
        "",
        *markdown_table(_HEADINGS, comparison_rows(result)),
        "",
        remarks(result),
        "",
        "Scores are means over seeds, after the last round of each arm. In the figure, "
        "lines and dots are means, bands and bars range from the minimum to the maximum, and "
        "curves end where the shortest run ends. Runs of one seed share the partition of the data, "
        "and the sampling and initial model unless an arm sets them.",
        "",
    ]
    page.write_text("\n".join(lines), "utf-8")
    return page


Styles = Sequence[tuple[str, str] | None]
"""Line styles of the arms, in their order."""


@with_style
def draw_comparison(result: ComparisonResult) -> Figure:
    """Draw test accuracy against rounds, bytes and FLOPs; with many arms, list all below."""
    finals = [sum(arm.record.final("accuracy").values()) for arm in result.arms]
    styles = styles_of(finals)
    if len(result.arms) <= MOST_LINES:
        figure = new_figure(DOUBLE, max(_HEIGHT, 0.6 + 0.17 * len(result.arms)))
        curves: Sequence[Plot] = figure.subplots(1, 3, sharey=True)
        _draw_curves(curves, result, styles)
        label_ends(curves[-1:])  # all three panels have the same colours and ends
        return figure
    figure, upper, lower = figure_with_list(DOUBLE, _HEIGHT, len(result.arms))
    _draw_curves(upper.subplots(1, 3, sharey=True), result, styles)
    _draw_list(lower.subplots(), result.arms, styles)
    return figure


def _draw_curves(plots: Sequence[Plot], result: ComparisonResult, styles: Styles) -> None:
    for plot, cost in zip(plots, ("round", "bytes", "flops"), strict=True):
        lines = [(short_label(w.title), w.record.against(cost, "accuracy")) for w in result.arms]
        most = draw_bands(plot, lines, styles)
        plot.set_xlim(0, 1.03 * most)
        cost_ticks(plot, cost, most)
    plots[0].set_ylabel("test accuracy")
    even_ticks(plots[0].yaxis)


def _draw_list(plot: Plot, arms: Sequence[ArmResult], styles: Styles) -> None:
    """Draw every arm after its last round, the best on top, with its costs."""
    rows = []
    for arm, style in zip(arms, styles, strict=True):
        values = list(arm.record.final("accuracy").values())
        rounds = f"{round(sum(arm.rounds) / len(arm.rounds))}"
        cells = (rounds, si(arm.cost("bytes"), "B"), si(arm.cost("flops")))
        rows.append(IntervalRow(short_label(arm.title), values, style and style[0], cells))
    draw_intervals(plot, sorted_rows(rows), ("rounds", "traffic", "FLOPs"))
    plot.set_xlabel("test accuracy after the last round")
    even_ticks(plot.xaxis)
