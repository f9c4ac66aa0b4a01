"""Folders of runs, comparisons, reproductions and studies as the data of a page."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from submodel.errors import SubmodelError
from submodel.experiments.findings import Findings
from submodel.experiments.records import VariantRecord
from submodel.extensions import FROM_LAB, PAGE_SECTIONS, extensions, load_extension
from submodel.report.grouping import describe_repeats, find_results, way_of
from submodel.report.page.details import coverages, partitions
from submodel.report.page.runs import read_run, runs_of_record
from submodel.report.page.standing import group_runs, label_of, measures_of, standings
from submodel.report.page.types import PageRun, PageSection, PageStudy, PageTable
from submodel.report.page.words import sentence, title_of

_FORMAT = 1
_MOST_NAMES = 3  # of runs, in a warning
_PACKAGES = ("submodel", "torch", "numpy")


def page_data(paths: Sequence[str | Path], *, details: bool = True) -> dict[str, Any]:
    """Read what a page shows of some folders, as plain values for JSON.

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
        "title": title_of(runs, contents.studies, groups),
        "sentence": sentence(runs, contents.studies, groups, by),
        "words": contents.words,
        "commands": contents.commands,
        "runs": [asdict(run) for run in runs],
        "groups": [asdict(group) for group in groups],
        "measures": [asdict(measure) for measure in measures_of(runs)],
        "standings": [{"label": label_of(s.measure), **asdict(s)} for s in by],
        "tables": [asdict(table) for table in contents.tables],
        "studies": [asdict(study) for study in contents.studies],
        "coverage": coverages(runs, groups) if details else None,
        "partitions": [asdict(p) for p in partitions(runs)] if details else None,
        "warnings": _warnings(contents),
        "versions": {
            "Python": platform.python_version(),
            **{name: metadata.version(name) for name in _PACKAGES},
        },
    }


@dataclass
class Contents:
    """All that some folders hold, in their order."""

    runs: list[PageRun] = field(default_factory=list)
    studies: list[PageStudy] = field(default_factory=list)
    tables: list[PageTable] = field(default_factory=list)
    words: list[str] = field(default_factory=list)  # budgets
    commands: list[str] = field(default_factory=list)


def read_folders(paths: Sequence[Path]) -> Contents:
    """Read folders of runs, comparisons, reproductions and studies."""
    contents = Contents()
    for path in paths:
        _read(path, contents)
    return contents


def _sections() -> list[PageSection]:
    """The sections of all installed packages."""
    return [load_extension(entry) for entry in extensions(PAGE_SECTIONS).values()]


def _read(path: Path, contents: Contents) -> None:
    if not path.is_dir():
        raise SubmodelError(f"{path}: no such folder")
    kind, places = find_results(path) or ("", [])
    if kind == "run":
        contents.runs.append(read_run(path))
    elif kind == "comparison":
        findings = Findings.read(places[0])
        for way in findings.ways:
            contents.runs += runs_of_record(way.record, way.title, _runs_beside(places[0]))
        contents.words.append(findings.budget)
        contents.commands.append(findings.command)
    elif kind == "records":
        _read_records(places, contents)
    else:
        sections = _sections()
        if studies := [study for section in sections for study in section.studies(path)]:
            contents.studies += studies
        elif places:  # runs that have begun: nothing is recorded yet
            contents.runs += map(read_run, places)
        else:
            raise SubmodelError(
                f"{path}: not the folder of a run (config.toml), a comparison or reproduction "
                "(records) or a study (NAME.json, NAME-claims.csv"
                f"{'' if sections else f', which {FROM_LAB}'})"
            )


def _runs_beside(records: Path) -> Path | None:
    return records.parent / "runs" if records.name == "records" else None


def _read_records(files: Sequence[Path], contents: Contents) -> None:
    """The records of a reproduction, with the titles and tables that other packages add."""
    folder = files[0].parent
    records = {file.stem: VariantRecord.read(file) for file in files}
    sections = _sections()
    titles: dict[str, str] = {}
    for section in sections:
        titles.update(section.titles(records))
    for slug, record in records.items():
        contents.runs += runs_of_record(record, titles.get(slug, slug), _runs_beside(folder))
    for section in sections:
        contents.tables += section.tables(folder, records)


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
    """The first names, and how many others there are.

    >>> _names(["a", "b"]), _names(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more runs')
    """
    if len(names) <= _MOST_NAMES + 1:
        return ", ".join(names)
    return f"{', '.join(names[:_MOST_NAMES])} and {len(names) - _MOST_NAMES} more runs"
