"""Large texts: kept in files, mapped, and never in memory as a whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from submodel.data import Dataset
from submodel.data.text import build
from submodel.errors import DataError
from tests.data.text.test_source import LINES
from tests.support.text import folder_of, inputs_of, load_text

MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBMODEL_DATA", str(tmp_path / "cache"))


def folders(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "text").iterdir())


def load_large(path: Path, monkeypatch: pytest.MonkeyPatch, **keys: Any) -> Dataset:
    """As if the text was large."""
    with monkeypatch.context() as here:
        here.setattr(build, "LARGE", 0)
        return load_text(path, **keys)


@pytest.mark.parametrize("tokens", ["bytes", "characters", "bpe"])
def test_a_large_text_gives_what_a_small_one_does(
    tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder_of(tmp_path / "texts", {"a": LINES, "b": LINES.upper(), "c": "x"})
    small = load_text(path, tokens=tokens)
    assert not (tmp_path / "cache").exists()  # nothing is kept of it
    for _ in range(2):  # made, and found
        large = load_large(path, monkeypatch, tokens=tokens)
        for part in ("train", "test"):
            ours, theirs = getattr(small, part), getattr(large, part)
            assert torch.equal(ours.x, theirs.x.long())
            assert torch.equal(ours.y, theirs.y)
            assert (theirs.x.dtype, theirs.y.dtype) == (torch.int32, torch.int64)
        assert large.text == small.text
        assert large.owners is not None
        assert small.owners is not None
        assert large.owners.names == small.owners.names
        assert np.array_equal(large.owners.train, small.owners.train)
    assert len(folders(tmp_path)) == 1


def test_what_is_done_to_a_tensor_does_not_reach_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder_of(tmp_path, {"a.txt": LINES}) / "a.txt"
    data = load_large(path, monkeypatch)
    before = inputs_of(data.train).clone()
    inputs_of(data.train).zero_()
    assert torch.equal(inputs_of(load_large(path, monkeypatch).train), before)


def test_another_file_length_or_tokeniser_is_encoded_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder_of(tmp_path, {"a.txt": LINES}) / "a.txt"
    first = load_large(path, monkeypatch)
    changes: list[dict[str, Any]] = [{"length": 5}, {"test_share": 0.2}, {"least": 1}]
    changes += [{"tokens": "characters"}, {"tokens": "bpe"}, {"tokens": "bpe", "vocabulary": 300}]
    for number, keys in enumerate(changes, 2):
        load_large(path, monkeypatch, **keys)
        assert len(folders(tmp_path)) == number
    path.write_text(LINES.replace("fox", "dog"))  # of the same size
    os.utime(path, ns=(1, 1))
    assert not torch.equal(inputs_of(load_large(path, monkeypatch).train), inputs_of(first.train))


def test_files_that_are_kept_and_damaged_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder_of(tmp_path, {"a.txt": LINES}) / "a.txt"
    load_large(path, monkeypatch)
    (folder,) = folders(tmp_path)
    for name in ("train.x.npy", "test.y.npy", "index.json"):
        whole = (folder / name).read_bytes()
        for content in (whole[: len(whole) // 2], b"", b"\x93NUMPY\x01\x00", b"{}"):
            (folder / name).write_bytes(content)
            with pytest.raises(DataError, match=f"{name}: damaged .*delete {folder}"):
                load_large(path, monkeypatch)
        (folder / name).write_bytes(whole)
    load_large(path, monkeypatch)


def test_nothing_is_kept_of_a_text_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder_of(tmp_path, {"a.txt": "ab" * 45 + "abcababcab"}) / "a.txt"
    with pytest.raises(DataError, match="'c' at character 92"):
        load_large(path, monkeypatch, tokens="characters")
    assert folders(tmp_path) == []


MEASURED = """
import resource, sys
import torch
from submodel.data import load_dataset
load_dataset(sys.argv[1])  # whatever is imported is there
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
data = load_dataset(sys.argv[2])
assert int(data.train.y[len(data.train) // 2].sum()) > 0
print(len(data.train), 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


def test_a_text_much_larger_than_the_memory_for_it_is_not_read_into_it(tmp_path: Path) -> None:
    size = 32 * MEGABYTE  # 512 as tensors in memory
    small, large = tmp_path / "small.txt", tmp_path / "large.txt"
    small.write_text(LINES)
    large.write_bytes((LINES.encode() * (size // len(LINES) + 1))[:size])
    run = [sys.executable, "-c", MEASURED, f"text:{small}", f"text:{large}"]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=300)
    rows, growth = map(int, done.stdout.split())
    assert rows == -(-(size - round(size / 10) - 1) // 64)
    assert growth < 16 * MEGABYTE  # half of the file, a thirtieth of its tensors
