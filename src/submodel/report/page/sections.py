"""Sections of a page that other packages add, for folders that their commands wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from submodel.experiments.records import VariantRecord
from submodel.extensions import PAGE_SECTIONS, extensions, load_extension
from submodel.report.page.types import PageStudy, PageTable


class PageSection(Protocol):
    """A module or an object with these three functions."""

    def titles(self, records: Mapping[str, VariantRecord]) -> Mapping[str, str]:
        """Return names of records for tables and legends, by slug."""

    def tables(self, folder: Path, records: Mapping[str, VariantRecord]) -> Sequence[PageTable]:
        """Return tables that the records of a folder give rise to."""

    def studies(self, folder: Path) -> Sequence[PageStudy]:
        """Return the studies that a folder holds; none where it holds something else."""


def page_sections() -> list[PageSection]:
    """Return the sections of all installed packages."""
    return [load_extension(entry) for entry in extensions(PAGE_SECTIONS).values()]
