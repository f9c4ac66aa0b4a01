"""Natural clients of tables: every row is of exactly the client that its column says."""

from __future__ import annotations

import csv
import importlib
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from submodel.data import load_dataset
from submodel.errors import DataError

TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=4)
NUMERALS = st.sampled_from(["1", "01", "1.0", "1e0", "2", "nan", "None", "inf", "true"])
WHOLE = st.integers(-(2**62), 2**62) | st.sampled_from([2**53, 2**53 + 1])
NAMES: dict[str, st.SearchStrategy[Any]] = {
    "words": TEXTS,
    "numerals": NUMERALS,
    "whole numbers": WHOLE,
    "fractions": st.floats(allow_nan=False, allow_infinity=False),
    "words, some missing": TEXTS | st.none(),
    "whole numbers, some missing": WHOLE | st.none(),
}


def write_csv(path: Path, names: list[Any]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["row", "who", "target"])
        writer.writerows((i, "" if n is None else n, i / 2) for i, n in enumerate(names))


def write_parquet(path: Path, names: list[Any]) -> None:
    arrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    rows = range(len(names))
    table = {"row": list(rows), "who": names, "target": [i / 2 for i in rows]}
    parquet.write_table(arrow.table(table), path)


def write_hub(path: Path, names: list[Any]) -> None:
    datasets: Any = importlib.import_module("datasets")
    rows = range(len(names))
    table = {"row": list(rows), "who": names, "target": [i / 2 for i in rows]}
    datasets.Dataset.from_dict(table).save_to_disk(str(path))


WRITERS: dict[str, Any] = {"csv": write_csv, "parquet": write_parquet, "hf": write_hub}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("of", NAMES)
@settings(deadline=None, max_examples=12, database=None)
@given(data=st.data())
def test_a_row_is_of_the_client_of_its_column(kind: str, of: str, data: st.DataObject) -> None:
    names = data.draw(st.lists(NAMES[of], min_size=6, max_size=20))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"table.{kind}"
        WRITERS[kind](path, names)
        keys: dict[str, Any] = {"target": "target", "client": "who", "standardise": False}
        if kind == "hf":
            keys |= {"path": path, "kind": "numbers"}
        else:
            keys |= {"kind": "numbers"}
        name = "hf:x" if kind == "hf" else f"{kind}:{path}"
        blank = [n for n, value in enumerate(names) if value is None or not str(value).strip()]
        if blank:
            with pytest.raises(DataError, match=rf"'who' .*(row {blank[0] + 1}\)|no entry)"):
                load_dataset(name, **keys)
            return
        table = load_dataset(name, **keys)
    assert table.owners is not None
    rows = np.rint(np.asarray(table.train.y)[:, 0] * 2).astype(int)
    places = [table.owners.positions(client) for client in range(len(table.owners))]
    assert sorted(np.concatenate(places).tolist()) == list(range(len(rows)))
    for client, theirs in zip(table.owners.names, places, strict=True):
        assert {str(names[row]) for row in rows[theirs]} == {client}
    assert len(table.owners) == len({str(names[row]) for row in rows})
