"""All fixtures; as a program, print those that need portable numbers as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.compatibility import axes, comparisons, messages, runs

CASES = {
    case.name: case for case in (*runs.CASES, *comparisons.CASES, *axes.CASES, *messages.CASES)
}


def main(version: str) -> None:
    """Print the values of every computing case of a version."""
    found = {}
    with TemporaryDirectory() as place:
        for name, case in CASES.items():
            if case.compute is not None and case.folder(version).exists():
                found[name] = case.observed(version, "compute", Path(place).resolve() / name)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
