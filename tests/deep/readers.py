"""All readers of files and messages, each with valid bytes."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

from submodel.algorithm.dispatch import Dispatcher
from submodel.algorithm.rounds import initial_state
from submodel.algorithm.types import Assignment, Setup, Task, Update
from submodel.comparison.results import ComparisonResult, comparison_rows
from submodel.config import Config, parse, read, to_toml
from submodel.config.meaning import fingerprint
from submodel.config.setup import prepare
from submodel.data import cache as data_cache
from submodel.data.facts import ColumnCode, TableFacts
from submodel.data.images import Images, ImageSet
from submodel.data.sources.cifar import CIFAR10, read_cifar
from submodel.data.sources.folder import read_folder
from submodel.federation.device import Report
from submodel.federation.facts import (
    Facts,
    keep_encoding,
    read_run_head,
    receive_encoding,
    run_head,
)
from submodel.federation.own_data import OwnData
from submodel.federation.roster import read_roster
from submodel.federation.wire import (
    Message,
    TrainingCost,
    WireError,
    moments_limits,
    moments_message,
    read_as,
    read_moments,
    read_task,
    read_update,
    task_message,
    update_limits,
    update_message,
)
from submodel.model.axes import trace
from submodel.model.axes.declare import from_json, to_json
from submodel.model.cut import PlannedCut
from submodel.runs import checkpoint
from submodel.runs.loop import RunFolder
from tests.deep import mutate, text
from tests.deep.pages import PAGE_READERS, of_comparison
from tests.deep.reader import Reader
from tests.model.zoo import transformer

CONFIG = parse(
    {
        "model": {"name": "cnn", "width": 2},
        "data": {"examples": 60, "test_examples": 20},
        "clients": {"count": 3, "per_round": 2, "capacities": [1, 0.5]},
        "engine": {"device": "cpu"},
    }
)
FACTS = Facts((1, 2, 2), "float32", 3, ("ant", "bee", "cat"), (0.5,), (0.25,))
PICTURES = parse({"data": {"name": "folder:/here", "size": 2}})


# Configurations


def _configurations() -> tuple[bytes, ...]:
    other = parse(
        {
            "scheme": {"name": "random", "granularity": "coordinate"},
            "clients": {"capacities": [1, "1/2"], "per_round": 5},
            "server": {"name": "adam"},
            "local": {"lr": 0.1, "steps": 3, "epochs": None},
        }
    )
    return tuple(to_toml(config).encode() for config in (Config(), CONFIG, other, PICTURES))


def _configuration(path: Path) -> None:
    config = read(path)
    fingerprint(config)
    assert parse(_toml(to_toml(config))) == config
    assert config.clients.sample_size > 0


def _toml(text: str) -> dict[str, object]:
    return tomllib.loads(text)


def _settings() -> tuple[bytes, ...]:
    lines = _configurations()[0].decode().splitlines()
    section, found = "", []
    for line in lines:
        if line.startswith("["):
            section = line.strip("[]") + "."
        elif line:
            found.append(f"{section}{line}".encode())
    return tuple(found)


def _setting(path: Path) -> None:
    config = read(None, [path.read_bytes().decode("utf-8", "surrogateescape")])
    assert config.clients.sample_size > 0


# A run's folder


@cache
def _setup() -> Setup:
    return prepare(CONFIG)


def _run(folder: Path) -> None:
    """Make a run of two rounds that was stopped."""
    state = initial_state(_setup())
    weights = {n: t for n, t in state.tensors.items() if n.endswith("weight")}
    state = replace(state, client_slots={f"1/0/{n}": t + 1 for n, t in weights.items()})
    run = RunFolder(folder)
    run.create(CONFIG)
    for number in (1, 2):
        checkpoint.save(run.checkpoints, replace(state, round=number), CONFIG)
        run.add_metrics(json.loads(_line(number)))


def _line(number: int) -> str:
    line = {"round": number, "epoch": 0, "clients": 2, "train_loss": 2.25, "refused": {},
            "missing": {"1": "no answer"}, "seconds": {"train": 0.5}, "bytes_down": 10,
            "bytes_up": 20, "flops": 1e9, "test_accuracy": 0.5, "test_loss": 1.0,
            "coverage": {"units": 1.0, "weights": 0.5}}  # fmt: skip
    return json.dumps(line) + "\n"


CHECKPOINT = "checkpoints/round-000002/"


def _states() -> tuple[bytes, ...]:
    return (_written(f"{CHECKPOINT}state.json"),)


def _optimisers() -> tuple[bytes, ...]:
    return (_written(f"{CHECKPOINT}optimisers.safetensors"),)


def _models() -> tuple[bytes, ...]:
    return (_written(f"{CHECKPOINT}model.safetensors"),)


def _written(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        _run(Path(folder))
        return (Path(folder) / name).read_bytes()


def _checkpoint(path: Path) -> None:
    state = initial_state(_setup())
    checkpoint.read_checkpoint(path.parent, CONFIG, state)


def _metrics(path: Path) -> None:
    RunFolder(path.parent).metrics()


def _summary(path: Path) -> None:
    RunFolder(path.parent).summary()


def _summaries() -> tuple[bytes, ...]:
    summary = {
        "rounds": 2,
        "model_sha256": "ab" * 32,
        "seconds": 1.5,
        "capacity_accuracy": {"1": 0.5},
    }
    return (json.dumps(json.loads(_line(2)) | summary, indent=2).encode(),)


def _devices() -> tuple[bytes, ...]:
    report = Report("mine", 5, (0, 2), 0.5, None, "abc").head()
    entry = {"node": 2**63, "client": 0, "report": report, "answered": 3, "missed": 1,
             "last_seen": 1.5e9, "present": True, "last_problem": "late"}  # fmt: skip
    return (json.dumps([entry, {**entry, "client": 1}], indent=2).encode(),)


# Experiments


def _compared(path: Path) -> None:
    """Read the comparison of two runs on a page."""
    comparison_rows(ComparisonResult.read(path.parent))


# Messages


@cache
def _task(transport: str, granularity: str) -> Task:
    setup = _setup() if granularity == "unit" else _masked()
    return Dispatcher(setup, initial_state(setup), setup.work).task(Assignment(0, 1, 0.5))


@cache
def _masked() -> Setup:
    return prepare(parse({**_toml(to_toml(CONFIG)),
                          "scheme": {"name": "random", "granularity": "coordinate"}}))  # fmt: skip


WAYS = (("exact", "unit"), ("half", "unit"), ("exact", "coordinate"))


def _tasks() -> tuple[bytes, ...]:
    made = []
    for transport, granularity in WAYS:
        setup = _setup() if granularity == "unit" else _masked()
        message = task_message(_task(transport, granularity), setup.module, True, transport)  # type: ignore[arg-type]
        head = run_head(CONFIG, Facts.of(setup.clients.dataset))
        made.append(replace(message, head={**head, **message.head}).to_bytes())
    return tuple(made)


def _read_task(path: Path) -> None:
    message = Message.from_bytes(path.read_bytes())
    read_run_head(message.head)
    read_task(message, _setup())


TEXT_FACTS = Facts((4,), "int64", None, (), (), (), 300, "language", (4,), "int64", True)
TABLE_FACTS = Facts((3,), "float32", 2, (), (), ())
TEXTS = parse({"data": {"name": "text:/here", "length": 4, "tokens": "characters"}})
TABLES = parse({"data": {"name": "csv:/here", "target": "b"}})
TABLE = TableFacts((ColumnCode("a", 1.5, 0.5), ColumnCode("c", words=("x", "y"))), ("no", "yes"))


def _questions() -> tuple[bytes, ...]:
    """Make the messages that ask for a device's identity and send the rules for text or a table."""
    heads = [
        {**run_head(TEXTS, TEXT_FACTS), "encoding": {"tokens": tokens.decode(), "table": None}}
        for tokens in text.tokenisers()
    ]
    heads.append(
        {**run_head(TABLES, TABLE_FACTS), "encoding": {"tokens": None, "table": asdict(TABLE)}}
    )
    return tuple(Message(head, {}).to_bytes() for head in heads)


