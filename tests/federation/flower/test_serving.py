"""A served run: restarts, start of apps, partial or missing answers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Message as FlowerMessage
from flwr.app import MessageType, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from submodel.cli.devices import serve_command
from submodel.config import parse
from submodel.core.errors import ConfigError, SubmodelError
from submodel.engines.processes.launch import free_port
from submodel.federation.channel import Reply
from submodel.federation.device import Report
from submodel.federation.flower import launcher, serving
from submodel.federation.flower.control import UnreachableError
from submodel.federation.flower.grid import GridChannel
from submodel.federation.flower.messages import to_records
from submodel.federation.flower.serving import ServedRun, ServingPlace
from submodel.federation.roster import Entry
from submodel.runs.loop import Interruption, RunFolder
from tests.support.commands import Command


class Link:
    """A SuperLink that is alive or not."""

    address = "here:1"

    def __init__(self) -> None:
        self.lives, self.starts = False, 0

    def start(self) -> None:
        self.lives, self.starts = True, self.starts + 1

    def alive(self) -> bool:
        return self.lives

    def stop(self) -> None:
        self.lives = False


class Scene:
    """A served run; `asked` returns its status by the number of earlier calls."""

    def __init__(
        self, folder: Path, asked: Callable[[int], str], keys: Callable[[], Mapping[str, bytes]]
    ) -> None:
        self.keys = keys
        self.folder, self.link = RunFolder(folder), Link()
        self.folder.create(parse({}))
        self.submitted: list[Mapping[str, Any]] = []
        self.printed: list[str] = []
        self.registered: list[bytes] = []
        self._asked, self._times = asked, 0

    def __call__(self, *_: object) -> Scene:
        return self  # instead of a connection

    def submit(self, _: Path, run_config: Mapping[str, Any]) -> int:
        self.submitted.append(run_config)
        return len(self.submitted)

    def status(self, _: int) -> str:
        self._times += 1
        return self._asked(self._times - 1)

    def register(self, key: bytes) -> None:
        self.registered.append(key)

    def stop(self, _: int) -> None: ...

    def close(self) -> None: ...

    def follow(self) -> None:
        place = ServingPlace("here", 1, None)
        ServedRun(self.folder, place, self.printed.append).follow(lambda _: None)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scene]:
    def make(asked: Callable[[int], str], keys: Callable[[], Mapping[str, bytes]] = dict) -> Scene:
        made = Scene(tmp_path / "run", asked, keys)
        monkeypatch.setattr(serving, "Control", made)
        monkeypatch.setattr(serving, "Superlink", lambda *_: made.link)
        monkeypatch.setattr(ServingPlace, "keys", lambda _: made.keys())
        return made

    monkeypatch.setattr(serving, "_PAUSE", 0.0)
    monkeypatch.setattr(serving, "_ASK_EVERY", -1.0)
    return make


def finished(scene: Scene) -> str:
    scene.folder.summary_file.write_text("{}")
    return "finished:completed"


def test_a_superlink_that_dies_while_it_is_asked_is_started_again(
    scene: Callable[..., Scene],
) -> None:
    def asked(times: int) -> str:
        if times == 0:
            made.link.lives = False
            raise UnreachableError("connection refused")
        return finished(made)

    made = scene(asked)
    made.follow()
    assert made.printed == ["the SuperLink died after round 0: restarting it"]
    assert made.link.starts == len(made.submitted) == 2
    assert not made.link.lives


def test_one_that_does_not_answer_is_asked_again(scene: Callable[..., Scene]) -> None:
    def asked(times: int) -> str:
        if times < 3:
            raise UnreachableError("timed out")
        return finished(made)

    made = scene(asked)
    made.follow()
    assert not made.printed
    assert len(made.submitted) == 1


def test_new_devices_are_let_in_and_trouble_with_their_keys_does_not_end_the_run(
    scene: Callable[..., Scene],
) -> None:
    looks = 0

    def keys() -> Mapping[str, bytes]:
        nonlocal looks
        looks += 1
        if looks in (2, 3):
            raise SubmodelError("federation: no such folder")
        return {"one": b"1"} if looks < 4 else {"one": b"1", "two": b"2"}

    def asked(times: int) -> str:
        return "running" if times < 4 else finished(made)

    made = scene(asked, keys)
    made.follow()
    assert made.registered == [b"1", b"2"]
    assert made.printed == [
        "device one may join",
        "no new devices: federation: no such folder",
        "device two may join",
    ]


def test_but_not_for_ever(scene: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(_: int) -> str:
        raise UnreachableError("timed out")

    made = scene(asked)
    monkeypatch.setattr(serving, "_ANSWER_TIMEOUT", -1.0)
    with pytest.raises(SubmodelError, match=r"here:1 .*submodel resume .*/run"):
        made.follow()
    assert not made.link.lives


def test_an_app_that_dies_is_submitted_again_until_it_never_gets_anywhere(
    scene: Callable[..., Scene],
) -> None:
    made = scene(lambda _: "finished:failed")
    with pytest.raises(SubmodelError, match=r"\b6\b.*server\.log"):
        made.follow()
    assert ["round 0" in line for line in made.printed] == [True] * 5
    assert len(made.submitted) == 6


def test_what_stopped_a_run_the_last_time_does_not_stop_it_again(
    scene: Callable[..., Scene],
) -> None:
    def asked(times: int) -> str:
        if times == 1:
            made.folder.stopped_file.write_text("nobody answered\n")
        return "finished:failed" if times < 2 else finished(made)

    made = scene(asked)
    made.folder.stopped_file.write_text("of an earlier time\n")
    with pytest.raises(Interruption, match="nobody answered"):
        made.follow()
    assert len(made.submitted) == 2
    made.follow()
    assert len(made.submitted) == 3


def test_ctrl_c_while_it_starts_says_where_the_run_stands(scene: Callable[..., Scene]) -> None:
    made = scene(lambda _: "running")

    def interrupted() -> None:
        made.link.lives = True
        raise KeyboardInterrupt

    made.link.start = interrupted  # type: ignore[method-assign]
    with pytest.raises(Interruption, match=r"\bround 0\b"):
        made.follow()
    assert not made.link.lives


def test_what_devices_cannot_do_is_said_before_anything_starts(tmp_path: Path) -> None:
    settings = ["scheme.name=masked-sgd", "clients.count=1", "clients.per_round=1"]
    with pytest.raises(ConfigError, match=r"^scheme\.name: 'masked-sgd'"):
        serve_command(None, settings, tmp_path / "run", insecure=True)
    assert not (tmp_path / "run").exists()


def test_status_tells_what_the_folder_knows(tmp_path: Path, submodel: Command) -> None:
    assert str(tmp_path) in submodel("federation", "status", tmp_path).stderr
    folder = RunFolder(tmp_path / "run")
    folder.create(parse({}))
    report = Report("kitchen [red]", 300, (), 0.25, None, "abc")
    entry = Entry(17, 0, report, answered=4, missed=1, last_problem="no answer in 3 s")
    folder.devices_file.write_text(json.dumps([asdict(entry)]))
    shown = submodel("federation", "status", folder.path)
    assert shown.returncode == 0, shown.stderr
    assert "'flwr run'" in shown.stdout
    [row] = [line for line in shown.stdout.splitlines() if "kitchen" in line]
    cells = [cell.strip() for cell in row.split("│")[1:-1]]
    assert cells == [
        *("0", "kitchen [red]", "unknown", "0.25", "300", "4", "1", "never", "no answer in 3 s")
    ]
    ServingPlace("127.0.0.1", free_port(), None).save(folder)
    shown = submodel("federation", "status", folder.path)
    assert "run: not served now (cannot ask the SuperLink on 127.0.0.1:" in shown.stdout
    assert "kitchen" in shown.stdout


FALL_BACK = """
import os, runpy, sys
path, folder, module, *runtime = sys.argv[1:]
sys.modules[module] = None  # importing it fails, as a part of Flower might that is no more
os.environ["PATH"] = folder
runpy.run_path(path)["start_apps"]("supernode", runtime)
os.wait()
"""


def test_flowers_own_program_starts_apps_where_ours_cannot(tmp_path: Path) -> None:
    program = tmp_path / "flower-superexec"
    program.write_text('#!/bin/sh\necho "started with $*"\n')
    program.chmod(0o755)
    runtime = ["--runtime-api-address", "127.0.0.1:9", "--insecure"]
    module = "submodel.federation.flower.superexec"
    command = [sys.executable, "-c", FALL_BACK, launcher.__file__, str(tmp_path), module, *runtime]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        printed, _ = parent.communicate(timeout=60)
    sentence, start, *_ = printed.splitlines()
    assert sentence.startswith("submodel: every message starts a program that imports PyTorch")
    assert module in sentence  # problem
    assert start == f"started with {' '.join(runtime)} --parent-pid {parent.pid}"


def test_a_device_looks_soon_after_a_message_and_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    naps: list[float] = []
    monkeypatch.setattr(time, "sleep", naps.append)
    pauses = launcher.Pauses()
    for _ in range(12):
        pauses.sleep(3)
    assert naps[:3] == pytest.approx([0.25, 0.35, 0.49])
    assert naps == sorted(naps)
    assert naps[-3:] == [3, 3, 3]  # Flower's own, for a device without work
    pauses.sleep(0.5)  # a message is worked on
    pauses.sleep(3)
    assert naps[-2:] == [0.1, 0.25]


class Parts:
    """A SuperLink in this process with announced answers and received parts."""

    def __init__(self) -> None:
        self.parts: dict[str, bytes] = {}
        self.dropped: set[str] = set()
        self.confirmed: list[str] = []
        self.fetched: list[str] = []
        self._announced: dict[str, tuple[Any, ObjectTree]] = {}

    def announce(self, ticket: str, payload: bytes) -> tuple[str, dict[str, bytes]]:
        """Announce an answer by its tree; return its number and parts."""
        question = FlowerMessage(RecordDict(), 7, MessageType.TRAIN)
        vars(question.metadata)["_message_id"] = ticket
        answer = FlowerMessage(to_records(payload), reply_to=question)
        number = answer.object_id
        vars(answer.metadata)["_message_id"] = number
        proto = message_to_proto(remove_content_from_message(answer))
        self._announced[ticket] = (proto, get_object_tree(answer))
        return number, {i: o.deflate() for i, o in get_all_nested_objects(answer).items()}

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:  # noqa: N802
        found = [self._announced.pop(t) for t in request.message_ids if t in self._announced]
        return PullAppMessagesResponse(
            messages_list=[proto for proto, _ in found],
            message_object_trees=[tree for _, tree in found],
        )

    def PullObject(self, request: Any) -> PullObjectResponse:  # noqa: N802
        content = self.parts.get(request.object_id, b"")
        if content:
            self.fetched.append(request.object_id)
        is_known = request.object_id not in self.dropped
        return PullObjectResponse(
            object_found=is_known, object_available=bool(content), object_content=content
        )

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        self.confirmed.append(request.message_object_id)


@pytest.fixture
def link() -> Parts:
    return Parts()


@pytest.fixture
def channel(link: Parts, monkeypatch: pytest.MonkeyPatch) -> GridChannel:
    for name in ("_run_id", "_node_id", "_task_id"):  # Flower's processes have an identity
        monkeypatch.setattr(TaskIdentity, name, 1)
    grid = HttpGrid(token="-")
    monkeypatch.setattr(HttpGrid, "run", SimpleNamespace(run_id=1))
    monkeypatch.setattr(HttpGrid, "_runtime_client", link)
    return GridChannel(grid)


def payloads(replies: Sequence[Reply]) -> dict[str, bytes]:
    assert not [reply.problem for reply in replies if reply.problem]
    return {reply.ticket: reply.payload for reply in replies}


def test_an_answer_that_is_announced_and_not_sent_holds_up_no_other(
    channel: GridChannel, link: Parts
) -> None:
    late, parts = link.announce("late", b"late" * 100)
    assert payloads(channel.replies(["late", "honest"])) == {}
    number, others = link.announce("honest", b"honest")
    link.parts |= others
    assert payloads(channel.replies(["late", "honest"])) == {"honest": b"honest"}
    assert link.confirmed == [number]
    first = next(iter(parts))
    link.parts[first] = parts[first]
    assert payloads(channel.replies(["late"])) == {}
    link.parts |= parts
    assert payloads(channel.replies(["late"])) == {"late": b"late" * 100}
    assert payloads(channel.replies(["late"])) == {}  # each once
    assert link.confirmed == [number, late]


def test_an_answer_whose_parts_flower_has_dropped_is_lost(
    channel: GridChannel, link: Parts
) -> None:
    _, parts = link.announce("1", b"x")
    assert payloads(channel.replies(["1"])) == {}
    link.dropped |= parts.keys()
    assert channel.replies(["1"]) == [Reply("1", b"", "its answer was lost")]
    assert channel.replies(["1"]) == []


def test_parts_of_an_answer_that_comes_too_late_are_not_kept(
    channel: GridChannel, link: Parts
) -> None:
    _, parts = link.announce("1", b"x")
    assert payloads(channel.replies(["1"])) == {}
    channel.forget(["1", "2"])
    link.parts |= parts
    assert payloads(channel.replies(["1"])) == {}


@pytest.mark.parametrize("content", [b"x", b"FlowerMessage  0\0", b"Array  2\0{}", b"Odd  0\0"])
def test_parts_that_are_no_message_are_the_fault_of_their_device_alone(
    channel: GridChannel, link: Parts, content: bytes
) -> None:
    number, parts = link.announce("1", b"x")
    link.parts |= parts | {number: content}
    assert channel.replies(["1"]) == [Reply("1", b"", "its answer is not a Flower message")]
