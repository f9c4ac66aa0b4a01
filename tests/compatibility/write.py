"""Write the fixtures of the current code: `python -m tests.compatibility.write VERSION [CASE...]`.

A version's folder is written once, before the code changes. Without a reason that users agree with
(a file that cannot exist), no fixture is rewritten.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.compatibility.case import HOME, Observation
from tests.compatibility.cases import CASES
from tests.support.portable import machine, run_portably


def main(version: str, *names: str) -> None:
    """Write files and expected values; computed values have portable numbers."""
    for name in names or CASES:
        folder = CASES[name].folder(version)
        if folder.exists():
            sys.exit(f"{folder} exists already")
        # outside the tests, so that none of their files are found
        with TemporaryDirectory() as place:
            files = Path(place).resolve() / "files"
            files.mkdir()
            CASES[name].write(files)
            leave_out = shutil.ignore_patterns(".lock", "cache", "curves.png.partial")
            shutil.copytree(files, folder / "files", ignore=leave_out)
    _record(HOME / version / "machine.json", machine())
    computed = json.loads(run_portably("tests.compatibility.cases", version))
    for name in names or CASES:
        case, folder = CASES[name], CASES[name].folder(version)
        if case.compute is not None:
            _record(folder / "compute.json", computed[name])
        if case.read is not None:
            with TemporaryDirectory() as place:
                found = case.observed(version, "read", Path(place).resolve() / name)
                _record(folder / "read.json", found)


def _record(file: Path, found: Observation) -> None:
    """Write one line for each entry of the first two levels, so that differences are visible."""

    def text(value: Any, depth: int) -> str:
        if depth and isinstance(value, dict) and value:
            indent = " " * (3 - depth)
            lines = [f"{indent}{json.dumps(k)}: {text(v, depth - 1)}" for k, v in value.items()]
            return "{\n" + ",\n".join(lines) + "\n" + indent[:-1] + "}"
        return json.dumps(value)

    file.write_text(text(found, 2) + "\n", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
