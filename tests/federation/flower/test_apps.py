"""The apps for Flower, called with Flower's objects, without processes or network."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    MessageType,
    RecordDict,
)
from flwr.app import (
    Message as FlowerMessage,
)
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load_file

from submodel.algorithm.rounds import initial_state
from submodel.algorithm.types import Failure, Outcome, State, Task
from submodel.config import Config, parse, to_toml
from submodel.config.parts import find_axes, load_data
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError, SubmodelError
from submodel.engines.serial import SerialEngine
from submodel.federation.facts import Facts, run_head
from submodel.federation.flower import client_app, server_app
from submodel.federation.flower.messages import payload_of, to_records
from submodel.federation.flower.serving import ServingPlace
from submodel.federation.wire import Message
from submodel.model.axes import Axes
from submodel.runs.loop import RunFolder
from tests.support.rounds import step_of

Change = Callable[[FlowerMessage], list[FlowerMessage]]
SUPERLINK = 1  # the node id of Flower's own replies


class LocalGrid(Grid):
    """A grid whose nodes are in this process; each answers when its answer is pulled.

    ``spoil`` may replace a node's answer to a task.
    """

    def __init__(self, parts: int = 4, first: int = 2**63) -> None:
        nodes = {first + 17 * part: part for part in range(parts)}
        self.contexts = {
            node: Context(
                7, node, {"partition-id": part, "num-partitions": parts}, RecordDict(), {}
            )
            for node, part in nodes.items()
        }
        self.spoil: dict[int, Change] = {}
        self.sent: list[FlowerMessage] = []
        self._waiting: dict[str, FlowerMessage] = {}

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> FlowerMessage:
        raise NotImplementedError

    def send_and_receive(self, *_: Any, **__: Any) -> Iterable[FlowerMessage]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[FlowerMessage]) -> Iterable[str]:
        tickets = []
        for message in messages:
            ticket = f"message {len(self.sent)}"
            self.sent.append(message)
            vars(message.metadata)["_message_id"] = ticket  # like Flower's own grid
            self._waiting[ticket] = message
            tickets.append(ticket)
        return tickets

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[FlowerMessage]:
        for ticket in reversed(list(message_ids)):  # in no particular order
            message = self._waiting.pop(ticket, None)
            if message is not None:
                node = message.metadata.dst_node_id
                task = message.metadata.message_type == MessageType.TRAIN
                change = self.spoil.get(node) if task else None
                yield from [self.honest(message)] if change is None else change(message)

    def honest(self, message: FlowerMessage) -> FlowerMessage:
        return client_app.app(message, self.contexts[message.metadata.dst_node_id])


def config_of(**sections: Any) -> Config:
    values: dict[str, Any] = {
        "seed": 5,
        "model": {"name": "cnn", "width": 4},
        "data": {"examples": 120, "test_examples": 40},
        "clients": {"count": 4, "per_round": 4, "capacities": [1, 0.5, 0.25]},
        "train": {"rounds": 2, "evaluate_every": 2, "evaluate_capacities": False},
        "engine": {"name": "flower", "device": "cpu"},
        "devices": {"least": 4, "deadline": 5},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return parse(values)


@pytest.fixture(autouse=True)
def _as_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBMODEL_DATA", str(tmp_path / "cache"))
    for name in ("_run_id", "_node_id", "_task_id"):  # Flower's processes have an identity
        monkeypatch.setattr(TaskIdentity, name, SUPERLINK)


def run_config(folder: Path, config: Config) -> dict[str, bool | float | int | str]:
    """Return the run config of `flwr run --run-config`; missing keys are empty."""
    file = folder.with_suffix(".toml")
    file.write_text(to_toml(config))
    return {"config": str(file), "folder": str(folder), "settings": ""}


def run(folder: Path, config: Config, grid: Grid) -> RunFolder:
    """Start a run like Flower."""
    context = Context(7, SUPERLINK, {}, RecordDict(), run_config(folder, config))
    server_app.app(grid, context)
    return RunFolder(folder)


class Without(SerialEngine):
    """The serial engine without the answers of a client."""

    absent: int | None = None

    def run(self, tasks: Iterable[Task]) -> Iterator[Outcome]:  # type: ignore[override]
        for task in tasks:
            if task.assignment.client == self.absent:
                yield Failure(task.assignment, "absent")
            else:
                yield from super().run([task])


def trained_here(config: Config, absent: int | None = None) -> State:
    setup = prepare(config)
    engine = Without(setup)
    engine.absent = absent
    state = initial_state(setup)
    for _ in range(config.train.rounds):
        state, _ = step_of(setup, state, engine)
    return state


def assert_same(found: Path, expected: State) -> None:
    tensors = load_file(found)
    assert tensors.keys() == expected.tensors.keys()
    torch.testing.assert_close(expected.tensors, tensors, rtol=0, atol=0)


@pytest.mark.slow
def test_a_device_looks_at_the_model_when_it_comes_and_not_for_every_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def counted(*given: Any) -> Axes:
        nonlocal looks
        looks += 1
        return find_axes(*given)

    monkeypatch.setattr("submodel.federation.device.find_axes", counted)
    config, grid = config_of(), LocalGrid()
    folder = run(tmp_path / "run", config, grid)
    assert looks == len(grid.contexts)
    assert len(grid.sent) > 2 * looks
    other = config_of(axes={"whole": ["4"]})  # the same tensors, cut otherwise
    head = run_head(other, Facts.of(prepare(other).clients.dataset))
    for context in grid.contexts.values():
        assert client_app._earlier_axes(context, head) is None
    assert_same(folder.model_file, trained_here(config))


@pytest.mark.slow
def test_a_device_keeps_a_frozen_model_from_process_to_process(tmp_path: Path) -> None:
    model = {"name": "mlp", "width": 8, "adapters": "lora", "adapter_rank": 4}
    config, grid = config_of(model=model), LocalGrid()
    sent: list[bool] = []

    def note(message: FlowerMessage) -> list[FlowerMessage]:
        sent.append(b'"base/' in payload_of(message))
        return [grid.honest(message)]

    grid.spoil = dict.fromkeys(grid.contexts, note)
    folder = run(tmp_path / "run", config, grid)
    assert sent == [True] * 4 + [False] * 4
    assert_same(folder.model_file, trained_here(config))


@pytest.mark.slow
def test_a_run_through_flowers_objects_ends_with_the_bits_of_a_local_one(tmp_path: Path) -> None:
    config, grid = config_of(), LocalGrid()
    folder = run(tmp_path / "run", config, grid)
    assert_same(folder.model_file, trained_here(config))
    lines = folder.metrics()
    assert [line["clients"] for line in lines] == [4, 4]
    assert not any("missing" in line or line["refused"] for line in lines)
    kinds = [message.metadata.message_type for message in grid.sent]
    assert kinds[:4] == [MessageType.QUERY] * 4  # each is asked once for its identity
    assert kinds[4:12] == [MessageType.TRAIN] * 8
    assert MessageType.QUERY not in kinds[4:]
    assert [message.metadata.group_id for message in grid.sent[4:12]] == ["1"] * 4 + ["2"] * 4
    for message in grid.sent[4:12]:  # nothing is delivered long after its round
        assert 0 <= message.metadata.ttl - config.devices.deadline <= 10
        assert not message.content.array_records  # the device has taken the values out
    log = folder.log_file.read_text()
    assert "client 3 is" in log
    assert "round 1 of 2: train loss" in log
    assert log.endswith("finished\n")
    assert not folder.stopped_file.exists()


@pytest.mark.slow
def test_nodes_measure_for_the_static_norms(tmp_path: Path) -> None:
    config = config_of(model={"name": "preresnet18", "width": 2}, train={"rounds": 1})
    grid = LocalGrid()
    folder = run(tmp_path / "run", config, grid)
    assert_same(folder.model_file, trained_here(config))
    kinds = [message.metadata.message_type for message in grid.sent]
    assert MessageType.EVALUATE in kinds
    assert "sent no statistics" not in folder.log_file.read_text()
    assert folder.metrics()[-1]["test_accuracy"] >= 0


def gone(message: FlowerMessage) -> list[FlowerMessage]:
    """Make Flower's reply for a dead node, which has another sender."""
    reply = FlowerMessage(Error(code=5, reason="Node Unavailable"), reply_to=message)
    vars(reply.metadata)["_src_node_id"] = SUPERLINK
    return [reply]


