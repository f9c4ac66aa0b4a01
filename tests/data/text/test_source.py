"""Own text as data: clients, test part, and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from submodel.config import parse
from submodel.config.parts import load_data
from submodel.core.errors import ConfigError, DataError
from submodel.data.parts import NO_TARGET
from submodel.tasks.loss import NO_LABEL
from tests.pins import errors
from tests.support.text import check_owners, folder_of, inputs_of, load_text, text_of

LINES = "".join(f"{number}: the quick brown fox\n" for number in range(100))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBMODEL_DATA", str(tmp_path / "cache"))


@pytest.mark.parametrize("tokens", ["bytes", "characters", "bpe"])
def test_a_file_is_nobodys_and_its_last_tenth_is_for_testing(tokens: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(LINES)
    data = load_text(tmp_path / "a.txt", tokens=tokens, length=8)
    end = len(LINES) - round(len(LINES) / 10)
    assert (text_of(data, "train"), text_of(data, "test")) == (LINES[:end], LINES[end:])
    assert data.owners is None
    assert data.classes is None
    assert (inputs_of(data.train).dtype, data.train.y.dtype) == (
        inputs_of(data.test).dtype,
        data.test.y.dtype,
    )
    assert str(inputs_of(data.train).dtype) == str(data.train.y.dtype) == "torch.int64"
    assert inputs_of(data.train).shape[1] == data.train.y.shape[1] == 8


def test_bytes_per_token_are_those_of_the_test_targets(tmp_path: Path) -> None:
    text = "é" * 2 + "ab" * 49 + "a" * 10 + "é" * 90
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    data = load_text(tmp_path / "a.txt", tokens="characters", length=4, test_share=0.5)
    assert data.text is not None
    assert data.text.bytes_per_token == (9 + 2 * 90) / 99  # the first of the hundred is no target
    assert data.text.vocabulary == 3
    only = load_text(tmp_path / "a.txt", tokens="characters", length=4, test_share=0.25)
    assert only.text is not None
    assert only.text.bytes_per_token == 2.0  # only é


def test_every_file_of_a_folder_is_a_client(tmp_path: Path) -> None:
    texts = {"bob.txt": LINES, "alice.md": LINES.upper(), "more/carol.txt": "x" * 500}
    path = folder_of(tmp_path / "texts", {**texts, ".hidden": "no"})
    data = load_text(path, length=16)
    assert data.owners is not None
    assert data.owners.names == ("alice.md", "bob.txt", "more/carol.txt")
    check_owners(data.owners, len(data.train))
    for number, name in enumerate(data.owners.names):
        text = texts[name]
        end = len(text) - round(len(text) / 10)
        assert text_of(data, "train", number) == text[:end]
        assert text_of(data, "test", number) == text[end:]


def test_clients_with_too_little_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = {"a": LINES, "b": "short", "c": "", "d": "x" * 100}
    path = folder_of(tmp_path / "texts", texts)
    data = load_text(path, least=100)
    assert data.owners is not None
    assert data.owners.names == ("a", "d")
    assert "2 of 4 clients are left out" in caplog.text
    caplog.clear()
    data = load_text(path)
    assert data.owners is not None
    assert data.owners.names == ("a", "b", "d")  # only who has nothing
    assert "1 of 4 clients are left out" in caplog.text


def test_other_text_can_be_the_test_part(tmp_path: Path) -> None:
    path = folder_of(tmp_path / "train", {"a": LINES, "b": LINES})
    test = folder_of(tmp_path / "test", {"b": "of b, whom we know", "z": "of z, a stranger"})
    data = load_text(path, test_path=test, length=8)
    assert data.owners is not None
    assert text_of(data, "train", 1) == LINES
    assert text_of(data, "test", 1) == "of b, whom we know"
    assert text_of(data, "test", -1) == "of z, a stranger"
    with pytest.raises(ConfigError, match=r"^data\.test_share: .*data\.test_path"):
        parse({"data": {"name": f"text:{path}", "test_path": str(test), "test_share": 0.2}})


def test_fewer_examples_are_of_the_same_clients(tmp_path: Path) -> None:
    path = folder_of(tmp_path / "texts", dict.fromkeys("abc", LINES) | {"d": "short one"})
    whole, part = load_text(path, length=8), load_text(path, length=8, examples=20, test_examples=5)
    assert part.owners is not None
    assert whole.owners is not None
    assert part.owners.test is not None
    assert (len(part.train), len(part.test)) == (20, 5)
    assert len(part.owners.test) == 5
    check_owners(part.owners, 20)
    rows = {
        (whole.owners.names[owner], tuple(x))
        for owner, x in zip(whole.owners.train, inputs_of(whole.train).tolist(), strict=True)
    }
    for owner, x in zip(part.owners.train, inputs_of(part.train).tolist(), strict=True):
        assert (part.owners.names[owner], tuple(x)) in rows


def test_the_encoding_is_followed(tmp_path: Path) -> None:
    text = "Frühstück in Köln\n" * 20
    for encoding in ("latin-1", "utf-16", "utf-8"):
        (tmp_path / "a.txt").write_text(text, encoding=encoding)
        data = load_text(tmp_path / "a.txt", encoding=encoding)
        assert text_of(data, "train") + text_of(data, "test") == text


def test_targets_that_do_not_count_are_those_that_losses_ignore() -> None:
    assert NO_TARGET == NO_LABEL


def test_a_configuration_loads_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(LINES)
    keys = {"name": f"text:{tmp_path / 'a.txt'}", "tokens": "bpe", "vocabulary": 260, "length": 5}
    data = load_data(parse({"data": {**keys, "partition": "iid"}}))
    assert data.text is not None
    assert data.text.vocabulary == 260
    assert data.inputs == (5,)


def make_broken(path: Path) -> None:
    """Make a file that is not UTF-8 after more than one chunk with incomplete characters."""
    path.write_bytes("é".encode() * 150_000 + b"a\xff")


WRONG: dict[str, tuple[bytes | None, dict[str, Any], type[Exception], str]] = {
    "missing path": (None, {}, DataError, "a.txt: no such"),
    "empty file": (b"", {}, DataError, "a.txt: .*no text"),
    "encoding": (b"ab\xff", {}, DataError, r"byte 2 .*utf-8.*data\.encoding"),
    "cut": (b"ab\xc3", {}, DataError, "byte 2 .*utf-8"),
    "utf-16": (b"abc", {"encoding": "utf-16-le"}, DataError, "byte 2 .*utf-16-le"),
    "no encoding": (b"abc", {"encoding": "klingon"}, ConfigError, r"^data\.encoding: 'klingon'"),
    "no text encoding": (b"abc", {"encoding": "hex"}, ConfigError, r"^data\.encoding: 'hex'"),
    "column": (b"abc", {"column": "a"}, ConfigError, r"^data\.column: .*\.csv"),
    "client": (b"abc", {"client": "a"}, ConfigError, r"^data\.client: .*\.csv"),
    "short": (b"abc", {"length": 4}, ConfigError, r"^data\.length: 4 .*a\.txt.* 3 "),
    "endless": (b"ab" * 99, {"length": 10**12}, ConfigError, r"^data\.length: 1,000,000,000,000"),
    "no test part": (b"abcd", {"length": 2}, DataError, "test part"),
    "no training part": (b"abcd", {"length": 2, "test_share": 0.9}, DataError, "training part"),
    "least": (b"abcd" * 20, {"least": 81}, ConfigError, r"^data\.least: 81.* 80 "),
    "strange character": (
        b"ab" * 45 + b"abcababcab",
        {"tokens": "characters"},
        DataError,
        "'c' .*92",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_text_that_cannot_be_used_is_named(what: str, tmp_path: Path) -> None:
    content, keys, kind, expected = WRONG[what]
    path = tmp_path / "a.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(kind, match=expected) as caught:
        load_text(path, **keys)
    errors.check("text", what, caught.value)
    assert str(path) in str(caught.value) or str(caught.value).startswith("data.")


def test_a_byte_that_is_wrong_is_told_wherever_chunks_end(tmp_path: Path) -> None:
    make_broken(tmp_path / "a.txt")
    with pytest.raises(DataError, match=r"a\.txt: byte 300,001 .*utf-8"):
        load_text(tmp_path / "a.txt")


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    with pytest.raises(DataError, match=r"texts: .*no text"):
        load_text(tmp_path / "texts")


UNKNOWN_KEYS: dict[str, dict[str, Any]] = {
    "data.vocabulary: 'bytes'.*data.tokens = bpe": {"vocabulary": 300},
    "data.vocabulary: 255.* 256": {"tokens": "bpe", "vocabulary": 255},
    "data.size: 'text:x'.*data.name = hf or folder": {"size": 3},
    "data.lenght: .*'length'": {"lenght": 3},
    "data.tokens: 'byte'.* bytes, characters, bpe, file:PATH": {"tokens": "byte"},
    "data.test_share: 1.0 .*1.0": {"test_share": 1.0},
}


@pytest.mark.parametrize("reason", UNKNOWN_KEYS)
def test_a_key_that_text_does_not_have_is_refused(reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^{reason}") as caught:
        parse({"data": {"name": "text:x", **UNKNOWN_KEYS[reason]}})
    errors.check("keys of text", UNKNOWN_KEYS[reason], caught.value)


def test_a_tokeniser_of_others_is_used_and_held_to_its_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "import json, numpy as np\n"
        "class Mine:\n"
        "    def __init__(self, context, vocabulary=128):\n"
        "        self.vocabulary = vocabulary\n"
        "        self.byte_lengths = np.ones(vocabulary, dtype=np.int64)\n"
        "    def encode(self, text):\n"
        "        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)\n"
        "    def decode(self, numbers):\n"
        "        return bytes(numbers).decode()\n"
        "    def to_json(self):\n"
        "        return json.dumps({'tokens': 'mine:Mine'})\n"
    )
    (tmp_path / "a.txt").write_text(LINES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    data = load_text(tmp_path / "a.txt", tokens="mine:Mine")
    assert data.text is not None
    assert (data.text.vocabulary, json.loads(data.text.tokens)) == (128, {"tokens": "mine:Mine"})
    with pytest.raises(DataError, match=r"a.txt: .* 120.* 100"):
        load_text(tmp_path / "a.txt", tokens="mine:Mine", options={"vocabulary": 100})
