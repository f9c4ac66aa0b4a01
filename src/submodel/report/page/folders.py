"""What a folder holds: a run, a comparison, a reproduction or studies, each read its own way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from submodel.errors import SubmodelError
from submodel.experiments.comparison.findings import Findings
from submodel.experiments.records import COMPARISON_FILE, VariantRecord, record_files
from submodel.extensions import FROM_LAB
from submodel.report.page.record import runs_of_record
from submodel.report.page.run import read_run
from submodel.report.page.sections import page_sections
from submodel.report.page.types import PageRun, PageStudy, PageTable


@dataclass
class Contents:
    """All that some folders hold."""

    runs: list[PageRun] = field(default_factory=list)
    studies: list[PageStudy] = field(default_factory=list)
    tables: list[PageTable] = field(default_factory=list)
    words: list[str] = field(default_factory=list)  # budgets, commands
    commands: list[str] = field(default_factory=list)


def read_folders(paths: Sequence[Path]) -> Contents:
    """What some folders hold, in their order.

    Args:
        paths: folders of runs, comparisons, reproductions and studies.
    """
    contents = Contents()
    for path in paths:
        _read(path, contents)
    return contents


def _read(path: Path, contents: Contents) -> None:
    if not path.is_dir():
        raise SubmodelError(f"{path}: no such folder")
    if (path / "config.toml").is_file():
        contents.runs.append(read_run(path))
        return
    for folder in (path, path / "records"):
        runs = folder.parent / "runs" if folder.name == "records" else None
        if (folder / COMPARISON_FILE).is_file():
            _read_comparison(folder, runs, contents)
            return
        if files := _records(folder):
            _read_reproduction(folder, files, runs, contents)
            return
    sections = page_sections()
    if studies := [study for section in sections for study in section.studies(path)]:
        contents.studies += studies
        return
    if folders := sorted(file.parent for file in path.glob("runs/*/seed-*/config.toml")):
        contents.runs += map(read_run, folders)  # it has begun, and nothing is recorded yet
        return
    raise SubmodelError(
        f"{path}: not the folder of a run (config.toml), a comparison or reproduction (records) "
        f"or a study (NAME.json, NAME-claims.csv{'' if sections else f', which {FROM_LAB}'})"
    )


def _records(folder: Path) -> list[Path]:
    """Those of a folder that say so themselves: studies write JSON, too."""
    return [file for file in record_files(folder) if '"slug"' in _beginning(file)]


def _beginning(file: Path) -> str:
    with file.open("rb") as content:
        return content.read(200).decode("utf-8", errors="replace")


def _read_comparison(folder: Path, runs: Path | None, contents: Contents) -> None:
    findings = Findings.read(folder)
    for way in findings.ways:
        contents.runs += runs_of_record(way.record, way.title, runs)
    contents.words.append(findings.budget)
    contents.commands.append(findings.command)


def _read_reproduction(
    folder: Path, files: Sequence[Path], runs: Path | None, contents: Contents
) -> None:
    records = {file.stem: VariantRecord.read(file) for file in files}
    sections = page_sections()
    titles: dict[str, str] = {}
    for section in sections:
        titles.update(section.titles(records))
    for slug, record in records.items():
        contents.runs += runs_of_record(record, titles.get(slug, slug), runs)
    for section in sections:
        contents.tables += section.tables(folder, records)
