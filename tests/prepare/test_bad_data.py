"""Bad data from any source is reported in a sentence before the first round."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.pins import errors
from tests.support.commands import Command

OUTSIDER = '''
import torch
from torch import nn


class Rows(torch.utils.data.Dataset):
    """A usual map-style dataset."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, place):
        return self.rows[place]


def tokens(token=9, target=9, length=8, named=False, rows=40):
    x = torch.arange(rows * length).reshape(rows, length) % 10
    y = (x + 1) % 10
    x[-1:, -1], y[-1:, -1] = token, target
    mask = torch.ones(length, dtype=torch.long)
    pairs = list(zip(x, y))
    if named:
        pairs = [{"input_ids": a, "attention_mask": mask, "labels": b} for a, b in pairs]
    return Rows(pairs), Rows(pairs)


def numbers(value=0.0, rows=40):
    x = torch.arange(4.0 * rows).reshape(rows, 4)
    x[3, 1] = value
    pairs = [(a, torch.tensor(i % 3)) for i, a in enumerate(x)]
    return Rows(pairs), Rows(pairs)


class Net(nn.Module):
    def __init__(self, vocabulary=10, positions=8):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, 8), nn.Embedding(positions, 8)
        self.hidden, self.outputs = nn.Linear(8, 8), nn.Linear(8, vocabulary)

    def forward(self, x):
        places = self.places(torch.arange(x.shape[1]))
        return self.outputs(torch.relu(self.hidden(self.tokens(x) + places)))
'''
TABLE = "size,target,who\n" + "".join(f"{i},{'abc'[i % 3]},{'xy'[i % 2]}\n" for i in range(30))
FILES: dict[str, bytes] = {
    "good.csv": TABLE.encode(),
    "empty.csv": b"",
    "head.csv": b"size,target\n",
    "nan.csv": TABLE.replace("\n7,", "\nnan,").encode(),
    "latin.csv": TABLE.replace("a", "é").encode("latin-1"),
    "good.txt": b"the whale and the sea " * 60,
    "empty.txt": b"",
    "latin.txt": ("né " * 90).encode("latin-1"),
    "short.txt": b"abc",
}
GPT2: dict[str, Any] = {"n_embd": 16, "n_head": 2, "n_layer": 1}


def gpt2(**options: int) -> dict[str, Any]:
    return {"model.name": "transformers:GPT2Config", "model.options": {**GPT2, **options}}


def net(**options: int) -> dict[str, Any]:
    return {"model.name": "outsider_data:Net", "model.options": options}


def tokens(**options: Any) -> dict[str, Any]:
    return {"data.name": "outsider_data:tokens", "data.options": options}


def named(name: str, **keys: Any) -> dict[str, Any]:
    model = "gpt" if name.startswith("text") else "mlp"
    return {"data.name": name, "model.name": model} | {f"data.{k}": v for k, v in keys.items()}


BAD: dict[str, dict[str, Any]] = {
    "data.target: good.csv .*'sort'.* size, target, who": named("csv:good.csv", target="sort"),
    "data.columns: good.csv .*'age'": named("csv:good.csv", columns=["age"]),
    "data.client: good.csv .*'whom'": named("csv:good.csv", client="whom"),
    "data.column: good.csv .*'words' .* size, target, who": named("text:good.csv", column="words"),
    "empty.csv: .*rows": named("csv:empty.csv"),
    "head.csv: .*rows": named("csv:head.csv"),
    "empty.txt: .*text": named("text:empty.txt"),
    r"nan.csv: .*'size' \(1, .*8\)": named("csv:nan.csv"),
    "training data: .*example 3 .*finite": {
        **named("outsider_data:numbers"), "data.options": {"value": float("nan")}},
    "training data: .*items": {
        **named("outsider_data:tokens"), "data.options": {"rows": 0}, **net()},
    "latin.csv: .*UTF-8 .*byte ": named("csv:latin.csv"),
    "latin.txt: byte 1 .*utf-8.*data.encoding": named("text:latin.txt"),
    "model.options.vocab_size: 100 .*256 tokens": {
        **named("text:good.txt"), **gpt2(vocab_size=100)},
    "model.options.vocab_size: 10 .*13 tokens": {
        **tokens(token=12, named=True), **gpt2(vocab_size=10)},
    " 0 to 99, .*inputs .*32 to 119": {
        **named("text:good.txt"), **net(vocabulary=100, positions=64)},
    r"data: example 39: Net .*\(2, 8\).*'tokens' \(Embedding\).* 0 to 9, .*2 to 10": {
        **tokens(token=10), **net()},
    " 0 to 9, .*inputs .*-7 to 8": {
        **tokens(token=-7, named=True), **gpt2(vocab_size=10)},
    "training data: example 39: target 10 .*0 to 9 .*-100": {**tokens(target=10), **net()},
    "training data: example 39: target -3 .*0 to 9": {
        **tokens(target=-3, named=True), **gpt2(vocab_size=10)},
    "model.options.n_positions: 32 .*64 positions": {
        **named("text:good.txt"), **gpt2(n_positions=32)},
    " 0 to 7, .* 0 to 8: sequences of 9 ": {
        **tokens(length=9), **net()},
    "data.length: 64 .*short.txt .*3 ": named("text:short.txt"),
    "clients.count: 100 .*3 labels": {
        **named("csv:good.csv"), "clients.count": 100},
    "clients.count: 5 .*2 clients": {
        **named("csv:good.csv", client="who"), "clients.count": 5, "clients.per_round": 2},
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with all good and bad files."""
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "outsider_data.py").write_text(OUTSIDER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SUBMODEL_DATA", str(tmp_path / "cache"))
    return tmp_path


def words(settings: dict[str, Any]) -> list[str]:
    values = {"clients.count": 4, "clients.per_round": 2, "train.rounds": 1, **settings}
    if values.get("data.client"):
        values = {k: v for k, v in values.items() if k in settings or not k.startswith("clients")}
    return [word for key, value in values.items() for word in ("--set", f"{key}={_toml(value)}")]


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    return "nan" if value != value else json.dumps(value)


@pytest.mark.slow
@pytest.mark.parametrize("reason", BAD)
def test_it_is_said_before_the_first_round(place: Path, submodel: Command, reason: str) -> None:
    result = submodel("train", *words(BAD[reason]), "--out", "run", cwd=place)
    errors.check("bad data", BAD[reason], result)
    assert result.returncode == 2
    assert re.search(reason, result.stderr)
    assert not (place / "run").exists()


GOOD = {
    "pairs of tokens": {**tokens(), **net()},
    "pairs with places that do not count": {**tokens(target=-100), **net()},
    "dictionaries": {**tokens(named=True), **gpt2()},
    "numbers": named("outsider_data:numbers"),
    "a table by clients": named("csv:good.csv", client="who"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", GOOD)
def test_what_an_outsider_wrote_is_trained(place: Path, submodel: Command, what: str) -> None:
    result = submodel("train", *words(GOOD[what]), "--out", "run", cwd=place)
    assert result.returncode == 0, result.stderr
    assert len((place / "run/metrics.jsonl").read_text().splitlines()) == 1