def _own_text_and_table(folder: Path) -> None:
    (folder / "own.txt").write_text("the cat sat on the mat")
    (folder / "own.csv").write_text("a,b,c\n1,no,x\n2,yes,z\n")


def _read_question(path: Path) -> None:
    head = Message.from_bytes(path.read_bytes()).head
    _read_own(path.parent, *read_run_head(head), head)


def _read_own(folder: Path, config: Config, facts: Facts, head: Mapping[str, Any]) -> None:
    """Read own data like a device, with any fingerprint, as random bytes never match it."""
    fingerprint = hashlib.sha256(json.dumps(head.get("encoding"), sort_keys=True).encode())
    keep_encoding(head, fingerprint.hexdigest())
    for source in (head, {}):  # in the received form and in the stored form
        receive = partial(receive_encoding, source, fingerprint.hexdigest())
        kind = "text" if config.data.name.startswith("text") else "csv"
        file = folder / ("own.txt" if kind == "text" else "own.csv")
        OwnData.of(f"{kind}:{file}").read(config, facts, receive)


def _encodings() -> tuple[bytes, ...]:
    heads = [Message.from_bytes(question).head["encoding"] for question in _questions()]
    return tuple(json.dumps(head).encode() for head in heads)


def _read_encoding(path: Path) -> None:
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise WireError(error) from None
    if isinstance(values, dict) and values.get("table"):
        _read_own(path.parent, TABLES, TABLE_FACTS, {"encoding": values})
    else:
        _read_own(path.parent, TEXTS, TEXT_FACTS, {"encoding": values})


