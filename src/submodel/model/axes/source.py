"""Where in the source of a model something happens: the line that a user can change."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType

import torch

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
