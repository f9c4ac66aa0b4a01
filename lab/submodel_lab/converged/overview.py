"""All claims in one picture: every difference with its interval, and what others printed of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from submodel.experiments import HOLDS, REVERSED, spread
from submodel.presentation import (
    DOUBLE,
    FRAME,
    GROUND,
    INK,
    LINES,
    SMALL_TEXT,
    markdown_table,
    new_figure,
    save_figure,
    with_style,
)
from submodel_lab.converged.claims import (
    CITED_SOURCES,
    CLAIM_HEADINGS,
    ContrastClaim,
    published_differences,
    words_of_state,
)
from submodel_lab.converged.report import base_measure
from submodel_lab.converged.settings import SETTINGS

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot
    from matplotlib.figure import Figure

_ROW, _BELOW = 0.152, 0.75  # inches: of a line of text, and for the scale and what marks mean
_MARK = 3.4  # points
_LINEAR = 5  # points of accuracy to either side of none
_TICKS = (2, 5, 15, 40)
_COLOURS = {HOLDS: LINES[0], REVERSED: LINES[1]}
_MARKS = dict(zip(CITED_SOURCES, ("v", "D", "s", "^"), strict=True))


def claims_lines(claims: Sequence[ContrastClaim], picture: str) -> list[str]:
    """How many hold, a figure and a table, as Markdown.

    Args:
        claims: run or not.
        picture: where the figure is, from the page.
    """
    rows = [claim.row() for claim in claims]
    return [
        words_of_state(rows),
        "",
        f"![Every claim with its interval]({picture})",
        "",
        *markdown_table(CLAIM_HEADINGS, rows),
    ]


def write_claims(claims: Sequence[ContrastClaim], folder: Path) -> Path:
    """All claims as one page with a figure; its path.

    Args:
        claims: run or not.
        folder: where the page goes.
    """
    page, picture = folder / "claims.md", folder / "claims.png"
    save_figure(draw_claims(claims), picture)
    page.write_text("\n".join(["# Claims", "", *claims_lines(claims, picture.name), ""]), "utf-8")
    return page


@with_style
def draw_claims(claims: Sequence[ContrastClaim]) -> Figure:
    """Differences of accuracy in points, claim by claim, under their questions and settings.

    Args:
        claims: those that were run are drawn; losses are left out, as their scale is another.
    """
    run_claims = [
        claim
        for claim in claims
        if claim.judgement and claim.judgement.differences
        if "loss" not in base_measure(claim.contrast.measure)
    ]
    lines = list(_lines(run_claims))
    figure = new_figure(DOUBLE, _BELOW + _ROW * len(lines))
    plot = figure.subplots()
    plot.axvline(0, color=FRAME, linewidth=0.8)
    for row, (words, claim) in enumerate(lines):
        if claim is None:
            _write_heading(plot, words, row)
        else:
            _draw_claim(plot, claim, row)
    names = {row: words for row, (words, claim) in enumerate(lines) if claim}
    plot.set_yticks(list(names), list(names.values()))
    plot.set_ylim(len(lines) - 0.4, -0.6)
    plot.tick_params("y", length=0)
    plot.grid(visible=False, axis="y")
    _scale(plot)
    _explain(figure)
    return figure


def _lines(claims: Sequence[ContrastClaim]) -> Iterator[tuple[str, ContrastClaim | None]]:
    """From top to bottom: headings, which have no claim, and claims by what tells them apart."""
    for _, of_question in groupby(claims, key=lambda claim: claim.question.name):
        group = list(of_question)
        title = group[0].question.title
        if len({(claim.contrast.better, claim.contrast.worse) for claim in group}) == 1:
            yield title, None
            for claim in group:
                yield _name(SETTINGS[claim.contrast.setting].title, claim), claim
            continue
        for setting, of_setting in groupby(group, key=lambda claim: claim.contrast.setting):
            yield f"{title}; {SETTINGS[setting].title}", None
            for claim in of_setting:
                sides = (side.title.replace(" capacities", "") for side in claim.contrast.sides)
                yield _name(" - ".join(sides), claim), claim


def _name(words: str, claim: ContrastClaim) -> str:
    measure = claim.contrast.measure
    return words if measure == "accuracy" else f"{words}; {measure}"


def _write_heading(plot: Plot, words: str, row: int) -> None:
    """Over the whole width of the figure, from its left end."""
    from matplotlib.transforms import blended_transform_factory

    place = blended_transform_factory(plot.figure.transFigure, plot.transData)
    ground = {"facecolor": GROUND, "edgecolor": "none", "pad": 0.6}
    text = plot.text(0.005, row, words, transform=place, va="center", size=SMALL_TEXT, bbox=ground)
    text.set_fontweight("bold")
    text.set_in_layout(False)


def _draw_claim(plot: Plot, claim: ContrastClaim, row: int) -> None:
    if claim.judgement is None:
        return
    mean = spread(claim.judgement.differences)[0]
    colour = FRAME if claim.is_early else _COLOURS.get(claim.judgement.verdict, FRAME)
    if claim.judgement.interval is not None:
        low, high = claim.judgement.interval
        plot.hlines(row, 100 * low, 100 * high, color=colour, linewidth=1.4)
    plot.plot([100 * mean], [row], "o", color=colour, markersize=4)
    result = " ".join(claim.row()[-4:-2]).replace(" points", "")
    plot.text(1.03, row, result, transform=plot.get_yaxis_transform(), va="center", size=SMALL_TEXT)
    for source, words in claim.published_figures.items():
        values = published_differences(words)
        (marks,) = plot.plot(values, [row] * len(values), linestyle="", marker=_MARKS[source])
        marks.set(markersize=_MARK, markerfacecolor=GROUND, markeredgecolor=INK)


def _scale(plot: Plot) -> None:
    """Differences of one point and of forty are both to be seen."""
    plot.set_xscale("symlog", linthresh=_LINEAR, linscale=1.0)
    reach = [n for n in _TICKS if n <= max(map(abs, plot.get_xlim()))]
    plot.set_xticks([*(-n for n in reversed(reach)), 0, *reach])
    plot.xaxis.set_major_formatter(lambda value, _: f"{value:+.0f}" if value else "0")
    plot.minorticks_off()
    plot.set_xlabel(f"points of accuracy in its favour (logarithmic beyond {_LINEAR})")


def _explain(figure: Figure) -> None:
    """What colours and marks mean, below the picture."""
    from matplotlib.lines import Line2D

    verdicts = {**_COLOURS, "undecided, or seeds are missing": FRAME}
    lines = [
        Line2D([], [], color=c, marker="o", markersize=4, label=w) for w, c in verdicts.items()
    ]
    lines += [
        Line2D([], [], linestyle="", marker=mark, markersize=_MARK, label=f"{source}, as printed",
               markerfacecolor=GROUND, markeredgecolor=INK)
        for source, mark in _MARKS.items()
    ]  # fmt: skip
    figure.legend(handles=lines, loc="outside lower center", ncols=4, fontsize=SMALL_TEXT)
