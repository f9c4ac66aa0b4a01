"""Files of earlier versions are read, resumed and reported as recorded then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.compatibility.case import HOME, VERSIONS, differences
from tests.compatibility.cases import CASES
from tests.interface import read_interface
from tests.support.portable import machine, run_portably

READ = [
    (version, name)
    for version in VERSIONS
    for name, case in CASES.items()
    if case.read is not None and case.folder(version).exists()
]


@pytest.mark.slow
@pytest.mark.parametrize(("version", "name"), READ)
def test_files_are_read_as_before(version: str, name: str, tmp_path: Path) -> None:
    case = CASES[name]
    found = case.observed(version, "read", tmp_path / "files")
    assert not differences(case.expected(version, "read"), found)


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_computed_from_files_has_the_same_bits(version: str) -> None:
    kept = json.loads((HOME / version / "machine.json").read_text("utf-8"))
    if machine() != kept:
        pytest.skip(f"bits of {kept}; this is {machine()}")
    found = json.loads(run_portably("tests.compatibility.cases", version))
    assert found
    expected = {name: CASES[name].expected(version, "compute") for name in found}
    assert not differences(expected, found)


NEVER_READ = {"report.html", "superlink.log"}
"""Files for people, which are not compared: a page of 600 kB, and Flower's output."""


def test_every_file_of_a_run_is_in_a_fixture() -> None:
    files = {path.relative_to(HOME).as_posix() for path in HOME.glob("*/*/files/**/*")}
    promised = read_interface()["pages"]["files of a run"]
    names = {name.strip("/").removesuffix("...") for name in promised} - NEVER_READ
    assert len(names) > 15
    missing = [name for name in names if not any(f"/run/{name}" in file for file in files)]
    assert not missing
