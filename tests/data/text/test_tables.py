"""Text in a column of a table: one text or one per client, and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from submodel.core.errors import ConfigError, DataError
from tests.support.text import load_text, text_of

ROWS: list[dict[str, Any]] = [
    {"who": who, "said": f'{who} said "{number}", and\nthen, nothing', "number": number}
    for number in range(60)
    for who in ("bob", "alice")
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBMODEL_DATA", str(tmp_path / "cache"))


def write(path: Path, rows: list[dict[str, Any]], suffix: str) -> Path:
    """Write rows as a table."""
    file = path / f"rows{suffix}"
    if suffix == ".jsonl":
        file.write_text("\n".join(map(json.dumps, rows)))
    elif suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), file)
    else:
        cells = [[str(value).replace('"', '""') for value in row.values()] for row in rows]
        lines = [",".join(f'"{cell}"' for cell in row) for row in cells]
        file.write_text("\n".join([",".join(rows[0]), *lines]) + "\n")
    return file


SUFFIXES = pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])


@SUFFIXES
def test_a_column_is_one_text_of_a_line_for_every_row(suffix: str, tmp_path: Path) -> None:
    data = load_text(write(tmp_path, ROWS, suffix), column="said")
    assert data.owners is None
    assert text_of(data, "train") + text_of(data, "test") == "".join(f"{r['said']}\n" for r in ROWS)


@SUFFIXES
def test_a_column_of_clients_says_whose_texts_are(suffix: str, tmp_path: Path) -> None:
    data = load_text(write(tmp_path, ROWS, suffix), column="said", client="who")
    assert data.owners is not None
    assert data.owners.names == ("alice", "bob")
    for number, name in enumerate(data.owners.names):
        text = "".join(f"{row['said']}\n" for row in ROWS if row["who"] == name)
        assert text_of(data, "train", number) + text_of(data, "test", number) == text


@SUFFIXES
def test_a_column_that_is_not_there_is_named_with_those_that_are(
    suffix: str, tmp_path: Path
) -> None:
    path = write(tmp_path, ROWS, suffix)
    with pytest.raises(ConfigError, match=r"^data\.column: .*'text'.* who, said, number"):
        load_text(path, column="text")
    with pytest.raises(ConfigError, match=r"^data\.client: .*'name'.* who, said, number"):
        load_text(path, column="said", client="name")
    with pytest.raises(ConfigError, match=r"^data\.column: .*rows"):
        load_text(path)


@SUFFIXES
def test_a_row_without_text_or_client_is_an_error_with_its_number(
    suffix: str, tmp_path: Path
) -> None:
    empty = "" if suffix == ".csv" else None
    rows = [*ROWS[:2], {"who": "bob", "said": empty, "number": 1}]
    with pytest.raises(DataError, match="row 3: said"):
        load_text(write(tmp_path, rows, suffix), column="said")
    rows = [*ROWS[:3], {"who": empty, "said": "something", "number": 1}]
    with pytest.raises(DataError, match="row 4: who"):
        load_text(write(tmp_path, rows, suffix), column="said", client="who")


def test_what_is_no_text_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for content, expected in {
        '{"said": NaN}': "row 1: said is empty",
        '{"said": "a"}\n{"said": 3}': "row 2: said .*3",
        '{"said": "a\\ud800"}': "row 1: said .*character",
        '{"said": "a"}\n{"said"': "line 2 .*JSON",
        '["said"]': "line 1 .*object",
        "[" * 100_000: "line 1 .*JSON",
        "": "rows.jsonl: .*no text",
    }.items():
        path.write_text(content)
        with pytest.raises(DataError, match=expected):
            load_text(path, column="said")


def test_a_client_without_a_name_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for value in ('""', "true", "[1]", "1.5"):
        path.write_text(f'{{"said": "a", "who": {value}}}')
        with pytest.raises(DataError, match=r"row 1: who .*name .*number"):
            load_text(path, column="said", client="who")


def test_a_csv_file_that_is_damaged_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    for content, expected in {
        "who,said\nbob,one\nalice\n": "row 2 .*1.*2",
        "said,said\na,b\n": "two columns",
        'said\n"abc': "rows.csv: .*read",
    }.items():
        path.write_text(content)
        with pytest.raises(DataError, match=expected):
            load_text(path, column="said")


def test_a_long_cell_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    text = "ab" * 200_000  # more than the default of Python's csv
    path.write_text(f"said\n{text}\n")
    data = load_text(path, column="said")
    assert text_of(data, "train") + text_of(data, "test") == f"{text}\n"


def test_a_parquet_file_that_is_none_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1 but no more")
    with pytest.raises(DataError, match=r"rows.parquet: .*read"):
        load_text(path, column="said")
    with pytest.raises(ConfigError, match=r"^data\.encoding"):
        load_text(write(tmp_path, ROWS, ".parquet"), column="said", encoding="latin-1")
