"""Why dimensions are not cut, where in the model's code, and what to change there.

Some reasons are in the nature of things: the pixels of a kernel, the words of an embedding. Others
come from one line of the model, and are kept together with it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType

import torch

WRITTEN_SIZE = "a number written in the code makes its size"

_NATURAL = (
    "it meets an ",
    "it holds whole numbers",
    "it is sparse",
    "read by embedding",
    "read by _embedding_bag",
    "positions made by",
    "nothing reads it",
    "frozen as told",
    "bags",
    "sequences",
    "steps of sequences",
)
_OF_SPACE = ("as a kernel", "as a position in space", "as positions or frequencies")

_ADVICE = (
    (WRITTEN_SIZE, "make it an attribute of the module, or -1, or read it from a shape"),
    ("no rule", "use operators that are known, or declare the axes"),
    ("its rule does not cover", "use operators that are known, or declare the axes"),
    ("no parameter and no buffer", "register the tensor as a buffer, so that it is cut too"),
    ("made by arange", "compute it once and register it as a buffer, so that it is cut too"),
    ("do not line up", "view and split it alike everywhere, or make the parts layers of their own"),
    ("looked up by index", "split, chunk or slice by a stored size instead of looking up by index"),
    ("by position", "do not tell its units apart by their position"),
    ("by its place in memory", "use views, unfold or indices instead of as_strided"),
    ("one unit", "split it in equal parts, or make the single unit a layer of its own"),
    ("one number counts it", "store two numbers, one for each of the dimensions"),
)


class Reason(str):
    """Why a dimension is not cut, and the line of the model's code where that happens."""

    __slots__ = ("line",)
    line: str

    def __new__(cls, text: str, line: str) -> Reason:
        """The text of a reason, with a line."""
        reason = super().__new__(cls, text)
        reason.line = line
        return reason


def line_of(reason: str) -> str:
    """Where in the model's code a reason comes from; empty where that is not known.

    >>> line_of(Reason("read by flip, by position", "net.py:7 in Net.forward"))
    'net.py:7 in Net.forward'
    """
    return reason.line if isinstance(reason, Reason) else ""


def is_natural(reason: str) -> bool:
    """Whether no change of the code would help.

    >>> is_natural("read by convolution, as a kernel"), is_natural("read by flip, by position")
    (True, False)
    """
    return reason.startswith(_NATURAL) or reason.endswith(_OF_SPACE)


def advice(reason: str) -> str:
    """What to write instead; empty where nothing helps.

    >>> advice("a number written in the code makes its size")
    'make it an attribute of the module, or -1, or read it from a shape'
    """
    hints = (words for key, words in _ADVICE if key in reason)
    return "" if is_natural(reason) else next(hints, "")


def to_change(
    frozen: Mapping[str, str], kept_whole: Mapping[str, str], lines: Mapping[str, str]
) -> Iterator[str]:
    """The lines to change, each with the reason and what to write instead, in words."""
    places_by_words: dict[str, list[str]] = {}
    for where, reason in (*frozen.items(), *kept_whole.items()):
        if lines.get(where):
            words = f"{lines[where]}: {reason}"
            places_by_words.setdefault(
                f"{words}; {hint}" if (hint := advice(reason)) else words, []
            )
            places_by_words[f"{words}; {hint}" if hint else words].append(where)
    for words, places in places_by_words.items():
        more = f" and {len(places) - 2} more" if len(places) > 2 else ""
        yield f"{words} ({', '.join(places[:2])}{more})"


_LIBRARIES = tuple(f"{Path(file).parent}/" for file in (torch.__file__, str(Path(__file__).parent)))


@cache
def _is_library(file: str) -> bool:
    """Whether a file belongs to torch, to this library, or to no file at all."""
    return file.startswith(_LIBRARIES) or file.startswith("<")


def source_line(nearest: int = 0) -> str:
    """The innermost line of the running code that is neither torch's nor this library's.

    With ``nearest``, only if the caller that many steps up is such code itself; else empty.

    >>> "doctest.py" in source_line()
    True
    """
    frame: FrameType | None = sys._getframe(1 + nearest)
    while frame is not None:
        code = frame.f_code
        if not _is_library(code.co_filename):
            return _text(code.co_filename, frame.f_lineno, code.co_qualname)
        frame = None if nearest else frame.f_back
    return ""


def failing_line(problem: BaseException) -> str:
    """The innermost such line on the way of an error; empty if there is none."""
    innermost = ""
    step: TracebackType | None = problem.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if not _is_library(code.co_filename):
            innermost = _text(code.co_filename, step.tb_lineno, code.co_qualname)
        step = step.tb_next
    return innermost


def _text(file: str, line: int, function: str) -> str:
    parts = Path(file).parts
    return f"{'/'.join(parts[-2:])}:{line} in {function}"
