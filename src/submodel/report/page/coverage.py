"""Who held what of the model, for the coverage of a page: one run of every group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from submodel.config import Config
from submodel.errors import SubmodelError, plain
from submodel.report.coverage import coverage_of
from submodel.report.page.partition import out_of_reach
from submodel.report.page.types import PageGroup, PageRun
from submodel.runs.folder import RunFolder
from submodel.runs.holdings_file import read_model_outline

_MOST = 8  # groups
_MOST_CHARACTERS = 2_500_000  # of all together
_PAGE = 3_900_000  # characters of curves and coverage; the charting library is 700,000 more


def coverages(runs: Sequence[PageRun], groups: Sequence[PageGroup]) -> list[dict[str, Any]]:
    """The coverage of the first run of each group, or the reason why it is not told.

    Those that would make a page too large to be sent around are left out.

    Args:
        runs: all of a page.
        groups: of these.
    """
    results: list[dict[str, Any]] = []
    tables = [table for run in runs for table in (run.every, run.scores)]
    curves = sum(len(column) for t in tables for column in t.values() if isinstance(column, str))
    room = min(_MOST_CHARACTERS, _PAGE - curves)
    for group in groups[:_MOST]:
        run = runs[group.runs[0]]
        if not run.path:
            continue
        title = f"{group.label}, seed {run.seed}" if len(groups) > 1 else group.label
        content = _coverage(RunFolder(Path(run.path)))
        room -= sum(len(g["cells"]) for axis in content.get("axes", ()) for g in axis["holders"])
        if room > 0:
            results.append({"title": title, **content})
    return results


def _coverage(folder: RunFolder) -> dict[str, Any]:
    try:
        if reason := _too_dear(folder, folder.config()):
            return {"reason": f"Not shown: {reason}."}
        return coverage_of(folder.path).json()
    except (SubmodelError, OSError) as error:
        return {"reason": f"Not shown: {plain(error)}"}


def _too_dear(folder: RunFolder, config: Config) -> str:
    """Why the model is not made again to look at it; empty where it need not, or can be."""
    is_known = read_model_outline(folder.outline_file) is not None
    return "" if is_known else out_of_reach(config)
