"""Text and tables of the Hugging Face hub: like from a file, or refused with the reason."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

from submodel.core.errors import ConfigError, SubmodelError
from submodel.data import Dataset, load_dataset
from tests.pins import errors
from tests.support.commands import Command
from tests.support.text import inputs_of, text_of

ROWS: list[dict[str, Any]] = [
    {"text": f"number {i} of all", "by": "ab"[i % 2], "size": float(i), "kind": "xyz"[i % 3]}
    for i in range(30)
]


def saved(path: Path, rows: list[dict[str, Any]], test: list[dict[str, Any]] | None = None) -> Path:
    """Save a dataset with ``datasets``, in one part unless there are rows for testing."""
    import datasets

    parts = {"train": datasets.Dataset.from_list(rows)}
    if test is not None:
        parts["test"] = datasets.Dataset.from_list(test)
    datasets.DatasetDict(parts).save_to_disk(str(path))
    return path


def as_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def assert_same(one: Dataset, other: Dataset) -> None:
    for part, other_part in ((one.train, other.train), (one.test, other.test)):
        assert torch.equal(inputs_of(part), inputs_of(other_part))
        assert torch.equal(part.y, other_part.y)
    assert one.owners is None or other.owners is not None
    if one.owners is not None and other.owners is not None:
        assert one.owners.names == other.owners.names
        assert one.owners.train.tolist() == other.owners.train.tolist()
    assert (one.classes, one.text, one.table) == (other.classes, other.text, other.table)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBMODEL_DATA", str(tmp_path / "cache"))


TEXT_KEYS: list[dict[str, Any]] = [
    {},
    {"client": "by", "length": 16},
    {"tokens": "characters", "test_share": 0.5},
    {"tokens": "bpe", "vocabulary": 260, "client": "by"},
]


@pytest.mark.parametrize("keys", TEXT_KEYS)
def test_text_is_what_it_is_from_a_file(tmp_path: Path, keys: dict[str, Any]) -> None:
    hub = load_dataset("hf:x", path=saved(tmp_path / "hub", ROWS), column="text", **keys)
    file = load_dataset(f"text:{as_csv(tmp_path / 't.csv', ROWS)}", column="text", **keys)
    assert_same(hub, file)
    assert (hub.owners is not None) == ("client" in keys)


def test_text_of_a_test_split_is_for_testing(tmp_path: Path) -> None:
    path = saved(tmp_path / "hub", ROWS[:20], ROWS[20:])
    data = load_dataset("hf:x", path=path, column="text", length=8)
    assert text_of(data, "train") == "".join(f"{row['text']}\n" for row in ROWS[:20])
    assert text_of(data, "test") == "".join(f"{row['text']}\n" for row in ROWS[20:])


def test_two_datasets_of_one_name_are_not_taken_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds even if their tokens are kept on disk."""
    monkeypatch.setattr("submodel.data.text.build.LARGE", 0)
    for number, rows in enumerate((ROWS, ROWS[::-1], ROWS)):
        path = saved(tmp_path / f"hub-{number}", rows)
        data = load_dataset("hf:x", path=path, column="text", length=8)
        assert text_of(data, "train").startswith(rows[0]["text"])


@pytest.mark.parametrize(
    "keys",
    [
        {"target": "kind"},
        {"target": "kind", "columns": ["size"]},
        {"target": "size", "columns": ["kind"], "client": "by", "kind": "numbers"},
        {"target": "size", "columns": ["kind"], "standardise": False},
    ],
)
def test_a_table_is_what_it_is_from_a_file(tmp_path: Path, keys: dict[str, Any]) -> None:
    hub = load_dataset("hf:x", path=saved(tmp_path / "hub", ROWS), **keys)
    assert_same(hub, load_dataset(f"csv:{as_csv(tmp_path / 't.csv', ROWS)}", **keys))
    path = saved(tmp_path / "split", ROWS[:20], ROWS[20:])
    files = [as_csv(tmp_path / f"{n}.csv", rows) for n, rows in enumerate((ROWS[:20], ROWS[20:]))]
    file = load_dataset(f"csv:{files[0]}", test_path=str(files[1]), **keys)
    assert_same(load_dataset("hf:x", path=path, **keys), file)


