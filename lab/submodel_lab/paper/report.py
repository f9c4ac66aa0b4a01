"""What the paper's experiments came to: figures with bands, tables beside its numbers, claims."""

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
from submodel_lab.paper.experiments import Claim, Experiment, Variant

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot
    from matplotlib.figure import Figure

_CURVES = {"loss": "test loss", "accuracy": "test accuracy"}
_GAPS = {"loss gap": "|test - train| loss", "accuracy gap": "|test - train| accuracy"}


Records = Mapping[Variant, ArmRecord]


def _settings(records: Records) -> list[tuple[tuple[str, str], list[Variant]]]:
    """Dataset and heterogeneity -> their variants, in order."""
    groups = groupby(records, key=lambda v: (v.dataset, v.heterogeneity))
    return [(setting, list(variants)) for setting, variants in groups]


@with_style
def draw_experiment(experiment: Experiment, records: Records) -> Figure:
    """A row of two plots for every setting."""
    settings = _settings(records)
    measures = _GAPS if experiment.gaps else _CURVES
    places = {title: place for place, title in enumerate(dict.fromkeys(v.title for v in records))}
    heights = [_height(experiment, len(variants)) for _, variants in settings]
    figure = new_figure(DOUBLE, sum(heights))
    rows = figure.subplots(len(settings), 2, squeeze=False, height_ratios=heights)
    for ((dataset, heterogeneity), variants), row in zip(settings, rows, strict=True):
        row[0].set_title(f"{dataset}, {heterogeneity} heterogeneity")
        colours = [line_style(places[variant.title]) for variant in variants]
        for (measure, name), plot in zip(measures.items(), row, strict=True):
            if experiment.gaps:
                _draw_gaps(plot, variants, records, measure)
                plot.set_xlabel(name)
            else:
                _draw_curves(plot, variants, colours, records, measure)
                plot.set_ylabel(name)
        if experiment.gaps:
            row[1].set_yticklabels([])  # as those to the left
    if not experiment.gaps:
        for plot in rows[-1]:
            plot.set_xlabel("round")
        label_ends([row[-1] for row in rows])  # both plots have the same colours
    return figure


def _height(experiment: Experiment, variants: int) -> float:
    """Inches of a row of plots."""
    return 0.55 + ROW_HEIGHT * variants if experiment.gaps else max(1.6, 0.4 + 0.2 * variants)


def _draw_curves(
    plot: Plot,
    variants: Sequence[Variant],
    styles: Sequence[tuple[str, str]],
    records: Records,
    measure: str,
) -> None:
    for variant, style in zip(variants, styles, strict=True):
        draw_band(plot, Band(variant.title, *records[variant].curve(measure), *style))
    whole_ticks(plot.xaxis)
    even_ticks(plot.yaxis)


def _draw_gaps(plot: Plot, variants: Sequence[Variant], records: Records, measure: str) -> None:
    rows = [
        IntervalRow(
            variant.title, list(records[variant].final(measure).values()), line_style(place)[0]
        )
        for place, variant in enumerate(variants)
    ]
    draw_intervals(plot, rows)
    plot.set_xlim(left=0)
    even_ticks(plot.xaxis)


def result_table(records: Records) -> Iterator[str]:
    """Every variant after its last round, as Markdown."""
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
    headings = ["data", "heterogeneity", "way", *(names.get(m, m) for m in measures)]
    yield from markdown_table(headings, rows)


def claim_sides(
    experiment: Experiment, records: Records
) -> Iterator[tuple[Claim, str, Variant, Variant]]:
    """Every claim in each of its settings, and the two variants that it speaks of."""
    for claim in experiment.claims:
        for dataset, split in dict.fromkeys((v.dataset, v.split) for v in records):
            for setting in claim.settings:
                better, worse = claim.sides(dataset, setting, split)
                if better in records and worse in records:
                    yield claim, f"{dataset}, {setting}", better, worse


def _judged_sides(
    experiment: Experiment, records: Records
) -> list[tuple[tuple[Claim, str, Variant, Variant], Judgement]]:
    """The claims that records speak of, with what became of each; all are judged together."""
    sides = list(claim_sides(experiment, records))
    judgements = judge([records[b].ahead_of(records[w], c.measure) for c, _, b, w in sides])
    return list(zip(sides, judgements, strict=True))


def claim_rows(experiment: Experiment, records: Records) -> list[list[str]]:
    """What is claimed, by how much it holds here, and the verdict; all are judged together."""
    return [
        [
            *(claim.text, setting, number(claim.measure, one.differences, sign=True)),
            f"{sum(d > 0 for d in one.differences)} of {len(one.differences)}",
            *(*describe_judgement(claim.measure, one), one.verdict),
        ]
        for (claim, setting, _, _), one in _judged_sides(experiment, records)
    ]


def plain_claims(experiment: Experiment, records: Records) -> list[dict[str, Any]]:
    """The claims and what became of each, as plain values."""
    return [
        {
            "claim": claim.text,
            "setting": setting,
            "better": better.title,
            "worse": worse.title,
            "measure": claim.measure,
            **asdict(one),
        }
        for (claim, setting, better, worse), one in _judged_sides(experiment, records)
    ]


PAPER_CLAIM_HEADINGS = (
    *("claim", "setting", "difference in its favour", "seeds that agree"),
    *(*JUDGEMENT_HEADINGS, "verdict"),
)


def claims_table(experiment: Experiment, records: Records) -> Table:
    """The verdicts, for the terminal."""
    title, rows = f"{experiment.name}: {experiment.title}", claim_rows(experiment, records)
    return text_table(title, PAPER_CLAIM_HEADINGS, rows, words=("claim", "setting", "verdict"))


def write_experiment(experiment: Experiment, records: Records, command: str, folder: Path) -> Path:
    """The figure, the tables and the verdicts as one Markdown page; returns its path."""
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
    rows = claim_rows(experiment, records)
    seeds = min(len(record.runs) for record in records.values())
    lines += [*markdown_table(PAPER_CLAIM_HEADINGS, rows), "", how_to_read(seeds, len(rows)), ""]
    page.write_text("\n".join(lines), "utf-8")
    return page
