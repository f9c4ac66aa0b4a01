"""Reading what figures show: folders of runs, of comparisons and of reproductions."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from submodel.config.reading import MOST_BYTES
from submodel.errors import SubmodelError
from submodel.experiments.comparison.findings import Findings
from submodel.experiments.records import COMPARISON_FILE, VariantRecord, record_files
from submodel.files import UnreadableError, read_text
from submodel.presentation.labels import short_label
from submodel.report.grouping import WayKey, describe_repeats, spell_settings, way_of
from submodel.report.plots.series import Rounds, Series, labels_of, rows_of_run
from submodel.runs.folder import RunFolder

_RECORDS = "records"
_log = logging.getLogger(__name__)


def read_series(paths: Sequence[Path]) -> list[Series]:
    """Everything that some folders hold, by way to train; the seeds of one way together.

    Args:
        paths: Of runs, of folders of runs, of comparisons and of reproductions.
    """
    series: list[Series] = []
    rows_by_way: dict[WayKey, list[Rounds]] = {}
    seeds: list[tuple[str, tuple[WayKey, str | None]]] = []
    for path in paths:
        if (index := _index_of(path)) is not None:
            findings = Findings.read(index.parent)
            series += [
                Series(short_label(way.title), [run.lines for run in way.record.runs])
                for way in findings.ways
            ]
        elif files := _records_of(path):
            records = [VariantRecord.read(file) for file in files]
            series += [Series(one.slug, [run.lines for run in one.runs]) for one in records]
        else:
            for folder in _runs_of(path):
                settings = spell_settings(_values(folder))
                way = way_of(settings)
                seeds.append((str(folder.path), (way, settings.get("seed"))))
                rows_by_way.setdefault(way, []).append(_rows(folder))
    for repeat in describe_repeats(seeds):
        _log.warning(repeat)
    labels = labels_of(list(rows_by_way))
    both = zip(labels, rows_by_way.values(), strict=True)
    return [*series, *(Series(label, runs) for label, runs in both)]


def _index_of(path: Path) -> Path | None:
    """The file that lists the ways of a comparison."""
    places = (path / COMPARISON_FILE, path / _RECORDS / COMPARISON_FILE)
    return next((place for place in places if place.is_file()), None)


def _records_of(path: Path) -> list[Path]:
    """The files of a reproduction, one for each variant."""
    if path.is_file() and path.suffix == ".json":
        return [path]
    if (path / "config.toml").is_file():
        return []
    folder = path / _RECORDS if (path / _RECORDS).is_dir() else path
    return record_files(folder)


def _runs_of(path: Path) -> list[RunFolder]:
    """A run, or all those that a folder has."""
    if (path / "config.toml").is_file():
        return [RunFolder(path)]
    folders = sorted(file.parent for file in path.glob("*/config.toml"))
    if not folders:
        raise SubmodelError(f"{path}: neither a run, nor a comparison, nor a reproduction")
    return [RunFolder(folder) for folder in folders]


def _rows(folder: RunFolder) -> Rounds:
    rows = rows_of_run(folder.metrics())
    if not rows:
        raise SubmodelError(f"{folder.path}: the run has no round yet")
    return rows


def _values(folder: RunFolder) -> dict[str, Any]:
    """As it is written: reading is fast, and whose components it names need not be there."""
    try:
        return tomllib.loads(read_text(folder.config_file, MOST_BYTES))
    except (UnreadableError, tomllib.TOMLDecodeError) as error:
        raise SubmodelError(f"{folder.config_file}: not a configuration ({error})") from None
