"""Tables: columns become numbers by the training part alone; a column gives the client of a row."""

from __future__ import annotations

import csv
import importlib
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from submodel.core.errors import DataError, SubmodelError
from submodel.data import load_dataset
from submodel.data.facts import owners_of
from submodel.data.sources import Encoding, SourceContext
from submodel.data.sources.table import Table, TableOptions
from tests.pins import errors
from tests.support.text import check_owners

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
    assert data.inputs == (3,)  # the client of a row is no feature


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
        original = np.asarray(part.y) * data.table.target.deviation + data.table.target.mean
        assert original == pytest.approx(np.asarray(plain_part.y), abs=1e-5)
    context = SourceContext(str(path), encoding=Encoding(table=data.table))
    own_rows = Table.configured(TableOptions(target="price"), context)  # of a device
    original = np.asarray(own_rows.train.y) * data.table.target.deviation + data.table.target.mean
    assert original.ravel() == pytest.approx([n * 0.5 for n in range(40)], abs=1e-5)
    with pytest.raises(SubmodelError, match=r"^data\.standardise: column 'colour' "):
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
        (["1,red,ann"], {"target": "price"}, "row 1 .*3 .*4"),
        ([*ROWS, "inf,red,ann,1"], {"target": "price"}, "row 41 .*'size'"),
        ([*ROWS, "7,red,ann,inf"], {"target": "price"}, "row 41 .*'price'"),
        ([], {"target": "cost"}, "^data.target: .*'cost'.* size, colour, who, price"),
        ([], {"target": "price", "client": "whom"}, "^data.client: .*'whom'"),
        ([], {"target": "price", "columns": ["price"]}, "^data.columns: "),
        ([], {"target": "colour", "kind": "numbers"}, "^data.kind: .*'colour' .*numbers"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(
    rows: list[str], keys: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(SubmodelError, match=reason) as caught:
        load_dataset(f"csv:{table(tmp_path, *rows)}", **keys)
    errors.check("table", [rows[-1:], keys], caught.value)


HOLES = [*ROWS[:30], ",red,ann,3", "7,,bob,4", "NaN,red,cy,5", *ROWS[30:]]


def test_all_missing_cells_are_counted_at_once(tmp_path: Path) -> None:
    path = table(tmp_path, *HOLES, "7,red,,6", "8,blue,ann,")
    with pytest.raises(SubmodelError) as caught:
        load_dataset(f"csv:{path}", target="price", client="who")
    for words in ("'size' (2, first in row 31)", "'colour' (1, first in row 32)",
                  "'price' (1, ", "'who' (1, ", "data.missing"):  # fmt: skip
        assert words in str(caught.value)
    for missing in ("mean", "category"):
        with pytest.raises(SubmodelError, match=r"columns 'price' \(1.*'who' \(1.*'drop'"):
            load_dataset(f"csv:{path}", target="price", client="who", missing=missing)
    data = load_dataset(f"csv:{path}", target="price", client="who", missing="drop")
    assert len(data.train) + len(data.test) == 40
    assert data.owners is not None
    assert sum(len(data.owners.positions(c)) for c in range(3)) == len(data.train)


def test_missing_cells_are_filled_by_the_training_part(tmp_path: Path) -> None:
    train = table(tmp_path, "1,red,a,1", "3,blue,b,2", ",red,c,3", "5,,d,4", "3,red,e,5")
    test = table(tmp_path, ",,a,1", "100,red,b,2", name="test.csv")
    keys: dict[str, Any] = {"target": "price", "columns": ["size", "colour"]}
    keys |= {"test_path": str(test)}
    data = load_dataset(f"csv:{train}", missing="mean", **keys)
    root = np.sqrt(2)  # the deviation of 1, 3, 5, 3, whose mean is 3
    expected = [[-root, 0, 1], [0, 1, 0], [0, 0, 1], [root, 0.25, 0.75], [0, 0, 1]]
    assert np.asarray(data.train.x) == pytest.approx(np.array(expected), abs=1e-6)
    assert data.test.x[0].tolist() == [0, 0.25, 0.75]
    data = load_dataset(f"csv:{train}", missing="category", **keys)
    # size, whether it is missing; no word, blue, red
    assert data.train.x[2].tolist() == [0, 1, 0, 0, 1]
    assert data.train.x[3].tolist()[1:] == [0, 1, 0, 0]
    assert data.test.x[0].tolist() == [0, 1, 1, 0, 0]


def test_columns_without_any_entry_are_said(tmp_path: Path) -> None:
    rows = [f",{n % 2},{n}," for n in range(20)]
    path = table(tmp_path, *rows)
    for missing in ("mean", "category"):
        with pytest.raises(SubmodelError, match=r"'size' .*data.columns"):
            load_dataset(f"csv:{path}", target="who", columns=["size"], missing=missing)
    with pytest.raises(SubmodelError, match=r"'drop' .*training part"):
        load_dataset(f"csv:{path}", target="who", columns=["size"], missing="drop")
    with pytest.raises(SubmodelError, match=r"t.csv: column 'price' "):
        load_dataset(f"csv:{path}", target="price", columns=["colour"], missing="drop")


@pytest.mark.parametrize("missing", ["mean", "category", "drop"])
def test_the_run_fills_the_missing_cells_of_a_device(missing: Any, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"target": "price", "columns": ["size", "colour"], "missing": missing}
    path = table(tmp_path, *HOLES)
    data = load_dataset(f"csv:{path}", test_path=str(table(tmp_path, name="test.csv")), **keys)
    own = table(tmp_path, ",,x,1", "4,red,x,2", name="own.csv")
    context = SourceContext(str(own), encoding=Encoding(table=data.table))
    device = Table.configured(TableOptions(target="price", missing=missing), context)
    assert device.inputs == data.inputs
    filled = {"mean": [0, 14 / 42, 28 / 42], "category": [0, 1, 1, 0, 0]}
    if missing == "drop":
        assert len(device.train) == 1
    else:
        assert device.train.x[0].tolist() == pytest.approx(filled[missing])
    with pytest.raises(SubmodelError, match=r"columns 'size'.*data.missing"):
        Table.configured(TableOptions(target="price"), context)
    if missing != "mean":
        with pytest.raises(SubmodelError, match=r"^.*: cells are missing in columns"):
            Table.configured(TableOptions(target="price", missing="mean"), context)


def test_what_is_no_table_is_said(tmp_path: Path) -> None:
    for content, reason in (
        (b"", "no rows"), (b"a,b\n", "no rows"), (b"a,a\n1,2\n", " a, a"),
        (b"a,b\n\xff\xfe,1\n", "UTF-8 .*4"),
    ):  # fmt: skip
        path = tmp_path / "odd.csv"
        path.write_bytes(content)
        with pytest.raises(SubmodelError, match=reason):
            load_dataset(f"csv:{path}", target="a")
    with pytest.raises(SubmodelError, match=r"none.csv: no such"):
        load_dataset(f"csv:{tmp_path / 'none.csv'}", target="a")
    (tmp_path / "odd.parquet").write_bytes(b"PAR1 not quite")
    with pytest.raises(SubmodelError, match=r"odd.parquet: .*Parquet file"):
        load_dataset(f"parquet:{tmp_path / 'odd.parquet'}", target="a")


@given(st.lists(st.sampled_from("abcdef"), min_size=1), st.lists(st.sampled_from("abcdefg")))
@settings(deadline=None)
def test_owners_have_just_what_is_theirs(train: list[str], test: list[str]) -> None:
    owners = owners_of(train, test)
    assert owners.test is not None
    check_owners(owners, len(train))
    positions = [owners.positions(client) for client in range(len(owners))]
    assert sorted(np.concatenate(positions).tolist()) == list(range(len(train)))
    for client, name in enumerate(owners.names):
        assert {train[place] for place in positions[client]} == {name}
        assert {test[place] for place in np.flatnonzero(owners.test == client)} <= {name}
    assert (owners.test >= 0).tolist() == [name in train for name in test]


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


@pytest.mark.slow
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
