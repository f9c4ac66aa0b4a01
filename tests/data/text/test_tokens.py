"""Text as tokens and back: lossless, with counted bytes; bad tokenisers are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from submodel.core.errors import ConfigError, DataError
from submodel.data.builtin_data import TOKENS
from submodel.data.text.tokens import (
    CharacterTokens,
    NoTokenError,
    Tokeniser,
    TokensContext,
    read_tokens,
)
from tests.pins import errors

TEXT = "the cat sat on the mat; the naïve cat ate the rat. ☃☃\n" * 20
ALPHABET = "".join(sorted(set(TEXT)))


def make(name: str, *pieces: str, **keys: Any) -> Tokeniser:
    """Fit a tokeniser to a training part."""
    component = TOKENS.find(name)
    context = TokensContext(lambda: pieces or (TEXT,), component.argument)
    return component.make(component.options(**keys), context)


BPE = make("bpe", vocabulary=300)
BYTES = make("bytes")
CHARACTERS = make("characters")


@pytest.mark.parametrize("tokens", [BYTES, BPE], ids=["bytes", "bpe"])
@given(text=st.text())
@settings(deadline=None)
def test_any_text_comes_back_and_its_bytes_are_counted(tokens: Tokeniser, text: str) -> None:
    numbers = tokens.encode(text)
    assert numbers.dtype == np.int32
    assert tokens.decode(numbers) == text
    assert tokens.byte_lengths[numbers].sum() == len(text.encode())
    assert len(tokens.byte_lengths) == tokens.vocabulary


@given(text=st.text(ALPHABET))
@settings(deadline=None)
def test_a_text_of_the_alphabet_comes_back_from_characters(text: str) -> None:
    numbers = CHARACTERS.encode(text)
    assert len(numbers) == len(text)
    assert CHARACTERS.decode(numbers) == text
    assert CHARACTERS.byte_lengths[numbers].sum() == len(text.encode())


@pytest.mark.parametrize("name", ["bytes", "characters", "bpe"])
def test_a_tokeniser_is_the_same_after_it_was_written_as_json(name: str) -> None:
    tokens = make(name)
    again = read_tokens(tokens.to_json())
    assert again.encode(TEXT).tolist() == tokens.encode(TEXT).tolist()
    assert again.vocabulary == tokens.vocabulary
    assert again.byte_lengths.tolist() == tokens.byte_lengths.tolist()
    assert again.to_json() == tokens.to_json()


def test_bpe_has_as_many_tokens_as_asked_for_and_merges_what_is_common() -> None:
    assert BPE.vocabulary <= 300
    assert len(BPE.encode(TEXT)) < len(BYTES.encode(TEXT)) / 3
    assert len(make("bpe", vocabulary=256).encode("né")) == 3  # bytes, without any pair
    with pytest.raises(ValueError, match="256"):
        make("bpe", vocabulary=255)


@pytest.mark.slow
def test_bpe_is_trained_alike_in_another_process() -> None:
    code = (
        "from tests.data.text.test_tokens import BPE; import sys; sys.stdout.write(BPE.to_json())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == BPE.to_json()


def test_characters_seen_once_share_a_token_with_those_never_seen() -> None:
    tokens = make("characters", "abab", "cd")
    assert tokens.vocabulary == 3  # a, b, and all others
    assert tokens.encode("bcdxa").tolist() == [1, 2, 2, 2, 0]
    assert tokens.decode([0, 2]) == "a\N{REPLACEMENT CHARACTER}"


def test_a_strange_character_is_an_error_where_training_has_none_that_is_rare() -> None:
    tokens = make("characters", "abab")
    assert tokens.vocabulary == 2
    with pytest.raises(NoTokenError) as caught:
        tokens.encode("ab?a")
    assert (caught.value.piece, caught.value.position) == ("?", 2)
    with pytest.raises(DataError, match=r"^data.tokens: 'characters'"):
        make("characters", "abc")


BAD_JSON = {
    "nothing": "",
    "a list": "[]",
    "no name": "{}",
    "code": '{"tokens": "os:system"}',
    "another's": '{"tokens": "my_package.tokens:Mine"}',
    "no alphabet": '{"tokens": "characters", "unknown": true}',
    "an empty alphabet": '{"tokens": "characters", "alphabet": "", "unknown": true}',
    "twice": '{"tokens": "characters", "alphabet": "aa", "unknown": false}',
    "half a character": '{"tokens": "characters", "alphabet": "a\\ud800", "unknown": false}',
    "no tokenizer": '{"tokens": "bpe"}',
    "an empty tokenizer": '{"tokens": "bpe", "tokenizer": {}}',
    "a tokenizer of another name": json.dumps({**json.loads(BPE.to_json()), "tokens": "file"})[:-9],
}


@pytest.mark.parametrize("what", BAD_JSON)
def test_json_that_is_no_tokeniser_of_ours_is_refused(what: str) -> None:
    with pytest.raises(DataError, match=r"^not a tokeniser"):
        read_tokens(BAD_JSON[what])


def words(path: Path, vocabulary: dict[str, int], unknown: str | None) -> Path:
    """Make a file with a tokeniser of whole words."""
    model = models.WordLevel(vocabulary, unk_token=unknown or "[none]")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(path))
    return path


def test_a_file_gives_the_tokens_that_it_says(tmp_path: Path) -> None:
    path = words(tmp_path / "words.json", {"the": 0, "cat": 1, "?": 7}, "?")
    tokens = make(f"file:{path}")
    assert tokens.vocabulary == 8  # up to the largest number
    assert tokens.encode("the cat\n the dog").tolist() == [0, 1, 0, 7]
    assert tokens.byte_lengths.tolist() == [3, 3, 0, 0, 0, 0, 0, 1]
    assert read_tokens(tokens.to_json()).encode("the cat").tolist() == [0, 1]


def test_a_file_adds_no_marks_and_cuts_nothing(tmp_path: Path) -> None:
    content = json.loads(BPE.to_json())["tokenizer"]
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_special_tokens(["[CLS]"])
    number = BPE.vocabulary
    assert tokenizer.token_to_id("[CLS]") == number
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A", None, [("[CLS]", number)])
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    tokenizer.save(str(tmp_path / "a.json"))
    tokens = make(f"file:{tmp_path / 'a.json'}")
    assert tokens.encode(TEXT).tolist() == BPE.encode(TEXT).tolist()
    assert tokens.encode("a").tolist() == BPE.encode("a").tolist()
    assert tokens.vocabulary == number + 1
    assert tokens.byte_lengths[number] == 0
    assert tokens.byte_lengths[:number].tolist() == BPE.byte_lengths.tolist()


def test_text_that_a_file_has_no_token_for_is_an_error_with_its_place(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    tokenizer.save(str(tmp_path / "ab.json"))
    tokens = make(f"file:{tmp_path / 'ab.json'}")
    assert tokens.encode("ab ba").tolist() == [0, 1, 1, 0]  # spaces may be lost
    with pytest.raises(NoTokenError) as caught:
        tokens.encode("ab xa")
    assert (caught.value.piece, caught.value.position) == ("x", 3)
    path = words(tmp_path / "words.json", {"the": 0}, None)
    with pytest.raises(DataError, match=r"^data.tokens: .*WordLevel"):
        make(f"file:{path}").encode("the dog")


BAD_FILES = {
    "no such file": (None, "No such"),
    "not JSON": ("{", "tokeniser"),
    "not text": (b"\xff\xfe", " text"),
    "another JSON": ('{"a": 1}', "tokeniser"),
    "no tokens": (Tokenizer(models.BPE()).to_str(), "0 tokens"),
    "too many": (
        '{"model": {"type": "WordLevel", "vocab": {"a": 2147483648}, "unk_token": "a"}}',
        "2,147,483,649",
    ),
}


@pytest.mark.parametrize("what", BAD_FILES)
def test_a_file_that_is_no_tokeniser_is_named(what: str, tmp_path: Path) -> None:
    content, expected = BAD_FILES[what]
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=rf"^data\.tokens: {path}: .*{expected}") as caught:
        make(f"file:{path}")
    errors.check("tokeniser", what, caught.value)


def test_characters_are_those_of_the_training_part_alone() -> None:
    assert make("characters", "ba", "ab") == CharacterTokens("ab")
