"""Messages between a server and its devices, of every kind and in every form, and a federation."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from torch import Tensor

from submodel.algorithm import initial_state, step
from submodel.algorithm.evaluation import evaluate_model
from submodel.algorithm.types import Task
from submodel.config import parse, prepare
from submodel.core.errors import Interruption
from submodel.federation.device import Device, DeviceOptions, Report
from submodel.federation.facts import keep_encoding, read_run_head, receive_encoding, run_head
from submodel.federation.flower import server_app
from submodel.federation.flower.credentials import create, load_device, load_federation
from submodel.federation.flower.serving import ServingPlace
from submodel.federation.own_data import OwnData
from submodel.federation.roster import read_roster
from submodel.federation.server import over_devices
from submodel.federation.wire import (
    Message,
    ModelBase,
    TrainingCost,
    moments_message,
    read_as,
    read_base,
    read_moments,
    read_task,
    read_update,
    task_message,
    update_message,
)
from submodel.model import CostModel, prefix_cut
from submodel.runs import Training
from submodel.runs.checkpoint import model_sha256
from submodel.runs.folder import RunFolder
from submodel.schemes.scheme import sends_masks
from tests.compatibility.case import (
    Case,
    Observation,
    command_json,
    command_output,
    differences,
    page_parts,
    sha256,
    without_times,
)
from tests.support.devices import LocalChannel

Sections = dict[str, Any]
CORPUS, TABLE = "corpus.txt", "table.csv"
DEVICES: Sections = {"least": 2, "deadline": 5}
SMALL: Sections = {
    "model": {"name": "mlp", "width": 8},
    "data": {"examples": 40, "test_examples": 20},
    "clients": {"count": 2, "per_round": 2, "capacities": [0.5]},
    "train": {"rounds": 2},
    "engine": {"name": "flower", "device": "cpu"},
    "devices": DEVICES,
}
FORMS: dict[str, Sections] = {
    "units": {},
    "half": {"devices": {**DEVICES, "transport": "half"}},
    "drawn-masks": {"scheme": {"name": "random", "granularity": "coordinate"}},
    "sent-masks": {"scheme": {"name": "importance", "granularity": "coordinate"}},
    "widths": {"scheme": {"name": "ordered", "distill": 0.5}},
    "adapters": {"model": {"name": "mlp", "width": 8, "adapters": "lora", "adapter_rank": 4}},
    "norms": {"model": {"name": "preresnet18", "width": 2, "scaler": True}},
    "text": {
        "model": {"name": "gpt", "width": 8, "layers": 1, "heads": 2},
        "data": {"name": f"text:{CORPUS}", "tokens": "characters", "length": 16},
        "local": {"optimiser": "adamw"},
    },
    "table": {"data": {"name": f"csv:{TABLE}", "target": "kind"}},
}
NODES = (2**63 + 5, 2**63 + 22)


def write_messages(folder: Path) -> None:
    """Write the messages of a device in a round."""
    (folder / CORPUS).write_text("the cat sat on the mat and the dog ran to it\n" * 12)
    rows = [
        f"{n % 7},{'red' if n % 3 else 'blue'},{'tree' if n % 2 else 'bush'}" for n in range(60)
    ]
    (folder / TABLE).write_text("\n".join(["size,colour,kind", *rows]) + "\n")
    for form, sections in FORMS.items():
        with _at(folder):
            sent = _exchange({**SMALL, **sections})
        (folder / form).mkdir()
        for kind, (question, answer) in sent.items():
            (folder / form / f"{kind}.question").write_bytes(question)
            (folder / form / f"{kind}.answer").write_bytes(answer)
    message = Message.from_bytes((folder / "adapters/train.question").read_bytes())
    base = read_base(message, None)
    assert base is not None
    (folder / "base").write_bytes(Message({"base": base.digest}, base.tensors).to_bytes())
    (folder / "problem").write_bytes(Message({"problem": "no such folder"}, {}).to_bytes())


def _exchange(sections: Sections) -> dict[str, tuple[bytes, bytes]]:
    """Return the messages of a first round and an evaluation with one of two devices, by kind."""
    config = parse(sections)
    channel = LocalChannel({node: DeviceOptions(OwnData(part=part), name=f"device {part}")
                       for part, node in enumerate(NODES)})  # fmt: skip
    answers: dict[bytes, bytes] = {}
    honest = channel.honest

    def answer(node: int, kind: Any, payload: bytes) -> bytes:
        answers[payload] = honest(node, kind, payload)
        return answers[payload]

    with mock.patch.object(channel, "honest", answer):
        training = over_devices(Training(config, prepare(config)), channel)
        setup, engine = training.setup, training.engine
        assert engine is not None
        costs = CostModel(setup.module, setup.clients.dataset.example)
        state, report = step(setup, initial_state(setup), engine, costs)
        assert not report.refusals
        evaluate_model(setup, state, prefix_cut(setup.axes, 0.5))
    of_one = [(kind, payload) for node, kind, payload in reversed(channel.sent) if node == NODES[0]]
    return {kind: (payload, answers[payload]) for kind, payload in of_one}


@contextlib.contextmanager
def _at(folder: Path) -> Any:
    cache = {"SUBMODEL_DATA": str(folder / "cache")}
    with contextlib.chdir(folder), mock.patch.dict(os.environ, cache):
        yield


def read_messages(folder: Path) -> Observation:
    """Read every message, and check that it is sent again as the same bytes."""
    with _at(folder):
        found = {form: _read_form(folder / form) for form in FORMS}
    for name in ("base", "problem"):
        found[name] = _content(folder / name)
    base = Message.from_bytes((folder / "base").read_bytes())
    found["base"]["digest is its own"] = ModelBase.of(base.tensors).digest == base.head["base"]
    return found


def _read_form(form: Path) -> Observation:
    found = {file.name: _content(file) for file in sorted(form.iterdir())}
    report = Message.from_bytes((form / "report.question").read_bytes())
    config, facts = read_run_head(report.head)
    found["briefing"] = {
        "config": config.model_dump(mode="json", exclude_none=True),
        "facts": asdict(facts),
        "lost when sent": differences(report.head["facts"], run_head(config, facts)["facts"]),
    }
    if facts.encoding:
        keep_encoding(report.head, facts.encoding)
        later = receive_encoding({}, facts.encoding)  # in its form on disk
        found["encoding"] = {"tokens": later.tokens, "table": later.table and asdict(later.table)}
    device = Device(report.head, DeviceOptions(OwnData(part=0)))
    answer = Message.from_bytes((form / "report.answer").read_bytes())
    again = {"report": differences(_head_of(answer), Report.read(answer.head).head())}
    for kind in ("train", "moments"):
        if not (form / f"{kind}.question").exists():
            continue
        asked = Message.from_bytes((form / f"{kind}.question").read_bytes())
        base = read_base(asked, None)
        task = read_task(asked, device.setup, base)
        setup, transport = device.setup, config.devices.transport
        masks = sends_masks(setup.scheme) or kind == "moments"
        message = task_message(task, setup.module, masks, transport, base, base is not None)
        again[kind] = _lost(asked, message)
        found[f"{kind} task"] = _plain_task(task)
        answer = Message.from_bytes((form / f"{kind}.answer").read_bytes())
        if kind == "moments":
            rows = read_moments(answer, answer.tensors["rows"].shape[1])
            again["rows"] = _lost(answer, moments_message(rows))
            continue
        update = read_update(answer, task, setup.travel)
        cost = read_as(TrainingCost, answer.head)
        message = update_message(update, task, transport)
        head = {**message.head, **asdict(cost)}
        again["update"] = _lost(answer, replace(message, head=head))
        found["update"] = {
            "assignment": asdict(update.assignment),
            "numbers": [update.examples, update.examples_used, update.loss, update.passes,
                        update.examples_counted],
            "tensors": model_sha256(update.tensors),
        }  # fmt: skip
    return {**found, "lost when sent again": again}


def _content(file: Path) -> Observation:
    """Return the content for `Message`, with the run_head of all heads once."""
    message = Message.from_bytes(file.read_bytes())
    again = Message(_head_of(message), message.tensors).to_bytes()
    head = {k: v for k, v in message.head.items() if k not in _BRIEFING}
    return {"head": head, "tensors": _plain(message.tensors), "bytes": sha256(again)}


_BRIEFING = ("config", "facts")


def _head_of(message: Message) -> dict[str, Any]:
    return {key: value for key, value in message.head.items() if key != "version"}


def _lost(then: Message, now: Message) -> list[str]:
    """List missing and changed values of a message after sending it again."""
    head = {k: v for k, v in _head_of(then).items() if k not in _BRIEFING}
    today = json.loads(json.dumps(now.head))
    return differences(head, today) + differences(_plain(then.tensors), _plain(now.tensors))


def _plain(tensors: Mapping[str, Tensor]) -> Observation:
    """Return the type, shape and hash of each tensor."""
    return {name: _plain_tensor(tensors[name]) for name in sorted(tensors)}


def _plain_tensor(tensor: Tensor) -> list[Any]:
    return [str(tensor.dtype), list(tensor.shape), model_sha256({"": tensor})[:16]]


def _plain_task(task: Task) -> Observation:
    work = {k: v for k, v in vars(task.work).items() if isinstance(v, bool | int | float | str)}
    return {
        "assignment": asdict(task.assignment),
        "work": work,
        "classes": None if task.classes is None else task.classes.tolist(),
        "tensors": _plain(task.tensors),
        "scales": _plain(task.scales),
        "widths": None if task.step_rule is None else list(task.step_rule.widths),
    }


def compute_messages(folder: Path) -> Observation:
    """Return the answers of a device to recorded messages."""
    found: Observation = {}
    with _at(folder):
        for form in FORMS:
            head = Message.from_bytes((folder / form / "report.question").read_bytes()).head
            device = Device(head, DeviceOptions(OwnData(part=0), name="device 0"))
            for file in sorted((folder / form).glob("*.question")):
                kind = file.stem
                answer = device.answer(kind, Message.from_bytes(file.read_bytes()))
                costs = dict.fromkeys(("training", "peak_memory"))
                head = {k: v for k, v in answer.head.items() if k not in costs}
                found[f"{form}, {kind}"] = {"head": head, "tensors": model_sha256(answer.tensors)}
    return found


def _serve(folder: Path, silent_after: int | None = None) -> None:
    """Run the server app with devices in this process, which hang from some round on."""
    channel = LocalChannel({node: DeviceOptions(OwnData(part=part), name=f"device {part}")
                       for part, node in enumerate(NODES)})  # fmt: skip
    honest = channel.honest

    def answer(node: int, kind: Any, payload: bytes) -> bytes | None:
        round_ = Message.from_bytes(payload).head["assignment"]["round"]
        return None if round_ == silent_after else honest(node, kind, payload)

    if silent_after is not None:
        channel.spoil = {node: partial(answer, node) for node in NODES}
    context: Any = SimpleNamespace(run_config={"folder": str(folder / "run")})
    grid: Any = None
    with _at(folder), mock.patch.object(server_app, "GridChannel", return_value=channel):
        server_app.train_over_grid(grid, context)


def write_served(folder: Path) -> None:
    """Write a run over devices whose server gave up after two of four rounds."""
    config = {
        **SMALL,
        "name": "served",
        "train": {"rounds": 4, "evaluate_every": 2},
        "devices": {"least": 2, "deadline": 0.5, "tries": 1},
    }
    run = RunFolder(folder / "run")
    with _at(folder):
        run.create(parse(config))
    ServingPlace("127.0.0.1", 8000, None).save(run)
    with contextlib.suppress(Interruption):
        _serve(folder, silent_after=2)


def read_served(folder: Path) -> Observation:
    """Read the run and its devices."""
    command_output("report", "run", cwd=folder)
    watched = without_times(command_json("watch", "run", cwd=folder))
    watched.pop("reason")  # text with the time
    listed = without_times(command_json("runs", ".", cwd=folder))
    return {
        "show": command_json("show", "run", cwd=folder),
        "runs": {**listed["runs"][0], "reason": None},
        "watch": watched,
        "page": page_parts(folder / "run/report.html"),
        "devices": [asdict(entry) for entry in read_roster(folder / "run/devices.json")],
        "served at": asdict(ServingPlace.load(RunFolder(folder / "run"))),
    }


def compute_served(folder: Path) -> Observation:
    """Resume the run to its end with the same devices."""
    _serve(folder)
    found: Observation = json.loads((folder / "run/summary.json").read_text())
    return {
        "summary": without_times(found),
        "numbers": [entry.node for entry in read_roster(folder / "run/devices.json")],
    }


def write_federation(folder: Path) -> None:
    create(folder / "federation", ["127.0.0.1", "server.example"], ["phone", "watch"])
    (folder / "federation/.gitignore").unlink()  # these keys are public


def read_federation(folder: Path) -> Observation:
    """Read the devices and keys; a device has a copy of its own folder."""
    federation = load_federation(folder / "federation")
    federation.check("127.0.0.1", datetime.fromisoformat("2026-12-01").astimezone(UTC))
    device = load_device(folder / "federation/devices/phone")
    keys = federation.public_keys()
    return {
        "devices": list(federation.devices),
        "hosts": list(federation.hosts),
        "expires": federation.expires.isoformat(),
        "keys": {name: key.decode() for name, key in keys.items()},
        "server": asdict(federation.server),
        "device": [device.ca, sha256(device.key.read_bytes())],
    }


CASES = (
    Case("messages", write_messages, read_messages, compute_messages),
    Case("served-run", write_served, read_served, compute_served),
    Case("federation", write_federation, read_federation),
)
