"""Saying what came out: figures with bands, tables beside the paper's numbers, claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes as Plot
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from submodel.experiments.paper.plans import Experiment, Variant
from submodel.experiments.records import Comparison, Record, spread

Records = Mapping[Variant, Record]
_CURVES = {"loss": "test loss (global model)", "accuracy": "test accuracy (global model)"}
_GAPS = {"loss gap": "|test - train| loss", "accuracy gap": "|test - train| accuracy"}
_PERCENT = ("accuracy", "train accuracy", "accuracy gap")


def _settings(records: Records) -> list[tuple[tuple[str, str], list[Variant]]]:
    """Dataset and heterogeneity -> their variants, in order."""
    found = groupby(records, key=lambda v: (v.dataset, v.heterogeneity))
    return [(setting, list(variants)) for setting, variants in found]


def draw(experiment: Experiment, records: Records, path: Path) -> None:
    """One PNG: a row per setting."""
    settings = _settings(records)
    measures = _GAPS if experiment.gaps else _CURVES
    figure = Figure(figsize=(13, 3.6 * len(settings)), layout="constrained")
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
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _draw_curves(plot: Plot, variants: Sequence[Variant], records: Records, measure: str) -> None:
    for variant in variants:
        rounds, values = records[variant].curve(measure)
        table = np.asarray(values)
        (line,) = plot.plot(rounds, table.mean(0), label=variant.title, linewidth=1.5)
        lower, upper = table.min(0), table.max(0)
        plot.fill_between(rounds, lower, upper, color=line.get_color(), alpha=0.15, linewidth=0)
    plot.set_xlabel("round (line: mean over seeds, band: least to most)")
    plot.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))


def _draw_points(plot: Plot, variants: Sequence[Variant], records: Records, measure: str) -> None:
    for place, variant in enumerate(variants):
        values = list(records[variant].final(measure).values())
        plot.plot([place] * len(values), values, "o", alpha=0.6, label=variant.title)
        plot.plot([place - 0.25, place + 0.25], [np.mean(values)] * 2, "k", linewidth=1.5)
    plot.set_xticks(range(len(variants)), [v.way for v in variants], rotation=20, fontsize=7)
    plot.set_ylim(bottom=0)


def number(measure: str, values: Sequence[float], sign: bool = False) -> str:
    """Mean and spread, as people read them.

    >>> number("accuracy", [0.41, 0.43]), number("loss", [1.5])
    ('42.0 % ± 1.4', '1.5000')
    """
    mean, deviation = spread(values)
    mark = "+" if sign else ""
    several = len(values) > 1
    if measure in _PERCENT:
        text = f"{100 * mean:{mark}.1f}{' points' if sign else ' %'}"
        return f"{text} ± {100 * deviation:.1f}" if several else text
    return f"{mean:{mark}.4f}" + (f" ± {deviation:.4f}" if several else "")


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table as the lines of a Markdown page."""
    yield "| " + " | ".join(headings) + " |"
    yield "|" + " --- |" * len(headings)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def result_table(records: Records) -> Iterator[str]:
    """Every variant after its last round, as Markdown."""
    trained = all("train_eval_loss" in r.runs[0].lines[-1] for r in records.values())
    measures = ["accuracy", "loss"]
    measures += ["train accuracy", "train loss", "accuracy gap", "loss gap"] if trained else []
    rows = [
        [v.dataset, v.heterogeneity, v.title]
        + [number(m, list(record.final(m).values())) for m in measures]
        for v, record in records.items()
    ]
    names = {"accuracy": "test accuracy", "loss": "test loss"}
    headings = ["data", "heterogeneity", "way", *(names.get(m, m) for m in measures)]
    yield from markdown_table(headings, rows)


def claim_rows(experiment: Experiment, records: Records) -> list[list[str]]:
    """What is claimed, by how much it holds here, and the verdict."""
    rows = []
    for claim in experiment.claims:
        for dataset, split in dict.fromkeys((v.dataset, v.split) for v in records):
            for setting in claim.settings:
                better, worse = claim.sides(dataset, setting, split)
                if better not in records or worse not in records:
                    continue
                found = Comparison.of(records[better], records[worse], claim.measure)
                by = number(claim.measure, found.differences, sign=True)
                agree = sum(d > 0 for d in found.differences)
                seeds = f"{agree} of {len(found.differences)}"
                rows.append([claim.text, f"{dataset}, {setting}", by, seeds, found.verdict])
    return rows


_CLAIM_HEADINGS = ("claim", "setting", "difference in its favour", "seeds that agree", "verdict")


def claims_table(experiment: Experiment, records: Records) -> Table:
    """The verdicts, for the terminal."""
    table = Table(*_CLAIM_HEADINGS, title=f"{experiment.name}: {experiment.title}")
    for row in claim_rows(experiment, records):
        table.add_row(*row)
    return table


def write(experiment: Experiment, records: Records, command: str, folder: Path) -> Path:
    """The figure, the tables and the verdicts as one Markdown page; returns its path."""
    picture, page = folder / f"{experiment.name}.png", folder / f"{experiment.name}.md"
    draw(experiment, records, picture)
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
    lines += [*markdown_table(_CLAIM_HEADINGS, claim_rows(experiment, records)), ""]
    page.write_text("\n".join(lines), "utf-8")
    return page
