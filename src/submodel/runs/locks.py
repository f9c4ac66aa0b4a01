"""Whether somebody is at work in a folder: the kernel is asked, and no lock is ever taken.

Taking a lock to see whether it is free would turn away a run that begins in that moment. A process
that dies, however it dies, holds no lock, so what the kernel says is never out of date.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_TABLE, _PROCESSES = Path("/proc/locks"), Path("/proc")
_IS_LINUX = sys.platform == "linux"
# struct flock: on Linux type, whence, start, length, process; elsewhere start, length, process, ...
_REQUEST = "@hhqqi0q" if _IS_LINUX else "@qqihh"
_TYPE = 0 if _IS_LINUX else 3  # where its type stands


@dataclass(frozen=True)
class LockTable:
    """The locks of whole files that are held on this machine, as they were in one moment.

    Args:
        files: device and number of each file.
        holders: the processes that hold them.
    """

    files: frozenset[tuple[int, int]]
    holders: frozenset[int]

    @classmethod
    def read(cls) -> LockTable:
        """The table of now; empty where the kernel shows none."""
        files, holders = set(), set()
        with suppress(OSError):
            for line in _TABLE.read_text("ascii", "replace").splitlines():
                with suppress(ValueError, IndexError):  # a line of another kind
                    _, kind, _, access, process, file, *_ = line.split()
                    if (kind, access) == ("FLOCK", "WRITE"):
                        major, minor, number = file.split(":")
                        files.add((os.makedev(int(major, 16), int(minor, 16)), int(number)))
                        holders.add(int(process))
        return cls(frozenset(files), frozenset(holders))

    def holds(self, file: Path) -> bool:
        """Whether a process has locked a file.

        Args:
            file: the lock's; there need not be one.
        """
        try:
            status = file.stat()
        except OSError:
            return False
        if (status.st_dev, status.st_ino) in self.files:
            return True
        if _IS_LINUX and os.major(status.st_dev):
            return False
        # File systems without a device of their own: btrfs and overlays count files otherwise, and
        # over a network a lock may be another machine's.
        return str(file.resolve()) in self._open_files or _is_range_locked(file)

    @cached_property
    def _open_files(self) -> frozenset[str]:
        return frozenset(path for process in self.holders for path in _open_files_of(process))


def _open_files_of(process: int) -> Iterator[str]:
    """The files that a process has open, as far as we may know."""
    with suppress(OSError):
        for handle in (_PROCESSES / str(process) / "fd").iterdir():
            with suppress(OSError):
                yield str(handle.readlink())


def _is_range_locked(file: Path) -> bool:
    """Whether the file system says that a lock of the file's bytes would have to wait.

    Over NFS, and on BSD systems, that holds for locks of whole files as well (flock(2)).
    """
    question = (fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    if not _IS_LINUX:
        question = (0, 0, 0, fcntl.F_RDLCK, os.SEEK_SET)
    try:
        with file.open("rb") as opened_file:
            answer = fcntl.fcntl(opened_file, fcntl.F_GETLK, struct.pack(_REQUEST, *question))
    except OSError:
        return False
    return bool(struct.unpack(_REQUEST, answer)[_TYPE] != fcntl.F_UNLCK)
