"""Windows of tokens: every token but the first is a target once, and nothing crosses streams."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from submodel.data.parts import NO_TARGET
from submodel.data.text.streams import PIECE, split_pieces, text_stream
from submodel.data.text.windows import (
    PADDING,
    Windows,
    count_windows,
    cut_windows,
)


def cut(sizes: list[int], length: int) -> Windows:
    """The windows of the tokens 1, 2, 3, ..., which come in pieces of these sizes."""
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
