"""Why a run failed, kept in its folder: its last error is all that some ever said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from submodel.errors import Interruption, SubmodelError, plain
from submodel.files import UnreadableError, read_text, write_text
from submodel.runs.folder import RunFolder

_LONGEST = 2**16  # bytes


@contextmanager
def failure_noted(folder: RunFolder | None) -> Iterator[None]:
    """Write down the error that ends a run; a run that goes on has not failed.

    Args:
        folder: the run's; None: nothing is written.
    """
    if folder is None:
        yield
        return
    folder.failed_file.unlink(missing_ok=True)
    try:
        yield
    except Interruption:
        raise
    except Exception as error:
        with suppress(OSError):  # a full disk may be the reason
            write_text(folder.failed_file, f"{_describe(error)}\n")
        raise


def _describe(error: Exception) -> str:
    kind = "" if isinstance(error, SubmodelError) else f"{type(error).__name__}: "
    return (kind + str(error)).removesuffix(": ").strip()


def read_failure(folder: RunFolder) -> str:
    """The first line of why a run failed, or why its server gave up; empty: nobody said.

    Args:
        folder: the run's.
    """
    for file in (folder.failed_file, folder.stopped_file):
        with suppress(UnreadableError):
            lines = read_text(file, _LONGEST).strip().splitlines()
            return plain(lines[0]) if lines else "it said nothing"
    return ""
