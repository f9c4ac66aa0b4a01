"""Run case after case: readers may only raise our own errors, quickly and in bounded memory."""

from __future__ import annotations

import gc
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from submodel.core.errors import SubmodelError
from tests.deep.reader import Reader
from tests.deep.readers import READERS
from tests.pins.errors import kind

_SLOW = 2.5  # seconds of processor time: 89 million pixels take 1.6 on the slowest machine seen
_HANGS = 60  # seconds


@dataclass
class Outcome:
    """Results of the cases of one reader."""

    name: str
    read: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0
    seconds: float = 0.0
    grown: int = 0

    def __str__(self) -> str:
        cases = self.read + self.refused.total() + len(self.wrong)
        kinds = ", ".join(f"{n} {kind}" for kind, n in self.refused.most_common())
        return (
            f"{self.name}: {cases:,} cases, {cases / self.seconds:,.0f} per second of processor "
            f"time; {self.read:,} read, refused: {kinds or 'none'}; the slowest took "
            f"{1000 * self.slowest:.0f} ms; memory grew by {self.grown / 1e6:.0f} MB; "
            f"{len(self.wrong)} wrong"
        )


def attack(name: str, numbers: range, most_wrong: int = 5) -> Outcome:
    """Read the cases with these numbers."""
    reader, outcome = READERS[name], Outcome(name)
    with pytest.MonkeyPatch.context() as patch, a_folder() as folder:
        patch.setenv("SUBMODEL_DATA", str(folder))
        path = prepared(reader, folder)
        path.write_bytes(reader.case(name, -1))  # create shared objects before memory is measured
        before = _peak(reset=True)
        started = time.process_time()
        for number in numbers:
            data = reader.case(name, number)
            path.write_bytes(data)
            if wrong := _one(reader, path, outcome):
                repeat = f"repeat it with: python -m tests.deep {name} {number}"
                outcome.wrong.append(f"{wrong}\n{repeat}")
                if len(outcome.wrong) >= most_wrong:
                    break
            _forget(folder)
        outcome.seconds = time.process_time() - started
        outcome.grown = _peak() - before
    if outcome.grown > reader.memory:
        outcome.wrong.append(f"{name}: memory grew by {outcome.grown:,} bytes")
    return outcome


@contextmanager
def a_folder() -> Iterator[Path]:
    """Make a folder for files, in memory if possible, as writing dominates the time."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def prepared(reader: Reader, folder: Path) -> Path:
    """Prepare the place of a reader's file with all files around it."""
    reader.before(folder)
    path = folder / reader.file
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _one(reader: Reader, path: Path, outcome: Outcome) -> str:
    """Read one case, and return its problem, if any."""
    signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(_HANGS)
    started = time.process_time()
    try:
        reader.read(path)
        outcome.read += 1
    except SubmodelError as error:
        outcome.refused[kind(error)] += 1
        if len(str(error)) > 20_000:
            return f"{type(error).__name__} of {len(str(error)):,} characters"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return "".join(traceback.format_exception(error)[-4:])
    finally:
        signal.alarm(0)
        took = time.process_time() - started
        outcome.slowest = max(outcome.slowest, took)
    return f"it took {took:.1f} s" if took > _SLOW else ""


def _hangs(*_: object) -> None:
    raise TimeoutError(f"it hangs: nothing in {_HANGS} s")


def _forget(folder: Path) -> None:
    """Clear the caches of readers."""
    for kept in (folder / "devices").glob("*") if (folder / "devices").is_dir() else ():
        kept.unlink()


def _peak(reset: bool = False) -> int:
    """Return the peak memory of this process since the last reset."""
    if reset:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
