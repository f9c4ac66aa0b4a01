"""Tables: columns become numbers by the training part alone, rows keep their owners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from submodel.data import load_dataset
from submodel.data.owners import owners_of
from submodel.data.sources.base import Encoding, SourceContext
from submodel.data.sources.table import Table, TableOptions
from submodel.errors import SubmodelError

ROWS = [
    f"{n},{'red' if n % 3 else 'blue'},{('ann', 'bob', 'cy')[n % 3]},{n * 0.5}" for n in range(40)
]
HEAD = "size,colour,who,price"


def table(folder: Path, *rows: str, head: str = HEAD, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text("\n".join([head, *(rows or ROWS)]) + "\n")
    return path


def test_numbers_are_standardised_by_the_training_part_and_words_become_columns(
    tmp_path: Path,
) -> None:
    data = load_dataset(f"csv:{table(tmp_path)}", target="price", columns=["size", "colour"])
    x = np.asarray(data.train.x)
    assert x.shape == (32, 3)
    assert abs(x[:, 0].mean()) < 1e-6
    assert x[:, 0].std() == pytest.approx(1)
    assert set(map(tuple, x[:, 1:].tolist())) == {(0.0, 1.0), (1.0, 0.0)}
    assert data.classes is None
    assert data.train.y.shape == (32, 1)


def test_a_column_names_the_clients(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"target": "price", "client": "who", "standardise": False}
    data = load_dataset(f"csv:{table(tmp_path)}", **keys)
    assert data.owners is not None
    assert data.owners.names == ("ann", "bob", "cy")
    prices = np.asarray(data.train.y)[data.owners.positions(1), 0] * 2
    assert set(prices % 3) == {1}
    assert data.inputs == (3,)  # who has a row is not told to the model


def test_a_target_of_numbers_is_standardised_and_can_be_told_in_its_own_unit(
    tmp_path: Path,
) -> None:
    path = table(tmp_path)
    plain = load_dataset(f"csv:{path}", target="price", standardise=False)
    data = load_dataset(f"csv:{path}", target="price")
    assert plain.table is not None
    assert plain.table.target is None
    assert data.table is not None
    assert data.table.target is not None
    prices = np.asarray(plain.train.y)
    assert data.table.target.mean == pytest.approx(float(prices.mean()))
    assert data.table.target.deviation == pytest.approx(float(prices.std()))
    for part, plain_part in ((data.train, plain.train), (data.test, plain.test)):
        told = np.asarray(part.y) * data.table.target.deviation + data.table.target.mean
        assert told == pytest.approx(np.asarray(plain_part.y), abs=1e-5)
    context = SourceContext(str(path), encoding=Encoding(table=data.table))
    own_rows = Table.configured(TableOptions(target="price"), context)  # of a device
    told = np.asarray(own_rows.train.y) * data.table.target.deviation + data.table.target.mean
    assert told.ravel() == pytest.approx([n * 0.5 for n in range(40)], abs=1e-5)
    with pytest.raises(SubmodelError, match=r"data\.standardise: column 'colour' holds labels"):
        load_dataset(f"csv:{path}", target="colour", standardise=True)


def test_words_and_few_whole_numbers_are_labels(tmp_path: Path) -> None:
    data = load_dataset(f"csv:{table(tmp_path)}", target="colour", columns=["size"])
    assert data.classes == 2
    assert set(data.train.y.tolist()) == {0, 1}


def test_parquet_and_csv_are_the_same_table(tmp_path: Path) -> None:
    rows = [row.split(",") for row in ROWS]
    columns = {
        "size": [int(r[0]) for r in rows], "colour": [r[1] for r in rows],
        "who": [r[2] for r in rows], "price": [float(r[3]) for r in rows],
    }  # fmt: skip
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    first = load_dataset(f"csv:{table(tmp_path)}", target="price", client="who")
    second = load_dataset(f"parquet:{tmp_path / 't.parquet'}", target="price", client="who")
    assert np.array_equal(np.asarray(first.train.x), np.asarray(second.train.x))
    assert np.array_equal(np.asarray(first.test.y), np.asarray(second.test.y))


def test_a_second_table_is_the_test_part(tmp_path: Path) -> None:
    other = table(tmp_path, *ROWS[:5], name="test.csv")
    data = load_dataset(f"csv:{table(tmp_path)}", target="price", test_path=str(other))
    assert (len(data.train), len(data.test)) == (40, 5)


@pytest.mark.parametrize(
    ("rows", "keys", "reason"),
    [
        (["1,red,ann"], {"target": "price"}, "row 1 has 3 entries, not 4"),
        ([*ROWS, "7,red,ann,"], {"target": "price"}, "row 41 of column 'price' is not a finite"),
        ([*ROWS, "nan,red,ann,1"], {"target": "price"}, "row 41 of column 'size' is not a finite"),
        ([*ROWS, "1,,ann,1"], {"target": "price"}, "row 41 of column 'colour' is empty"),
        ([], {"target": "cost"}, "has no column 'cost'; it has size, colour, who, price"),
        ([], {"target": "price", "client": "whom"}, "data.client: .* has no column 'whom'"),
        ([], {"target": "price", "columns": ["price"]}, "no column is left"),
        ([], {"target": "colour", "kind": "numbers"}, "holds words, not numbers"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(
    rows: list[str], keys: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(SubmodelError, match=reason):
        load_dataset(f"csv:{table(tmp_path, *rows)}", **keys)


def test_what_is_no_table_is_said(tmp_path: Path) -> None:
    for content, reason in (
        (b"", "no rows"), (b"a,b\n", "no rows"), (b"a,a\n1,2\n", "each by another name"),
        (b"a,b\n\xff\xfe,1\n", "not UTF-8"),
    ):  # fmt: skip
        path = tmp_path / "odd.csv"
        path.write_bytes(content)
        with pytest.raises(SubmodelError, match=reason):
            load_dataset(f"csv:{path}", target="a")
    with pytest.raises(SubmodelError, match="no such file"):
        load_dataset(f"csv:{tmp_path / 'none.csv'}", target="a")
    (tmp_path / "odd.parquet").write_bytes(b"PAR1 not quite")
    with pytest.raises(SubmodelError, match="not a whole Parquet file"):
        load_dataset(f"parquet:{tmp_path / 'odd.parquet'}", target="a")


@given(st.lists(st.sampled_from("abcdef"), min_size=1), st.lists(st.sampled_from("abcdefg")))
@settings(deadline=None)
def test_owners_have_just_what_is_theirs(train: list[str], test: list[str]) -> None:
    owners, has_owner = owners_of(train, test)
    owners.check(len(train))
    positions = [owners.positions(client) for client in range(len(owners))]
    assert sorted(np.concatenate(positions).tolist()) == list(range(len(train)))
    for client, name in enumerate(owners.names):
        assert {train[place] for place in positions[client]} == {name}
        assert {test[place] for place in owners.test_positions(client)} <= {name}
    assert has_owner is not None
    assert has_owner.tolist() == [name in train for name in test]