def failed(message: FlowerMessage) -> list[FlowerMessage]:
    return [FlowerMessage(Error(code=2, reason="line\nValueError: no"), reply_to=message)]


def unheard_of(message: FlowerMessage) -> list[FlowerMessage]:
    return [FlowerMessage(Error(code=99), reply_to=message)]


def answers(records: RecordDict) -> Change:
    return lambda message: [FlowerMessage(records, reply_to=message)]


def arrays(name: str, *fields: Any) -> RecordDict:
    return RecordDict({"submodel": ArrayRecord({name: Array(*fields)})})


def late(message: FlowerMessage) -> list[FlowerMessage]:
    """Make an honest answer to the previous round."""
    reply = client_app.app(message, Context(7, 3, {"part": 2}, RecordDict(), {}))
    ours = Message.from_bytes(payload_of(reply))
    where = ours.head["assignment"]
    head = {**ours.head, "assignment": {**where, "round": where["round"] - 1}}
    return [FlowerMessage(to_records(Message(head, ours.tensors).to_bytes()), reply_to=message)]


FAULTS: dict[str, tuple[Change, str]] = {
    "the node died": (gone, "the device is gone (Node Unavailable)"),
    "its app raised": (failed, "its app failed (ValueError: no)"),
    "an error of another Flower": (unheard_of, "error 99"),
    "nothing": (answers(RecordDict()), "its answer: it cannot be read"),
    "other records": (
        answers(RecordDict({"submodel": ConfigRecord({"payload": b"x"})})),
        "its answer: it cannot be read",
    ),
    "another array": (answers(arrays("model", "uint8", (1,), "safetensors", b"x")), "cut short"),
    "another format": (
        answers(arrays("payload", "uint8", (9,), "numpy.ndarray", b"PK\x03\x04 a zip")),
        "cut short",
    ),
    "an empty array": (answers(arrays("payload", "uint8", (0,), "safetensors", b"")), "cut short"),
    "garbage": (
        answers(arrays("payload", "uint8", (99,), "safetensors", b"\xff" * 99)),
        "cut short",
    ),
    "an old answer": (late, "its answer: it answers for round 9, client 2"),
}