def _updates() -> tuple[bytes, ...]:
    made = []
    for transport, granularity in WAYS:
        task = _task(transport, granularity)
        update = Update(task.assignment, task.cut, task.tensors, 5, 10, 0.25, ((0.5, 10),))
        message = update_message(update, task, transport)  # type: ignore[arg-type]
        head = {**message.head, "training": 1.5, "peak_memory": 10**9}
        made.append(replace(message, head=head).to_bytes())
    return tuple(made)


def _read_update(path: Path) -> None:
    data, refusals = path.read_bytes(), []
    for transport, granularity in WAYS:
        task = _task(transport, granularity)
        try:
            message = Message.from_bytes(data, update_limits(task, transport))  # type: ignore[arg-type]
            read_as(TrainingCost, message.head)
            tensors = read_update(message, task).tensors
            assert {n: t.shape for n, t in tensors.items()} == {
                n: t.shape for n, t in task.tensors.items()
            }
        except WireError as error:
            refusals.append(error)
    if len(refusals) == len(WAYS):
        raise refusals[0]


def _reports() -> tuple[bytes, ...]:
    report = Report("mine", 5, (0, 2), 0.5, None, "abc")
    return tuple(Message(replace(report, part=part).head(), {}).to_bytes() for part in (None, 1))


def _read_report(path: Path) -> None:
    Report.read(Message.from_bytes(path.read_bytes()).head)


def _moments() -> tuple[bytes, ...]:
    return (moments_message(torch.ones(1, 7, dtype=torch.float64)).to_bytes(),)


def _read_moments(path: Path) -> None:
    limits = moments_limits(_task("exact", "unit"))
    read_moments(Message.from_bytes(path.read_bytes(), limits), 7)


# Data


def _arrays() -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    return {"x": np.arange(16, dtype=np.float32).reshape(4, 1, 2, 2), "y": np.array([0, 1, 2, 0])}


