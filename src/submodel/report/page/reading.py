"""Folders of runs, comparisons, reproductions and studies as the data of a page."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from submodel.errors import SubmodelError
from submodel.report.grouping import describe_repeats, way_of
from submodel.report.page.coverage import coverages
from submodel.report.page.folders import Contents, read_folders
from submodel.report.page.grouping import group_runs
from submodel.report.page.measures import label_of, measures_of
from submodel.report.page.partition import partition_of
from submodel.report.page.standing import standings
from submodel.report.page.types import PagePartition, PageRun
from submodel.report.page.words import sentence, title_of
from submodel.runs.folder import RunFolder

_FORMAT = 1
_MOST_PARTITIONS = 4
_MOST_NAMES = 3  # of runs, in a warning
_PACKAGES = ("submodel", "torch", "numpy")


def page_data(paths: Sequence[str | Path], *, details: bool = True) -> dict[str, Any]:
    """What a page shows of some folders, as plain values for JSON.

    Args:
        paths: folders of runs, comparisons (`submodel compare --out`), reproductions
            (`submodel reproduce --out`) and studies (`submodel study --out`), in any mixture.
        details: also what takes a second or more, as who held what of the model; a page that is
            brought up to date every few seconds does without.
    """
    if not paths:
        raise SubmodelError("a page needs at least one folder")
    contents = read_folders([Path(path) for path in paths])
    runs, groups = contents.runs, group_runs(contents.runs)
    by = standings(runs, groups)
    return {
        "format": _FORMAT,
        "title": title_of(contents, groups),
        "sentence": sentence(contents, groups, by),
        "words": contents.words,
        "commands": contents.commands,
        "runs": [asdict(run) for run in runs],
        "groups": [asdict(group) for group in groups],
        "measures": [asdict(measure) for measure in measures_of(runs)],
        "standings": [{"label": label_of(s.measure), **asdict(s)} for s in by],
        "tables": [asdict(table) for table in contents.tables],
        "studies": [asdict(study) for study in contents.studies],
        "coverage": coverages(runs, groups) if details else None,
        "partitions": [asdict(p) for p in _partitions(runs)] if details else None,
        "warnings": _warnings(contents),
        "versions": {
            "Python": platform.python_version(),
            **{name: metadata.version(name) for name in _PACKAGES},
        },
    }


def _partitions(runs: Sequence[PageRun]) -> list[PagePartition]:
    """Who has what: once for runs that share data, clients and seed."""
    places: dict[tuple[str, ...], list[int]] = {}
    for place, run in enumerate(runs):
        keys = ("data.", "clients.count")
        data_settings = [f"{k}={v}" for k, v in run.settings.items() if k.startswith(keys)]
        if run.path:
            places.setdefault(tuple(data_settings), []).append(place)
    shown_places = list(places.values())[:_MOST_PARTITIONS]
    return [partition_of(RunFolder(Path(runs[p[0]].path)), p) for p in shown_places]


def _warnings(contents: Contents) -> list[str]:
    """What a reader should know before anything else."""
    warnings, names_by_text = list[str](), dict[str, list[str]]()
    for run in contents.runs:
        name = run.path or run.name
        for text in run.warnings:
            names_by_text.setdefault(text, []).append(name)
    warnings += describe_repeats(
        (run.path or run.name, (run.title, run.seed, way_of(run.settings))) for run in contents.runs
    )
    warnings += [_names(names) + f": {text}" for text, names in names_by_text.items()]
    for study in contents.studies:
        warnings += [
            f"{study.name}: trials disagree with exact values: {f}" for f in study.failures
        ]
    return warnings


def _names(names: Sequence[str]) -> str:
    """Those of runs of which the same is said: the first ones, and how many others.

    >>> _names(["a", "b"]), _names(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more runs')
    """
    if len(names) <= _MOST_NAMES + 1:
        return ", ".join(names)
    return f"{', '.join(names[:_MOST_NAMES])} and {len(names) - _MOST_NAMES} more runs"