@pytest.mark.slow
def test_bad_answers_are_named_and_left_out(tmp_path: Path) -> None:
    """One fault per round, of one client; another's answers come with stray replies."""
    config = config_of(train={"rounds": len(FAULTS), "evaluate_every": len(FAULTS)})
    faults, grid = [change for change, _ in FAULTS.values()], LocalGrid()

    def in_turn(message: FlowerMessage) -> list[FlowerMessage]:
        return faults[int(message.metadata.group_id) - 1](message)

    def with_a_stray(message: FlowerMessage) -> list[FlowerMessage]:
        stray = FlowerMessage(to_records(b"stray"), reply_to=message)
        vars(stray.metadata)["_reply_to_message_id"] = "never sent"
        return [stray, grid.honest(message)]

    grid.spoil = dict.fromkeys(list(grid.contexts)[:2], with_a_stray)
    grid.spoil[list(grid.contexts)[2]] = in_turn
    folder = run(tmp_path / "run", config, grid)
    lines = folder.metrics()
    for fault, line in zip(FAULTS, lines, strict=True):
        assert line["clients"] == 3, fault
        assert list(line["missing"]) == ["2"], fault
        assert FAULTS[fault][1] in line["missing"]["2"], fault
    assert_same(folder.model_file, trained_here(config, absent=2))


@pytest.mark.slow
def test_a_run_that_failed_goes_on_in_its_folder_with_other_nodes(tmp_path: Path) -> None:
    config, grid = config_of(), LocalGrid()

    def lost(message: FlowerMessage) -> list[FlowerMessage]:
        if message.metadata.group_id == "2":
            raise ConnectionError("the SuperLink is gone")
        return [grid.honest(message)]

    grid.spoil[next(iter(grid.contexts))] = lost
    with pytest.raises(ConnectionError):
        run(tmp_path / "run", config, grid)
    folder = RunFolder(tmp_path / "run")
    assert len(folder.metrics()) == 1
    assert folder.summary() is None
    assert "the SuperLink is gone" in folder.log_file.read_text()
    run(folder.path, config, LocalGrid(first=2**40))
    assert_same(folder.model_file, trained_here(config))
    assert folder.log_file.read_text().count("round 1 of 2: ") == 1


