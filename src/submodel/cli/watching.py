"""Commands that read runs: runs, watch and report."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from submodel.cli import completion
from submodel.cli.common import AsJson, console, print_json
from submodel.core.errors import ConfigError, SubmodelError, plain
from submodel.report.plots.figure_kinds import FIGURES, find_figure

_FOLDER = Path("runs")


def runs_command(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FOLDER...]",
            help="Folders to search (default: runs).",
            autocompletion=completion.run_folders,
        ),
    ] = None,
    sort: Annotated[
        str,
        typer.Option(
            help="Order by changed, name, state, rounds, accuracy, loss, scheme, data, model, "
            "traffic or took; latest, best or most first."
        ),
    ] = "changed",
    reverse: Annotated[bool, typer.Option("--reverse", help="Reverse the order.")] = False,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE|TEXT",
            help="Filter: state=stopped, scheme=r*, local.lr=0.1, or a text; repeatable.",
        ),
    ] = None,
    all_runs: Annotated[
        bool, typer.Option("--all", help="Include the runs of comparisons and reproductions.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List runs and experiments with their states and scores.

    A comparison or reproduction is one line; --all lists its runs as well.

    Examples:
        submodel runs
        submodel runs --sort accuracy --where scheme=rolling
        submodel runs runs/compare-digits --where state=stopped --json
    JSON:
        runs: for each its path, kind, state, rounds, scores, scheme, data, model, traffic, time
    """
    from submodel.comparison.outline import find_outlines, is_experiment
    from submodel.report.listing import (
        Outline,
        list_table,
        plain_row,
        rows_of,
        select_rows,
        sort_rows,
    )
    from submodel.runs.outline import LockTable

    places, locks = folders or [_FOLDER], LockTable.read()
    rows: list[Outline] = []
    for place in places:
        if not place.is_dir():
            raise SubmodelError(f"{place}: no such folder")
        with_runs = all_runs or is_experiment(place)
        for outline in find_outlines(place, locks):
            rows.extend(rows_of(outline, with_runs))
    rows = sort_rows(select_rows(rows, where or []), sort, reverse)
    if as_json:
        print_json({"runs": [plain_row(row) for row in rows]})
        return
    if not rows:
        these = " ".join(plain(place, 200) for place in places)
        print(f"no matching runs in {these}" if where else f"no runs in {these}")
        return
    base = places[0] if len(places) == 1 else Path()
    console.print(list_table(rows, base, time.time(), console))
    for row in rows:
        if row.reason and row.phase == "failed":
            console.print(f"{plain(row.path, 200)} failed: {row.reason}")


