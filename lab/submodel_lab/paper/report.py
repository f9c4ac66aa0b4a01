"""Reports on the experiments of the paper: figures, tables, printed numbers and contrasts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from submodel.comparison import (
    JUDGEMENT_HEADINGS,
    ArmRecord,
    Judgement,
    describe_judgement,
    how_to_read,
    judge,
    number,
)
from submodel.drawing import (
    DOUBLE,
    ROW_HEIGHT,
    Band,
    IntervalRow,
    draw_band,
    draw_intervals,
    even_ticks,
    label_ends,
    line_style,
    markdown_table,
    new_figure,
    save_figure,
    text_table,
    whole_ticks,
    with_style,
)
from submodel_lab.paper.experiments import Experiment, PaperArm, PaperContrast

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot
    from matplotlib.figure import Figure

_CURVES = {"loss": "test loss", "accuracy": "test accuracy"}
_GAPS = {"loss gap": "|test - train| loss", "accuracy gap": "|test - train| accuracy"}


Records = Mapping[PaperArm, ArmRecord]


def _settings(records: Records) -> list[tuple[tuple[str, str], list[PaperArm]]]:
    groups = groupby(records, key=lambda v: (v.dataset, v.heterogeneity))
    return [(setting, list(arms)) for setting, arms in groups]


@with_style
def draw_experiment(experiment: Experiment, records: Records) -> Figure:
    """Draw a row of two plots for every setting."""
    settings = _settings(records)
    measures = _GAPS if experiment.gaps else _CURVES
    places = {title: place for place, title in enumerate(dict.fromkeys(v.title for v in records))}
    heights = [_height(experiment, len(arms)) for _, arms in settings]
    figure = new_figure(DOUBLE, sum(heights))
    rows = figure.subplots(len(settings), 2, squeeze=False, height_ratios=heights)
    for ((dataset, heterogeneity), arms), row in zip(settings, rows, strict=True):
        row[0].set_title(f"{dataset}, {heterogeneity} heterogeneity")
        colours = [line_style(places[arm.title]) for arm in arms]
        for (measure, name), plot in zip(measures.items(), row, strict=True):
            if experiment.gaps:
                _draw_gaps(plot, arms, records, measure)
                plot.set_xlabel(name)
            else:
                _draw_curves(plot, arms, colours, records, measure)
                plot.set_ylabel(name)
        if experiment.gaps:
            row[1].set_yticklabels([])  # as those to the left
    if not experiment.gaps:
        for plot in rows[-1]:
            plot.set_xlabel("round")
        label_ends([row[-1] for row in rows])  # both plots have the same colours
    return figure


def _height(experiment: Experiment, arms: int) -> float:
    return 0.55 + ROW_HEIGHT * arms if experiment.gaps else max(1.6, 0.4 + 0.2 * arms)


def _draw_curves(
    plot: Plot,
    arms: Sequence[PaperArm],
    styles: Sequence[tuple[str, str]],
    records: Records,
    measure: str,
) -> None:
    for arm, style in zip(arms, styles, strict=True):
        draw_band(plot, Band(arm.title, *records[arm].curve(measure), *style))
    whole_ticks(plot.xaxis)
    even_ticks(plot.yaxis)


def _draw_gaps(plot: Plot, arms: Sequence[PaperArm], records: Records, measure: str) -> None:
    rows = [
        IntervalRow(arm.title, list(records[arm].final(measure).values()), line_style(place)[0])
        for place, arm in enumerate(arms)
    ]
    draw_intervals(plot, rows)
    plot.set_xlim(left=0)
    even_ticks(plot.xaxis)


def result_table(records: Records) -> Iterator[str]:
    """Tabulate every arm after its last round, as Markdown."""
    has_training_scores = all("train_eval_loss" in r.runs[0].lines[-1] for r in records.values())
    measures = ["accuracy", "loss"]
    measures += (
        ["train accuracy", "train loss", "accuracy gap", "loss gap"] if has_training_scores else []
    )
    rows = [
        [v.dataset, v.heterogeneity, v.title]
        + [number(m, list(record.final(m).values())) for m in measures]
        for v, record in records.items()
    ]
    names = {"accuracy": "test accuracy", "loss": "test loss"}
    headings = ["data", "heterogeneity", "arm", *(names.get(m, m) for m in measures)]
    yield from markdown_table(headings, rows)


def contrast_sides(
    experiment: Experiment, records: Records
) -> Iterator[tuple[PaperContrast, str, PaperArm, PaperArm]]:
    """Yield every recorded contrast in each of its settings, with its two arms."""
    for contrast in experiment.contrasts:
        for dataset, split in dict.fromkeys((v.dataset, v.split) for v in records):
            for setting in contrast.settings:
                better, worse = contrast.sides(dataset, setting, split)
                if better in records and worse in records:
                    yield contrast, f"{dataset}, {setting}", better, worse


def _judged_sides(
    experiment: Experiment, records: Records
) -> list[tuple[tuple[PaperContrast, str, PaperArm, PaperArm], Judgement]]:
    """Judge all recorded contrasts together."""
    sides = list(contrast_sides(experiment, records))
    judgements = judge([records[b].ahead_of(records[w], c.measure) for c, _, b, w in sides])
    return list(zip(sides, judgements, strict=True))


def contrast_rows(experiment: Experiment, records: Records) -> list[list[str]]:
    """Tabulate contrasts with differences and verdicts; all are judged together."""
    return [
        [
            *(contrast.text, setting, number(contrast.measure, one.differences, sign=True)),
            f"{sum(d > 0 for d in one.differences)} of {len(one.differences)}",
            *(*describe_judgement(contrast.measure, one), one.verdict),
        ]
        for (contrast, setting, _, _), one in _judged_sides(experiment, records)
    ]


def plain_contrasts(experiment: Experiment, records: Records) -> list[dict[str, Any]]:
    """Return contrasts and judgements as plain values."""
    return [
        {
            "claim": contrast.text,
            "setting": setting,
            "better": better.title,
            "worse": worse.title,
            "measure": contrast.measure,
            **asdict(one),
        }
        for (contrast, setting, better, worse), one in _judged_sides(experiment, records)
    ]


PAPER_HEADINGS = (
    *("contrast", "setting", "difference in its favour", "seeds that agree"),
    *(*JUDGEMENT_HEADINGS, "verdict"),
)


def contrast_table(experiment: Experiment, records: Records) -> Table:
    """Build the table of verdicts for the terminal."""
    title, rows = f"{experiment.name}: {experiment.title}", contrast_rows(experiment, records)
    return text_table(title, PAPER_HEADINGS, rows, words=("contrast", "setting", "verdict"))


def write_experiment(experiment: Experiment, records: Records, command: str, folder: Path) -> Path:
    """Write the figure, the tables and the verdicts as a Markdown page, and return its path."""
    picture, page = folder / f"{experiment.name}.png", folder / f"{experiment.name}.md"
    save_figure(draw_experiment(experiment, records), picture)
    runs = [run for record in records.values() for run in record.runs]
    hours = sum(run.seconds for run in runs) / 3600
    lines = [
        f"# {experiment.name}: {experiment.title}",
        "",
        f"`{command}`: {len(runs)} runs, {hours:.2f} hours of one core in all.",
        "",
        f"![{experiment.title}]({picture.name})",
        "",
        "Lines, or dots, are means over seeds; bands, or bars, go from the least to the most.",
        "",
        *result_table(records),
        "",
    ]
    if experiment.paper:
        lines += ["The paper prints:", "", *markdown_table(["", ""], experiment.paper), ""]
    rows = contrast_rows(experiment, records)
    seeds = min(len(record.runs) for record in records.values())
    lines += [*markdown_table(PAPER_HEADINGS, rows), "", how_to_read(seeds, len(rows)), ""]
    page.write_text("\n".join(lines), "utf-8")
    return page