@pytest.mark.slow
def test_a_run_that_gives_up_says_why_in_its_folder(tmp_path: Path) -> None:
    config, grid = config_of(devices={"tries": 2}), LocalGrid()
    grid.spoil = dict.fromkeys(grid.contexts, failed)
    with pytest.raises(SubmodelError, match=r"\bround 0\b"):
        run(tmp_path / "run", config, grid)
    folder = RunFolder(tmp_path / "run")
    assert "round 0" in folder.stopped_file.read_text()
    grid.spoil = {}
    run(folder.path, config, grid)
    assert not folder.stopped_file.exists()


def test_a_run_that_is_trained_already_is_left_alone(tmp_path: Path) -> None:
    config, folder = config_of(), RunFolder(tmp_path / "run")
    folder.create(config)
    with folder.lock(), pytest.raises(SubmodelError, match=f"^{folder.path}: .*process"):
        run(folder.path, config, LocalGrid())
    assert not folder.stopped_file.exists()


def test_what_a_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = run_config(tmp_path / "run", config_of())
    settings = "train.rounds=9\nscheme.order=sequential\n"
    config = server_app.folder_of({**given, "settings": settings}).config()
    assert (config.train.rounds, config.scheme.order) == (9, "sequential")
    assert config.engine.name == "flower"
    assert server_app.folder_of(given).config() == config  # it holds a run: nothing else counts
    named = server_app.folder_of({**given, "folder": "", "settings": "name=chosen"})
    assert named.path.resolve() == tmp_path / "runs" / "chosen"
    for key in ("config", "folder"):
        with pytest.raises(ConfigError, match=f"^{key}: a/b "):
            server_app.folder_of({**given, key: "a/b"})


@pytest.mark.parametrize(
    ("node_config", "payload", "problem"),
    [
        ({"partition-id": 0}, b"no message", "message: "),
        ({}, None, "data"),
        ({"part": 4}, None, "part 4: "),
        ({"data": "/nowhere.npz"}, None, "/nowhere.npz"),
        ({"part": 0, "capacity": "0.1"}, None, "capacity"),
    ],
)
def test_a_node_says_what_is_wrong_with_it(
    node_config: dict[str, Any], payload: bytes | None, problem: str, tmp_path: Path
) -> None:
    config, journal = config_of(), tmp_path / "journal"
    question = Message(run_head(config, Facts.of(load_data(config))), {}).to_bytes()
    context = Context(7, 3, {**node_config, "journal": str(journal)}, RecordDict(), {})
    sent = question if payload is None else payload
    message = FlowerMessage(to_records(sent), 3, MessageType.QUERY, group_id="report")
    reply = client_app.app(message, context)
    assert problem in Message.from_bytes(payload_of(reply)).head["problem"]
    (line,) = map(json.loads, journal.read_text().splitlines())
    assert problem in line["problem"]
    assert (line["kind"], line["topic"], line["bytes_down"]) == ("report", "report", len(sent))


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1", "^'127.0.0.1' "),
        ("10.1.2.3:8000", "^--superlink 10.1.2.3:8000: .*--ca"),
        ("127.0.0.1:1", "^--superlink 127.0.0.1:1: "),
    ],
)
def test_anothers_superlink_must_be_reached_over_loopback_or_tls(address: str, reason: str) -> None:
    with pytest.raises(SubmodelError, match=reason):
        ServingPlace.of(address, None)


def test_where_a_run_is_served() -> None:
    assert ServingPlace("0.0.0.0", 8000, None).address == "127.0.0.1:8000"
    assert ServingPlace("::1", 8000, None).address == "[::1]:8000"


def test_a_run_of_flwr_run_is_not_served(tmp_path: Path) -> None:
    with pytest.raises(SubmodelError, match=f"--run-config 'folder=\"{tmp_path}\"'"):
        ServingPlace.load(RunFolder(tmp_path))
