"""Saying what came out: figures with bands, tables beside the paper's numbers, claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from submodel.experiments.paper.plans import Claim, Experiment
from submodel.experiments.paper.variants import Variant
from submodel.experiments.records import VariantRecord
from submodel.experiments.statistics import judge
from submodel.experiments.wording import JUDGEMENT_HEADINGS, describe_judgement, how_to_read, number
from submodel.presentation.figures import draw_band, new_figure, save_figure
from submodel.presentation.tables import markdown_table, text_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot

Records = Mapping[Variant, VariantRecord]
_CURVES = {"loss": "test loss (global model)", "accuracy": "test accuracy (global model)"}
_GAPS = {"loss gap": "|test - train| loss", "accuracy gap": "|test - train| accuracy"}


def _settings(records: Records) -> list[tuple[tuple[str, str], list[Variant]]]:
    """Dataset and heterogeneity -> their variants, in order."""
    groups = groupby(records, key=lambda v: (v.dataset, v.heterogeneity))
    return [(setting, list(variants)) for setting, variants in groups]


def draw_experiment(experiment: Experiment, records: Records, path: Path) -> None:
    """One PNG: a row per setting."""
    settings = _settings(records)
    measures = _GAPS if experiment.gaps else _CURVES
    figure = new_figure(13, 3.6 * len(settings))
    plots = figure.subplots(len(settings), 2, squeeze=False)
    for ((dataset, heterogeneity), variants), row in zip(settings, plots, strict=True):
        for measure, plot in zip(measures, row, strict=True):
            plot.set_title(f"{dataset}, {heterogeneity} heterogeneity", fontsize=10)
            plot.set_ylabel(measures[measure])
            if experiment.gaps:
                _draw_points(plot, variants, records, measure)
            else:
                _draw_curves(plot, variants, records, measure)
            plot.grid(alpha=0.3)
        row[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))  # beside the curves
    figure.suptitle(experiment.title)
    save_figure(figure, path)


def _draw_curves(plot: Plot, variants: Sequence[Variant], records: Records, measure: str) -> None:
    from matplotlib.ticker import MaxNLocator

    for variant in variants:
        draw_band(plot, *records[variant].curve(measure), variant.title)
    plot.set_xlabel("round (line: mean over seeds, band: least to most)")
    plot.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))


def _draw_points(plot: Plot, variants: Sequence[Variant], records: Records, measure: str) -> None:
    for place, variant in enumerate(variants):
        values = list(records[variant].final(measure).values())
        plot.plot([place] * len(values), values, "o", alpha=0.6, label=variant.title)
        plot.plot([place - 0.25, place + 0.25], [np.mean(values)] * 2, "k", linewidth=1.5)
    plot.set_xticks(range(len(variants)), [v.way for v in variants], rotation=20, fontsize=7)
    plot.set_ylim(bottom=0)


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
    """Every claim in each of its settings, and the two variants that it speaks of.

    Args:
        experiment: Whose claims.
        records: What came out, by variant; claims without are left out.
    """
    for claim in experiment.claims:
        for dataset, split in dict.fromkeys((v.dataset, v.split) for v in records):
            for setting in claim.settings:
                better, worse = claim.sides(dataset, setting, split)
                if better in records and worse in records:
                    yield claim, f"{dataset}, {setting}", better, worse


def claim_rows(experiment: Experiment, records: Records) -> list[list[str]]:
    """What is claimed, by how much it holds here, and the verdict; all are judged together.

    Args:
        experiment: Whose claims.
        records: What came out, by variant.
    """
    sides = list(claim_sides(experiment, records))
    judgements = judge([records[b].ahead_of(records[w], c.measure) for c, _, b, w in sides])
    return [
        [
            *(claim.text, setting, number(claim.measure, one.differences, sign=True)),
            f"{sum(d > 0 for d in one.differences)} of {len(one.differences)}",
            *(*describe_judgement(claim.measure, one), one.verdict),
        ]
        for (claim, setting, _, _), one in zip(sides, judgements, strict=True)
    ]


def plain_claims(experiment: Experiment, records: Records) -> list[dict[str, Any]]:
    """The claims and what became of each, as plain values.

    Args:
        experiment: Whose claims.
        records: What came out, by variant.
    """
    sides = list(claim_sides(experiment, records))
    judgements = judge([records[b].ahead_of(records[w], c.measure) for c, _, b, w in sides])
    return [
        {
            "claim": claim.text,
            "setting": setting,
            "better": better.title,
            "worse": worse.title,
            "measure": claim.measure,
            **asdict(one),
        }
        for (claim, setting, better, worse), one in zip(sides, judgements, strict=True)
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
    draw_experiment(experiment, records, picture)
    runs = [run for record in records.values() for run in record.runs]
    hours = sum(run.seconds for run in runs) / 3600
    lines = [
        f"# {experiment.name}: {experiment.title}",
        "",
        f"`{command}`: {len(runs)} runs, {hours:.2f} hours of one core in all.",
        "",
        f"![{experiment.title}]({picture.name})",
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
