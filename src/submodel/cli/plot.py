"""Figures of runs, comparisons and reproductions, as a paper prints them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from submodel.cli import completion
from submodel.cli.base import AsJson
from submodel.cli.json_output import print_json
from submodel.errors import ConfigError
from submodel.report.plots.registry import FIGURES, find_figure


class FigureFormat(StrEnum):
    """What a figure is written as."""

    PNG = "png"
    SVG = "svg"
    PDF = "pdf"


class ColumnWidth(StrEnum):
    """How wide a figure is."""

    SINGLE = "single"
    DOUBLE = "double"


def plot_command(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help=f"One of {', '.join(FIGURES)}.")
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN...",
            help="Folders of runs, of 'submodel compare' or of 'submodel reproduce'; the seeds of "
            "one configuration become one band.",
            autocompletion=completion.run_folders,
        ),
    ] = None,
    file_format: Annotated[
        FigureFormat | None, typer.Option("--format", help="Default: as --out ends, else png.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file (default: NAME.png here).")] = None,
    column: Annotated[
        ColumnWidth, typer.Option(help="Of a two-column paper: 3.3 or 6.9 inches.")
    ] = ColumnWidth.DOUBLE,
    show_list: Annotated[bool, typer.Option("--list", help="Say what can be drawn.")] = False,
    as_json: AsJson = False,
) -> None:
    """Draw a figure of runs, in the width of a paper's column.

    Examples:
        submodel plot accuracy runs/digits
        submodel plot traffic runs/rolling runs/static --format pdf --column single
        submodel plot comparison runs/compare-digits --out ways.svg
        submodel plot --list
    JSON:
        figure: the file
        figures: with --list, every name and what it shows
    """
    if show_list:
        if as_json:
            print_json({"figures": {key: kind.about for key, kind in FIGURES.items()}})
            return
        width = max(map(len, FIGURES))
        for key, kind in FIGURES.items():
            print(f"{key:{width}}  {kind.about}")
        return
    if name is None:
        raise ConfigError([f"give the name of a figure: {', '.join(FIGURES)}"])
    kind = find_figure(name)
    if not runs:
        raise ConfigError([f"give the folder of a run, as: submodel plot {name} runs/digits"])
    from submodel.presentation.style import DOUBLE, SINGLE, format_of, save_figure

    path = out or Path(f"{name}.{file_format or FigureFormat.PNG}")
    if file_format is not None and format_of(path) != file_format:
        raise ConfigError([f"--format {file_format}: --out {path} ends otherwise"])
    format_of(path)
    figure = kind.draw(kind.read(runs), SINGLE if column is ColumnWidth.SINGLE else DOUBLE)
    save_figure(figure, path, dpi=300)
    if as_json:
        print_json({"figure": path})
    else:
        print(path)
