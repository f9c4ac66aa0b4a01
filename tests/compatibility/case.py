"""A fixture: writing its files, and the expected values after reading them."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest import mock

from submodel.cli import main

HOME = Path(__file__).parent
VERSIONS = sorted(path.name for path in HOME.glob("20*") if path.is_dir())
Observation = dict[str, Any]
Way = Literal["read", "compute"]


@dataclass(frozen=True)
class Case:
    """A kind of fixture: functions that write files, read them, and compute from them portably."""

    name: str
    write: Callable[[Path], None]
    read: Callable[[Path], Observation] | None = None
    compute: Callable[[Path], Observation] | None = None

    def folder(self, version: str) -> Path:
        """Return the folder of a case's files and recorded values."""
        return HOME / version / self.name

    def observed(self, version: str, way: Way, place: Path) -> Observation:
        """Return the values of a copy of a version's files; ``place`` is created."""
        observe = self.read if way == "read" else self.compute
        assert observe is not None
        shutil.copytree(self.folder(version) / "files", place)
        for key in place.rglob("*.key"):  # git does not store such modes
            key.chmod(0o600)
        found: Observation = json.loads(json.dumps(without_places(observe(place), place)))
        return found

    def expected(self, version: str, way: Way) -> Observation:
        """Return the recorded values."""
        file = self.folder(version) / f"{way}.json"
        found: Observation = json.loads(file.read_text("utf-8"))
        return found


def differences(expected: Any, found: Any, where: str = "") -> list[str]:
    """List missing and changed values; keys may be added."""
    if isinstance(expected, dict) and isinstance(found, dict):
        gone = [f"{where}.{key}: gone" for key in expected if key not in found]
        both = [key for key in expected if key in found]
        return gone + [d for k in both for d in differences(expected[k], found[k], f"{where}.{k}")]
    lists = isinstance(expected, list | tuple) and isinstance(found, list | tuple)
    if lists and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [d for i, (e, f) in pairs for d in differences(e, f, f"{where}[{i}]")]
    if isinstance(expected, float) and isinstance(found, float | int):
        same = math.isclose(expected, found, rel_tol=1e-6)  # scores are means of float32
    else:
        same = expected == found
    return [] if same else [f"{where}: {str(expected)[:200]} -> {str(found)[:200]}"]


def without_places(value: Any, place: Path) -> Any:
    """Remove the folder from plain values."""
    if isinstance(value, Mapping):
        return {str(key): without_places(item, place) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_places(item, place) for item in value]
    if isinstance(value, str | Path):
        return str(value).replace(str(place), "FOLDER")
    return value


_TIMES = frozenset({"seconds", "changed", "took", "core_seconds", "seconds_left"})


def without_times(value: Any) -> Any:
    """Remove machine-dependent values."""
    if isinstance(value, Mapping):
        return {key: without_times(item) for key, item in value.items() if key not in _TIMES}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def command_output(*words: str | Path, cwd: Path) -> str:
    """Return the output of the command `submodel`, run in this process from a folder."""
    out, errors = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
        mock.patch("signal.signal"),  # restore ours afterwards
        mock.patch.object(sys, "argv", ["submodel", *map(str, words)]),
        mock.patch.dict(os.environ, {"SUBMODEL_DATA": str(cwd / "cache")}),
    ):
        try:
            main()
        except SystemExit as end:
            status = end.code
    assert not status, errors.getvalue()
    return out.getvalue()


def command_json(*words: str | Path, cwd: Path) -> Any:
    """Return the object that the command prints with ``--json``."""
    return json.loads(command_output(*words, "--json", cwd=cwd))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def page_parts(file: Path) -> dict[str, str]:
    """Return a hash for each part of a page by name, with floats to nine digits.

    Drawing code and versions of packages do not count.
    """
    found = re.search(r'id="page-data">(.*?)</script>', file.read_text("utf-8"), re.DOTALL)
    assert found is not None
    data = without_places(json.loads(found[1]), file.parent)
    data.pop("versions")
    return dict(_parts("", data, 3))


def _parts(name: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
    """Collect the values under each key of all objects in a list, so that keys may be added."""
    items = value if isinstance(value, list) else [value]
    if depth and items and all(isinstance(item, dict) for item in items):
        for key in dict.fromkeys(key for item in items for key in item):
            inner = [item.get(key) for item in items]
            yield from _parts(f"{name}.{key}", inner, depth - 1)
    else:
        yield name, digest(value)


def digest(value: Any) -> str:
    """Return a short hash of plain values with floats to nine digits."""
    return sha256(json.dumps(_rounded(value), sort_keys=True).encode())[:16]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, str) and " " in value:  # words may change, the numbers in them may not
        return sorted(re.findall(r"\d+(?:[.,]\d+)*", value))
    return float(f"{value:.9g}") if isinstance(value, float) else value
