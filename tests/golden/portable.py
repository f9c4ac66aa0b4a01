"""Compute ends with plain kernels: `python -m tests.golden.portable FILE`, names on its input."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.golden.take import End, take
from tests.support.portable import run_portably, use_plain_kernels


def take_portably(names: Iterable[str]) -> dict[str, End]:
    """Return the ends of these cases from a process with plain kernels."""
    with TemporaryDirectory() as path:
        folder = Path(path)
        file = folder / "ends.json"
        run_portably(__name__, file, cwd=folder, standard_input=json.dumps(list(names)))
        ends: dict[str, End] = json.loads(file.read_text("utf-8"))
    return ends


if __name__ == "__main__":
    os.environ["SUBMODEL_DATA"] = str(Path("data").absolute())
    found = take(json.load(sys.stdin), use_plain_kernels)
    Path(sys.argv[1]).write_text(json.dumps(found), "utf-8")
