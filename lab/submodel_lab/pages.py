"""The sections of a page that the laboratory adds: claims of records, and studies."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from submodel.comparison import ArmRecord, how_to_read
from submodel.core import plain, read_typed
from submodel.report import PageStudy, PageTable, finite, shorten
from submodel_lab.converged.agenda import read_available
from submodel_lab.converged.candidates import SETTINGS
from submodel_lab.converged.questions import QUESTIONS
from submodel_lab.converged.report import ANSWER_HEADINGS, answer_rows
from submodel_lab.paper.experiments import DATASETS, EXPERIMENTS, Scale, Split, Variant
from submodel_lab.paper.report import PAPER_CLAIM_HEADINGS, claim_rows
from submodel_lab.theory.results import format_number

_LARGEST = 1 << 26  # bytes of the JSON
_LARGEST_PICTURE = 1 << 20
_PNG = b"\x89PNG\r\n\x1a\n"
_DATASETS = tuple(dict.fromkeys(name for names in DATASETS.values() for name in names))
_CLAIM_HEADINGS = ("statement", "in", "case", "quantity", "measured", "exact", "stated", "holds")


class _File(BaseModel):
    """What the JSON of a study has; there may be more."""

    model_config = ConfigDict(extra="ignore")
    study: str
    title: str
    version: str = ""
    settings: dict[str, Any] = {}
    claims: list[dict[str, Any]] = []
    notes: list[str] = []
    failures: list[str] = []
    rows: list[dict[str, Any]] = []


_FILE = TypeAdapter(_File)


def studies(folder: Path) -> list[PageStudy]:
    """The studies of a folder, by the files that they wrote."""
    return [read_study(path) for path in sorted(folder.glob("*.json"))
            if path.with_name(f"{path.stem}-claims.csv").is_file()]  # fmt: skip


def read_study(path: Path) -> PageStudy:
    """A study by its JSON."""
    content = read_typed(_FILE, path, _LARGEST, "not a study")
    headings = list(dict.fromkeys(name for row in content.rows for name in row))
    return PageStudy(
        name=content.study,
        title=content.title,
        settings={key: shorten(json.dumps(value)) for key, value in content.settings.items()},
        claims=_study_claims(content.claims),
        headings=headings,
        rows=[[_cell(row.get(name)) for name in headings] for row in content.rows],
        notes=content.notes,
        failures=content.failures,
        version=content.version,
        picture=_picture(path.with_suffix(".png")),
    )


def _study_claims(claims: Sequence[Mapping[str, Any]]) -> PageTable:
    rows = []
    for claim in claims:
        text = _number(claim.get("estimate"))
        if claim.get("low") != claim.get("high"):
            text += f" [{_number(claim.get('low'))}, {_number(claim.get('high'))}]"
        limit = claim.get("limit")
        conditions = claim.get("conditions", "met")
        rows.append(
            [
                *(plain(claim.get(key, ""), 300) for key in ("source", "parameter", "case")),
                plain(claim.get("quantity", ""), 300),
                text,
                _number(claim.get("exact")),
                "" if limit is None else plain(f"{claim.get('relation')} {_number(limit)}"),
                plain(claim.get("verdict", "")) + ("" if conditions == "met" else " *"),
            ]
        )
    note = "*: outside the theorem's conditions"
    return PageTable("Statements", _CLAIM_HEADINGS, rows, note, verdicts="holds")


def _number(value: object) -> str:
    number = finite(value)
    return "" if number is None else format_number(number)


def _cell(value: object) -> float | str | None:
    number = finite(value)
    if number is not None or value is None or isinstance(value, float):
        return number
    return plain(value if isinstance(value, str) else json.dumps(value), 200)


def _picture(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_PICTURE + 1)
    except OSError:
        return ""
    if not content.startswith(_PNG) or len(content) > _LARGEST_PICTURE:
        return ""
    return "data:image/png;base64," + base64.b64encode(content).decode("ascii")


def titles(records: Mapping[str, ArmRecord]) -> dict[str, str]:
    """What the recorded variants of the paper and ways of questions are called, by their slugs."""
    variants = {v.slug: v for name in EXPERIMENTS for v in _variants(name) if v.slug in records}
    has_several = len({variant.dataset for variant in variants.values()}) > 1
    found = {
        slug: f"{f'{v.dataset}, ' if has_several else ''}{v.heterogeneity}: {v.title}"
        for slug, v in variants.items()
    }
    for candidate in (c for question in QUESTIONS.values() for c in question.candidates):
        title = f"{SETTINGS[candidate.setting].title}: {candidate.title}"
        found[candidate.slug] = title
        for capacity, slug in candidate.members.items():
            found[slug] = f"{title}, {Fraction(capacity)}"
    return found


def tables(folder: Path, records: Mapping[str, ArmRecord]) -> list[PageTable]:
    """The claims that can be judged by some records, an experiment or question each."""
    found = []
    for name, experiment in EXPERIMENTS.items():
        by_variant = {v: records[v.slug] for v in _variants(name) if v.slug in records}
        if rows := claim_rows(experiment, by_variant):
            seeds = min(len(record.runs) for record in by_variant.values())
            title, note = f"{name}: {experiment.title}", how_to_read(seeds, len(rows))
            found.append(PageTable(title, PAPER_CLAIM_HEADINGS, rows, note, verdicts="verdict"))
    questions = list(QUESTIONS.values())
    results, _ = read_available(questions, folder)
    for question in questions if results else ():
        if rows := answer_rows(question, results):
            seeds = min(len(record.runs) for record in results.values())
            note = how_to_read(seeds, len(rows))
            found.append(PageTable(question.title, ANSWER_HEADINGS, rows, note, "verdict"))
    return found


def _variants(experiment: str) -> list[Variant]:
    return [
        variant
        for split in Split
        for variant in EXPERIMENTS[experiment].variants(Scale.SMALL, _DATASETS, split)
    ]