def _npz() -> tuple[bytes, ...]:
    made = []
    for store in (np.savez, np.savez_compressed):
        content = io.BytesIO()
        store(content, **_arrays())  # type: ignore[arg-type]
        made.append(content.getvalue())
    return tuple(made)


def _tensors() -> tuple[bytes, ...]:
    return (save({name: torch.from_numpy(array) for name, array in _arrays().items()}),)


def _own(path: Path) -> None:
    OwnData(path).read(PICTURES, FACTS)


def _own_pictures(path: Path) -> None:
    OwnData(path.parent.parent).read(PICTURES, FACTS)


def _pictures() -> tuple[bytes, ...]:
    made = []
    for mode, form, options in (
        ("L", "PNG", {}), ("RGB", "PNG", {}), ("P", "PNG", {}), ("RGBA", "PNG", {}),
        ("1", "PNG", {}), ("I;16", "PNG", {}), ("L", "JPEG", {}), ("RGB", "JPEG", {}),
        ("CMYK", "JPEG", {}), ("RGB", "JPEG", {"progressive": True}),
        ("RGB", "TIFF", {}), ("RGB", "DDS", {}), ("RGB", "JPEG2000", {}), ("RGB", "GIF", {}),
    ):  # fmt: skip
        content = io.BytesIO()
        Image.new(mode, (6, 5), 1).save(content, form, **options)
        made.append(content.getvalue())
    return tuple(made)


def _folder(path: Path) -> None:
    read_folder(path.parent.parent.parent, 2)


def _two_classes(folder: Path) -> None:
    for part in ("train", "test"):
        for name in ("ant", "bee"):
            (folder / part / name).mkdir(parents=True, exist_ok=True)
            Image.new("L", (2, 2)).save(folder / part / name / "0.png")


SPEC = replace(CIFAR10, train_records=1, test_records=1, verify=False)


