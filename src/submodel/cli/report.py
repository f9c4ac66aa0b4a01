"""A page of runs, comparisons, studies and reproductions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from submodel.cli import completion
from submodel.cli.base import AsJson
from submodel.cli.json_output import print_json


def report_command(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            help="Of runs, comparisons, reproductions, studies: several are compared.",
            autocompletion=completion.run_folders,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Default: report.html in the folder; of several, right here."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write one HTML page that shows and compares what was trained.

    It is one file, and needs no network.

    Examples:
        submodel report runs/digits
        submodel report runs/rolling runs/static --out compared.html
    JSON:
        page: the file
    """
    from submodel.report.page import write_report

    file = write_report(*folders, out=out)
    if as_json:
        print_json({"page": file})
    else:
        print(file)