def test_class_labels_have_their_names(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features(
        {"size": datasets.Value("int32"), "pet": datasets.ClassLabel(names=["cat", "dog"])}
    )
    values = {"size": [1, 2, 3, 4, 5], "pet": [0, 1, 0, 1, 0]}
    part = datasets.Dataset.from_dict(values, features=features)
    datasets.DatasetDict({"train": part, "test": part}).save_to_disk(str(tmp_path / "hub"))
    data = load_dataset("hf:x", path=tmp_path / "hub", target="pet")
    assert data.table is not None
    assert data.table.labels == ("cat", "dog")
    assert data.train.y.tolist() == [0, 1, 0, 1, 0]


BAD: dict[str, dict[str, Any]] = {
    "data.column: hf:x .*text, by, size, kind.*data.column.*data.target": {},
    "data.target: .*data.column": {"target": "kind", "column": "text"},
    "data.column: hf:x .*'words' .*row 1.* text, by, size, kind": {"column": "words"},
    "data.client: hf:x .*'who' .*row 1": {"column": "text", "client": "who"},
    "hf:x: row 1: size .*0.0": {"column": "size"},
    "data.size: hf:x .*text": {"column": "text", "size": 3},
    "data.columns: hf:x .*text": {"column": "text", "columns": ["by"]},
    "data.tokens: hf:x .*table": {"target": "kind", "tokens": "bytes"},
    "data.target: hf:x .*'sort'.* text, by": {"target": "sort"},
    "data.columns: hf:x .*'age'": {"target": "kind", "columns": ["age"]},
    "data.kind: column 'kind' ": {"target": "kind", "kind": "numbers"},
}


@pytest.mark.parametrize("reason", BAD)
def test_what_does_not_go_together_is_said(tmp_path: Path, reason: str) -> None:
    path = saved(tmp_path / "hub", ROWS)
    with pytest.raises(SubmodelError, match=f"^{reason}") as caught:
        load_dataset("hf:x", path=path, **BAD[reason])
    errors.check("hub rows", BAD[reason], caught.value)


def test_bad_rows(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^data\.test_share: hf:x .*split"):
        load_dataset("hf:x", path=saved(tmp_path / "a", ROWS, ROWS), column="text", test_share=0.3)
    rows = [*ROWS, {**ROWS[0], "size": None, "text": None}]
    path = saved(tmp_path / "b", rows)
    with pytest.raises(SubmodelError, match="row 31: text "):
        load_dataset("hf:x", path=path, column="text")
    with pytest.raises(SubmodelError, match=r"'size' \(1, .*31\)"):
        load_dataset("hf:x", path=path, target="kind", columns=["size"])
    lists = saved(tmp_path / "c", [{"a": [1, 2], "b": 1.0}] * 4)
    with pytest.raises(SubmodelError, match=r"column 'a' .*numbers"):
        load_dataset("hf:x", path=lists, target="b")


@pytest.mark.slow
def test_both_train_by_the_command(tmp_path: Path, submodel: Command) -> None:
    path = saved(tmp_path / "hub", ROWS)
    small = [
        *("--set", "data.name=hf:x", "--set", f"data.path={path}", "--set", "data.client=by"),
        *("--set", "train.rounds=1", "--set", "clients.capacities=[1,0.5]"),
    ]
    text = ["model.name=gpt", "data.column=text", "data.length=8"]
    table = ["model.name=mlp", "data.target=kind", 'data.columns=["size"]']
    for number, settings in enumerate((text, table)):
        words = [word for setting in settings for word in ("--set", setting)]
        run = tmp_path / f"run-{number}"
        result = submodel("train", *small, *words, "--out", run)
        assert result.returncode == 0, result.stderr
        assert "2 of 2 clients per round" in " ".join(result.stdout.split())
        assert submodel("export", run).returncode == 0
