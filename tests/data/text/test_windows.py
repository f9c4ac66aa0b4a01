"""Windows of tokens: every token but the first is a target once; large texts are mapped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from submodel.core.errors import DataError
from submodel.data import Dataset
from submodel.data.parts import NO_TARGET
from submodel.data.text import build
from submodel.data.text.streams import PIECE, split_pieces, text_stream
from submodel.data.text.windows import (
    PADDING,
    Windows,
    count_windows,
    cut_windows,
)
from tests.data.text.test_source import LINES
from tests.support.text import folder_of, inputs_of, load_text


def cut(sizes: list[int], length: int) -> Windows:
    """Return the windows of the tokens 1, 2, 3, ... in pieces of these sizes."""
    tokens = np.arange(1, sum(sizes) + 1, dtype=np.int32)
    parts = list(cut_windows(np.split(tokens, np.cumsum(sizes)[:-1]), length))
    empty = np.zeros((0, length))
    return Windows(
        np.concatenate([empty.astype(np.int32), *(part.x for part in parts)]),
        np.concatenate([empty.astype(np.int64), *(part.y for part in parts)]),
    )


def test_the_last_window_is_filled_up_with_what_does_not_count() -> None:
    windows = cut([7], 4)
    assert windows.x.tolist() == [[1, 2, 3, 4], [5, 6, PADDING, PADDING]]
    assert windows.y.tolist() == [[2, 3, 4, 5], [6, 7, NO_TARGET, NO_TARGET]]
    assert (PADDING, NO_TARGET) == (0, -100)


def test_a_window_of_one_token_is_dropped() -> None:
    assert cut([5], 4).x.tolist() == [[1, 2, 3, 4]]  # 5 has been a target, and has none
    assert cut([1], 4).x.shape == (0, 4)


@given(sizes=st.lists(st.integers(0, 20), min_size=1, max_size=6), length=st.integers(1, 9))
@settings(deadline=None)
def test_every_token_but_the_first_is_a_target_once(sizes: list[int], length: int) -> None:
    windows, total = cut(sizes, length), sum(sizes)
    counts = windows.y != NO_TARGET
    assert windows.y[counts].tolist() == list(range(2, total + 1))
    assert windows.x[counts].tolist() == list(range(1, max(total, 1)))
    assert (windows.x[~counts] == PADDING).all()
    assert len(windows.x) == count_windows(total, length)


@given(sizes=st.lists(st.integers(0, 20), min_size=1, max_size=6), length=st.integers(1, 9))
@settings(deadline=None)
def test_it_does_not_matter_in_which_pieces_tokens_come(sizes: list[int], length: int) -> None:
    pieces, whole = cut(sizes, length), cut([sum(sizes)], length)
    assert pieces.x.tolist() == whole.x.tolist()
    assert pieces.y.tolist() == whole.y.tolist()


def test_a_part_of_a_stream_is_the_same_whatever_its_pieces() -> None:
    text = "".join(f"line {number}\n" for number in range(20_000))
    stream = text_stream("a", "here", text)
    assert len(list(stream.pieces())) > 2
    assert all(piece.endswith("\n") for piece in stream.pieces())
    for start, stop in ((0, len(text)), (5, PIECE + 3), (PIECE - 1, PIECE), (7, 7)):
        assert "".join(stream.part(start, stop)) == text[start:stop]
    assert (stream.characters, stream.size) == (len(text), len(text))
    assert "".join(split_pieces(["x" * (2 * PIECE + 1)])) == "x" * (2 * PIECE + 1)


MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBMODEL_DATA", str(tmp_path / "cache"))


def folders(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "text").iterdir())


def load_large(path: Path, monkeypatch: pytest.MonkeyPatch, **keys: Any) -> Dataset:
    """Load a text as if it were large."""
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
            with pytest.raises(DataError, match=rf"{name}: .*{folder}$"):
                load_large(path, monkeypatch)
        (folder / name).write_bytes(whole)
    load_large(path, monkeypatch)


def test_nothing_is_kept_of_a_text_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder_of(tmp_path, {"a.txt": "ab" * 45 + "abcababcab"}) / "a.txt"
    with pytest.raises(DataError, match=r"'c' .*92"):
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


@pytest.mark.slow
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
