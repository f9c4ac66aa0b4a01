"""A study of the theory lab as a page shows it, from the JSON and the picture that it wrote."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from submodel.errors import SubmodelError, plain
from submodel.files import UnreadableError, read_typed
from submodel.report import PageStudy, PageTable, finite, shorten
from submodel_lab.theory.results import format_number

_LARGEST = 1 << 26  # bytes of the JSON
_LARGEST_PICTURE = 1 << 20
_PNG = b"\x89PNG\r\n\x1a\n"
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


def read_studies(folder: Path) -> list[PageStudy]:
    """The studies of a folder, by the files that they wrote.

    Args:
        folder: what was given as ``--out``.
    """
    return [read_study(path) for path in sorted(folder.glob("*.json"))
            if path.with_name(f"{path.stem}-claims.csv").is_file()]  # fmt: skip


def read_study(path: Path) -> PageStudy:
    """A study by its JSON.

    Args:
        path: of the file; the picture lies beside it.
    """
    try:
        content = read_typed(_FILE, path, _LARGEST)
    except UnreadableError as error:
        raise SubmodelError(f"{path}: not a study ({error})") from None
    headings = list(dict.fromkeys(name for row in content.rows for name in row))
    return PageStudy(
        name=content.study,
        title=content.title,
        settings={key: shorten(json.dumps(value)) for key, value in content.settings.items()},
        claims=_claims(content.claims),
        headings=headings,
        rows=[[_cell(row.get(name)) for name in headings] for row in content.rows],
        notes=content.notes,
        failures=content.failures,
        version=content.version,
        picture=_picture(path.with_suffix(".png")),
    )


def _claims(claims: Sequence[Mapping[str, Any]]) -> PageTable:
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
