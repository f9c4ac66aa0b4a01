"""Sections that the laboratory adds to pages: contrasts between records, and studies."""

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
from submodel_lab.converged.arms import SETTINGS
from submodel_lab.converged.questions import QUESTIONS
from submodel_lab.converged.report import ANSWER_HEADINGS, answer_rows
from submodel_lab.paper.experiments import DATASETS, EXPERIMENTS, PaperArm, Scale, Split
from submodel_lab.paper.report import PAPER_HEADINGS, contrast_rows
from submodel_lab.theory.results import format_number

_LARGEST = 1 << 26  # bytes of the JSON
_LARGEST_PICTURE = 1 << 20
_PNG = b"\x89PNG\r\n\x1a\n"
_DATASETS = tuple(dict.fromkeys(name for names in DATASETS.values() for name in names))
_STATEMENT_HEADINGS = (
    "statement",
    "in",
    "case",
    "quantity",
    "measured",
    "exact",
    "stated",
    "holds",
)


class _File(BaseModel):
    """Known keys in the JSON of a study; others are ignored."""

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
    """Read the studies of a folder from the files that they wrote."""
    return [read_study(path) for path in sorted(folder.glob("*.json"))
            if path.with_name(f"{path.stem}-claims.csv").is_file()]  # fmt: skip


def read_study(path: Path) -> PageStudy:
    """Read a study from its JSON."""
    content = read_typed(_FILE, path, _LARGEST, "not a study")
    headings = list(dict.fromkeys(name for row in content.rows for name in row))
    return PageStudy(
        name=content.study,
        title=content.title,
        settings={key: shorten(json.dumps(value)) for key, value in content.settings.items()},
        claims=_statement_table(content.claims),
        headings=headings,
        rows=[[_cell(row.get(name)) for name in headings] for row in content.rows],
        notes=content.notes,
        failures=content.failures,
        version=content.version,
        picture=_picture(path.with_suffix(".png")),
    )


def _statement_table(statements: Sequence[Mapping[str, Any]]) -> PageTable:
    rows = []
    for statement in statements:
        text = _number(statement.get("estimate"))
        if statement.get("low") != statement.get("high"):
            text += f" [{_number(statement.get('low'))}, {_number(statement.get('high'))}]"
        limit = statement.get("limit")
        conditions = statement.get("conditions", "met")
        rows.append(
            [
                *(
                    plain(statement.get(key, ""), 300)
                    for key in ("source", "parameter", "case", "quantity")
                ),
                text,
                _number(statement.get("exact")),
                "" if limit is None else plain(f"{statement.get('relation')} {_number(limit)}"),
                plain(statement.get("verdict", "")) + ("" if conditions == "met" else " *"),
            ]
        )
    note = "*: outside the theorem's conditions"
    return PageTable("Statements", _STATEMENT_HEADINGS, rows, note, verdicts="holds")


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
    """Return the titles of recorded arms by slug."""
    arms = {v.slug: v for name in EXPERIMENTS for v in _arms(name) if v.slug in records}
    has_several = len({arm.dataset for arm in arms.values()}) > 1
    found = {
        slug: f"{f'{v.dataset}, ' if has_several else ''}{v.heterogeneity}: {v.title}"
        for slug, v in arms.items()
    }
    for arm in (c for question in QUESTIONS.values() for c in question.arms):
        title = f"{SETTINGS[arm.setting].title}: {arm.title}"
        found[arm.slug] = title
        for capacity, slug in arm.members.items():
            found[slug] = f"{title}, {Fraction(capacity)}"
    return found


def tables(folder: Path, records: Mapping[str, ArmRecord]) -> list[PageTable]:
    """Build a table of judged contrasts for each experiment or question with records."""
    found = []
    for name, experiment in EXPERIMENTS.items():
        by_arm = {v: records[v.slug] for v in _arms(name) if v.slug in records}
        if rows := contrast_rows(experiment, by_arm):
            seeds = min(len(record.runs) for record in by_arm.values())
            title, note = f"{name}: {experiment.title}", how_to_read(seeds, len(rows))
            found.append(PageTable(title, PAPER_HEADINGS, rows, note, verdicts="verdict"))
    questions = list(QUESTIONS.values())
    results, _ = read_available(questions, folder)
    for question in questions if results else ():
        if rows := answer_rows(question, results):
            seeds = min(len(record.runs) for record in results.values())
            note = how_to_read(seeds, len(rows))
            found.append(PageTable(question.title, ANSWER_HEADINGS, rows, note, "verdict"))
    return found


def _arms(experiment: str) -> list[PaperArm]:
    return [
        arm
        for split in Split
        for arm in EXPERIMENTS[experiment].arms(Scale.SMALL, _DATASETS, split)
    ]