def watch_command(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|EXPERIMENT",
            help="Folder; it need not exist yet.",
            autocompletion=completion.run_folders,
        ),
    ],
    once: Annotated[bool, typer.Option("--once", help="Show the state, then exit.")] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Serve a live page for browsers on this machine.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(help="Port of --web (default: a free one).", min=0, max=65535)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Watch a run or an experiment until it is finished.

    Ctrl-C ends the command, not the run. A pipe gets a line for every evaluated round, or for every
    finished run of an experiment. --json prints the present state once.

    Examples:
        submodel watch runs/digits
        submodel watch runs/compare-digits --once
        submodel watch runs/digits --web --port 8080
        submodel watch runs/digits --json
    JSON:
        path, kind, state, reason, changed: folder, kind, state with its reason and its time
        scheme, data, model: names of a run's scheme, data and model
        rounds, rounds_planned: finished and planned rounds of a run
        runs, runs_planned: finished and planned runs of an experiment
        test_*: scores of a run after the last evaluated round
        traffic, seconds: bytes and time so far; of an experiment, sums over its runs
        seconds_left: estimate from the pace so far; null if unknown
        last_round: last line of a run's metrics.jsonl; null before the first
        devices: devices of a run over Flower, each with its name, is_present and problem
        warnings: last warnings of the server of a run over Flower
        begun_runs: begun runs of an experiment, as in submodel runs --json
    """
    if port is not None and not web:
        raise ConfigError("--port: goes with --web")
    if once and web:
        raise ConfigError("--once: does not go with --web; 'submodel report' writes a page")
    if as_json and web:
        raise ConfigError("--json: does not go with --web")
    if path.exists() and not path.is_dir():
        raise SubmodelError(f"{path}: not a folder")
    if as_json:
        from submodel.report.live.following import snapshot

        print_json(snapshot(path))
        return
    if web:
        from submodel.report.live.web import serve_page

        serve_page(path, port or 0, lambda text: print(text, flush=True))
        return
    from submodel.report.live import terminal

    if once:
        terminal.show_once(path, console)
        return
    with contextlib.suppress(KeyboardInterrupt):
        terminal.watch(path, console)


def report_command(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            help="Folders of runs, comparisons, reproductions or studies; several are compared.",
            autocompletion=completion.run_folders,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File to write (default: report.html in the folder, or here for several folders; "
            "of a figure NAME.png here).",
        ),
    ] = None,
    file_format: Annotated[
        Literal["html", "png", "svg", "pdf"] | None,
        typer.Option(
            "--format", help="A page, or a figure for a paper (default: the ending of --out)."
        ),
    ] = None,
    figure: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Figure to draw instead of a page (default: accuracy): {', '.join(FIGURES)}.",
            autocompletion=completion.figures,
        ),
    ] = None,
    column: Annotated[
        Literal["single", "double"] | None,
        typer.Option(help="Width of a figure: 3.3 or 6.9 inches (default: double)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a page or a figure that shows and compares runs.

    The page is one HTML file that needs no network. A figure has the width of a paper's column;
    the seeds of one configuration become one band.

    Examples:
        submodel report runs/digits
        submodel report runs/rolling runs/static --out compared.html
        submodel report runs/digits --format pdf
        submodel report runs/* --figure traffic --column single --out traffic.svg
    JSON:
        page: the file of a page
        figure: the file of a figure, instead of page
    """
    is_picture = file_format not in (None, "html")
    ends_as_picture = out is not None and out.suffix.lower() in (".png", ".svg", ".pdf")
    if is_picture or figure is not None or (file_format is None and ends_as_picture):
        if file_format == "html":
            raise ConfigError("--figure: goes with --format png, svg or pdf")
        draw_figure(figure or "accuracy", folders, file_format, out, column or "double", as_json)
        return
    if column is not None:
        raise ConfigError("--column: goes with a figure, --format png, svg or pdf")
    from submodel.report.page import write_report

    file = write_report(*folders, out=out)
    if as_json:
        print_json({"page": file})
    else:
        print(file)


def draw_figure(
    name: str,
    folders: Sequence[Path],
    file_format: str | None,
    out: Path | None,
    column: str,
    as_json: bool,
) -> None:
    """Draw a figure of runs and print its file.

    Args:
        name: one of `FIGURES`.
        folders: runs, comparisons or reproductions.
        file_format: png, svg or pdf; None for the ending of the file.
        out: file to write; None for the figure's name here, by default as png.
        column: single or double.
        as_json: print one JSON object.
    """
    kind = find_figure(name)
    if not folders:
        raise ConfigError(f"give a run: submodel report runs/digits --figure {name}")
    from submodel.drawing.style import DOUBLE, SINGLE, format_of, save_figure

    path = out or Path(f"{name}.{file_format or 'png'}")
    if file_format is not None and format_of(path) != file_format:
        raise ConfigError(f"--format {file_format}: --out {path} ends otherwise")
    format_of(path)
    figure = kind.draw(kind.read(folders), SINGLE if column == "single" else DOUBLE)
    save_figure(figure, path, dpi=300)
    if as_json:
        print_json({"figure": path})
    else:
        print(path)