def _packed(files: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(
                f"{'folder/' * 30}{name}"
            )  # so long that it has its own header
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return content.getvalue()


def _archives() -> tuple[bytes, ...]:
    records = {name: bytes([3]) + bytes(3072) for name in SPEC.records}
    names = {"batches.meta.txt": b"a b c d e f g h i j"}
    row = io.BytesIO()
    Image.new("RGB", (1024, 1)).save(row, "PNG")
    rows = {name.replace(".bin", ".png"): row.getvalue() for name in SPEC.records}
    labels = {"train_lables.json": b"[0, 1, 2, 3, 4]", "test_lables.json": b"[9]"}
    return _packed({**records, **names}), _packed({**rows, **labels})


def _archive(path: Path) -> None:
    read_cifar(path, SPEC, "label")


def _label_files() -> tuple[bytes, ...]:
    return (b"[0, 1, 2, 3, 4]",)


def _rows_beside(folder: Path) -> None:
    row = io.BytesIO()
    Image.new("RGB", (1024, 1)).save(row, "PNG")
    for name in SPEC.records:
        (folder / name.replace(".bin", ".png")).write_bytes(row.getvalue())
    (folder / "test_lables.json").write_text("[9]")


def _label_file(path: Path) -> None:
    read_cifar(path.parent, SPEC, "label")


def _kept_images() -> tuple[bytes, ...]:
    part = Images(np.zeros((2, 3, 4, 4), dtype=np.uint8), np.array([0, 1]))
    before = os.environ.get("SUBMODEL_DATA")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SUBMODEL_DATA"] = folder
        try:
            path = data_cache.store("kept", ImageSet(part, part, ("a", "b"), "archive"))
        finally:
            os.environ.pop("SUBMODEL_DATA")
            if before is not None:
                os.environ["SUBMODEL_DATA"] = before
        return (path.read_bytes(),)


def _restore(_: Path) -> None:
    data_cache.restore("kept")


# Plans


def _plans() -> tuple[bytes, ...]:
    plan = {"a.weight": ((0, np.array([0, 1, 2, 7])), (1, np.arange(5))), "b": ((0, np.arange(9)),)}
    return (PlannedCut(plan).to_json().encode(), b'{"w": [[0, [[0, 3], [7, 8]]]]}')


def _plan(path: Path) -> None:
    PlannedCut.from_json(path.read_bytes().decode("utf-8", "surrogateescape"))


def _axes() -> tuple[bytes, ...]:
    found = [to_json(_setup().axes)]
    for entry in transformer.ENTRIES[:3]:
        module, inputs = entry.make()
        found.append(to_json(trace(module, inputs, outputs=entry.outputs, verify=False)))
    return tuple(text.encode() for text in found)


def _read_axes(path: Path) -> None:
    axes = from_json(path.read_bytes().decode("utf-8", "surrogateescape"))
    repr(axes)
    for own in axes.layouts.values():
        for layout in own:
            assert layout.size >= 0


READERS = {
    "configuration": Reader(_configuration, "config.toml", _configurations, mutate.text),
    "setting": Reader(_setting, "setting", _settings, mutate.text),
    "state": Reader(_checkpoint, f"{CHECKPOINT}state.json", _states, mutate.text, _run),
    "model": Reader(
        _checkpoint, f"{CHECKPOINT}model.safetensors", _models, mutate.safetensors, _run
    ),
    "optimisers": Reader(
        _checkpoint, f"{CHECKPOINT}optimisers.safetensors", _optimisers, mutate.safetensors, _run
    ),
    "metrics": Reader(
        _metrics,
        "metrics.jsonl",
        lambda: ((_line(1) + _line(2)).encode(),),
        mutate.text,
        _run,
        takes_what_it_can=True,
    ),
    "summary": Reader(_summary, "summary.json", _summaries, mutate.text, _run),
    "record": of_comparison(_compared, "rolling.json"),
    "comparison": of_comparison(_compared, "comparison.json"),
    "devices": Reader(lambda path: read_roster(path), "devices.json", _devices, mutate.text),
    "task": Reader(_read_task, "message", _tasks, mutate.safetensors),
    "question": Reader(
        _read_question, "message", _questions, mutate.safetensors, _own_text_and_table
    ),
    "encoding": Reader(
        _read_encoding, "encoding.json", _encodings, mutate.text, _own_text_and_table
    ),
    "update": Reader(_read_update, "message", _updates, mutate.safetensors),
    "report": Reader(_read_report, "message", _reports, mutate.safetensors),
    "moments": Reader(_read_moments, "message", _moments, mutate.safetensors),
    "npz": Reader(_own, "own.npz", _npz, mutate.npz),
    "tensors": Reader(_own, "own.safetensors", _tensors, mutate.safetensors),
    "pictures": Reader(_own_pictures, "ant/1.png", _pictures, mutate.png, memory=800_000_000),
    "folder": Reader(
        _folder, "train/ant/1.png", _pictures, mutate.png, _two_classes, memory=800_000_000
    ),
    "archive": Reader(_archive, "cifar.tar.gz", _archives, mutate.archive),
    "labels": Reader(_label_file, "train_lables.json", _label_files, mutate.text, _rows_beside),
    "kept": Reader(_restore, "kept.safetensors", _kept_images, mutate.safetensors),
    "tokens": Reader(text.read_tokeniser, "tokens.json", text.tokenisers, mutate.text),
    "rows": Reader(text.read_rows, "rows.jsonl", text.json_rows, mutate.text),
    "csv rows": Reader(text.read_rows, "rows.csv", text.csv_rows, mutate.text),
    "plan": Reader(_plan, "plan.json", _plans, mutate.text, memory=300_000_000),
    "axes": Reader(_read_axes, "axes.json", _axes, mutate.text),
    **PAGE_READERS,
}
