"""Flower's processes: start, guard, status and end; messages to devices on failure."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from flwr.app import Array as FlowerArray
from flwr.common.config import get_fab_config, parse_config_args
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import Message as FlowerMessage
from flwr.proto.message_pb2 import Metadata, ObjectTree, PushObjectRequest
from flwr.supercore.error import FlowerError
from flwr.superlink.main import create_app
from flwr.superlink.routers.fleet.router import router as fleet_router
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from hypothesis import given
from hypothesis import strategies as st

from submodel.config import parse
from submodel.core.errors import SubmodelError
from submodel.engines.processes.launch import free_port
from submodel.federation.flower import bounds, credentials, guard, probe, supernode
from submodel.federation.flower.control import Control, bundle, key_fingerprint, thin_app
from submodel.federation.flower.process import (
    DeviceFiles,
    ServerFiles,
    descendants,
    environment,
    is_running,
    proxy_exceptions,
)
from submodel.federation.flower.serving import ServingPlace
from submodel.federation.flower.superlink import Superlink
from submodel.federation.flower.supernode import Supernode, explain_exit, keep_running, node_config
from submodel.runs.loop import RunFolder
from tests.support.commands import Command
from tests.support.processes import command_line

SOURCE = Path(__file__).parents[3] / "src"
TOLD: dict[str, str | int | float | bool] = {
    "data": 'a "quoted" = \\ path\'s',
    "memory": 2,
    "share": 0.5,
    "quiet": True,
}


# The environment


def test_a_flower_process_is_told_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("PATH", "/somewhere")
    found = environment(Path("home"))
    assert found["FLWR_HOME"] == str(Path.cwd() / "home")
    assert found["FLWR_TELEMETRY_ENABLED"] == "0"
    assert found["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert found["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert found["PATH"] == f"{Path(sys.executable).parent}:/somewhere"
    assert found["HTTPS_PROXY"] == "http://proxy:3128"
    assert "127.0.0.1" in found["no_proxy"].split(",")


def test_the_lower_case_spelling_of_no_proxy_rules_and_a_star_stays() -> None:
    both = proxy_exceptions({"no_proxy": "here, ::1", "NO_PROXY": "there"})
    assert both["no_proxy"] == both["NO_PROXY"] == "here,::1,127.0.0.1,localhost"
    assert proxy_exceptions({"NO_PROXY": "*"})["no_proxy"] == "*"


# The guard

PEERS = {"127.0.0.1": True, "::1": True, "::ffff:127.0.0.1": True, "10.0.0.5": False}
REFUSED = b"own machine"


def answer(app: Any, path: str, client: str | None, server: str = "0.0.0.0") -> tuple[int, bytes]:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "https",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"x-forwarded-for", b"127.0.0.1"), (b"host", b"127.0.0.1")],
        "client": (client, 4000) if client else None,
        "server": (server, 9092),
    }
    asyncio.run(app(scope, receive, send))
    body = b"".join(m.get("body", b"") for m in sent if m["type"] == "http.response.body")
    return sent[0]["status"], body


@pytest.fixture(scope="module")
def real_app() -> Any:
    return create_app()


def paths(app: Any) -> list[str]:
    return [*app.openapi()["paths"], app.docs_url, app.openapi_url]


def test_from_another_machine_only_the_fleet_and_the_health_check_answer(real_app: Any) -> None:
    assert f"{fleet_router.prefix}/" == guard.FLEET
    every = paths(real_app)
    kinds = {"/".join(path.split("/")[:3]) for path in every}
    assert {"/health", "/v1/fleet", "/v1/control", "/v1/runtime", "/docs"} <= kinds
    guarded = guard.Guard(real_app)
    for path in every:
        open_to_all = path == "/health" or path.startswith("/v1/fleet/")
        status, body = answer(guarded, path, "10.0.0.5")
        assert (status == 403 and REFUSED in body) is not open_to_all, path
        assert (REFUSED in answer(guarded, path, None)[1]) is not open_to_all, path


@pytest.mark.parametrize("peer", PEERS)
def test_who_may_submit_a_run(real_app: Any, peer: str) -> None:
    start = "/v1/control/start-run"
    status, body = answer(guard.Guard(real_app), start, peer)
    assert (status != 403 and REFUSED not in body) is PEERS[peer]
    assert answer(real_app, start, "10.0.0.5")[0] != 403  # Flower itself admits every node


def test_the_own_address_is_this_machine(real_app: Any) -> None:
    guarded = guard.Guard(real_app)
    path = "/v1/runtime/acquire-task"
    assert REFUSED not in answer(guarded, path, "10.0.0.5", server="10.0.0.5")[1]
    assert REFUSED in answer(guarded, path, "10.0.0.6", server="10.0.0.5")[1]


@pytest.mark.parametrize(
    "path", ["/v1/fleet/../control/start-run", "/v1/fleet//v1/control/start-run"]
)
def test_no_path_through_the_fleet_leads_elsewhere(real_app: Any, path: str) -> None:
    assert answer(guard.Guard(real_app), path, "10.0.0.5")[0] == 404


def test_a_websocket_from_another_machine_is_closed() -> None:
    seen: list[str] = []

    async def inner(*_: Any) -> None:
        seen.append("inner")

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        seen.append(message["type"])

    for client in ("10.0.0.5", "127.0.0.1"):
        scope = {"type": "websocket", "path": "/v1/fleet/x", "client": (client, 1)}
        asyncio.run(guard.Guard(inner)(scope, receive, send))
    assert seen == ["websocket.close", "inner"]


def test_the_launcher_serves_the_guarded_application(monkeypatch: pytest.MonkeyPatch) -> None:
    served: dict[str, Any] = {}

    def run(app: Any, **options: Any) -> None:
        served.update(options, app=app)

    monkeypatch.setattr("uvicorn.run", run)
    monkeypatch.setenv("FLWR_INTERNAL_GRPC_CONTROL_API", "1")
    monkeypatch.setattr(sys, "argv", ["guard", "--insecure", "--host", "127.0.0.1", "--port", "9"])
    runpy.run_path(guard.__file__, run_name="__main__")
    assert type(served["app"]).__name__ == "Guard"
    assert served["proxy_headers"] is False
    assert (served["host"], served["port"]) == ("127.0.0.1", 9)
    assert "FLWR_INTERNAL_GRPC_CONTROL_API" not in os.environ
    assert answer(served["app"], "/v1/control/start-run", "10.0.0.5")[0] == 403


# What a device may send


def sent_through(
    path: str, headers: dict[str, str], pieces: Sequence[bytes], known: bool
) -> tuple[int, int, bytes]:
    """Send a request through the guard; return status, read bytes and forwarded part."""
    left, passed, status = list(pieces), [], []

    async def receive() -> dict[str, Any]:
        piece = left.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(left)}

    async def send(message: Any) -> None:
        status.append(message.get("status"))

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        passed.append((await receive())["body"])
        await send({"status": 200})

    async def signed(_: Any) -> bool:
        return known

    scope = {
        "type": "http",
        "path": path,
        "client": ("10.0.0.5", 1),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    asyncio.run(guard.Guard(inner, signed, chunk=1_000_000)(scope, receive, send))
    read = sum(map(len, pieces)) - sum(map(len, left))
    return status[0], read, b"".join(passed)


PUSH, OTHER = "/v1/fleet/push-object", "/v1/fleet/push-messages"


@pytest.mark.parametrize(
    ("path", "declared", "sent", "known", "status"),
    [
        (PUSH, 60_000, 60_000, False, 200),  # any sender
        (PUSH, None, 60_000, False, 200),
        (PUSH, 600_000_000, 600_000, False, 413),
        (PUSH, None, 600_000, False, 413),  # in an unknown number of chunks
        (PUSH, 10, 600_000, False, 413),
        (PUSH, 600_000, 600_000, False, 413),
        (PUSH, 600_000, 600_000, True, 200),
        (PUSH, 1_065_536, 1_065_536, True, 200),  # a chunk with its header
        (PUSH, 1_065_537, 1_065_537, True, 413),
        (PUSH, 10, 600_000, True, 413),
        (OTHER, 1_048_576, 1_048_576, True, 200),
        (OTHER, 1_048_577, 1_048_577, True, 413),
    ],
)
def test_the_length_of_a_request_is_bounded_by_who_sends_it(
    path: str, declared: int | None, sent: int, known: bool, status: int
) -> None:
    headers = {} if declared is None else {"content-length": str(declared)}
    body = bytes(i % 251 for i in range(sent))
    pieces = [body[i : i + 10_000] for i in range(0, sent, 10_000)]
    found, read, passed = sent_through(path, headers, pieces, known)
    assert found == status
    assert passed == (body if status == 200 else b"")
    assert status == 200 or read <= bounds.UNREGISTERED_BYTES + 10_000


@pytest.mark.parametrize("length", ["x", "-1", "", "9" * 5000, "٣"])
def test_a_length_that_is_none_is_no_way_in(length: str) -> None:
    for known in (False, True):
        status, read, _ = sent_through(PUSH, {"content-length": length}, [bytes(9_999)] * 99, known)
        assert status == 413
        assert read < 80_000


def tree(objects: int) -> ObjectTree:
    return ObjectTree(object_id="0", children=[ObjectTree() for _ in range(objects - 1)])


def flower_array(payload: bytes) -> bytes:
    """Make an array in Flower's form without its chunks."""
    return FlowerArray("uint8", (len(payload),), "safetensors", payload).deflate()


def test_an_answer_has_no_more_objects_and_chunks_than_its_message() -> None:
    """Flower's devices send every object in its own request, so this bounds the total."""
    chunk = 5 << 20
    root = ObjectTree(object_id="root", children=[tree(5)])
    sent = PullMessagesResponse(
        messages_list=[FlowerMessage(metadata=Metadata(message_id="a"))],
        message_object_trees=[root],
    )
    # eight chunks, of which seven are equal: one object, which does not shorten an answer
    kept = {"root": b"Message", "0": flower_array(bytes(7 * chunk) + b"x")}
    answers = bounds.AnswerLimits(lambda **_: sent, lambda **_: "stored", lambda **_: "kept")
    assert answers.pull(request=None, store=kept) is sent

    def push(to: str, objects: int) -> object:
        message = FlowerMessage(metadata=Metadata(reply_to_message_id=to))
        trees = [tree(objects)]
        request = PushMessagesRequest(messages_list=[message], message_object_trees=trees)
        return answers.push(request=request, state=None)

    assert push("a", 14) == push("a", 14) == "stored"  # again, if the first reply was lost
    for to, objects in (("a", 17), ("a", 10_000), ("b", 6)):
        with pytest.raises(FlowerError, match="objects"):
            push(to, objects)

    def store(content: bytes) -> object:
        return answers.store(request=PushObjectRequest(object_content=content), state=None)

    assert store(b"ArrayChunk  9" + bytes(1000)) == store(kept["0"]) == "kept"
    head = b"Array id 9" + bytes(1)
    many = json.dumps({"arraychunk_ids": [0] * 17}).encode()
    for body in (many, b"[" * 100_000, b"9" * (bounds.TREE_BYTES + 1)):
        with pytest.raises(FlowerError, match="array"):
            store(head + body)


# The identity of a device

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
VALUE = TEXT | st.integers() | st.floats(allow_nan=False) | st.booleans()


@pytest.mark.slow
@given(st.dictionaries(st.from_regex(r"[A-Za-z0-9_-]+", fullmatch=True), VALUE))
def test_flower_reads_a_node_config_back(values: dict[str, Any]) -> None:
    found = parse_config_args([node_config(values)])
    assert found == values
    assert [type(v) for v in found.values()] == [type(v) for v in values.values()]


@pytest.mark.parametrize("key", ["", "a b", "a=b", "a.b", '"a"', "ä"])
def test_a_name_that_flower_would_misread_is_refused(key: str) -> None:
    with pytest.raises(SubmodelError, match=re.escape(repr(key))):
        node_config({key: 1})


# Addresses and rules without a process


def test_without_credentials_only_this_machine(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "10.0.0.5", "::", "server.example"):
        with pytest.raises(SubmodelError, match=f"{host} .*credentials"):
            Superlink(host, 9092, tmp_path, tmp_path / "log", None, None)
    for address in ("10.0.0.5:9092", "server.example:9092"):
        with pytest.raises(SubmodelError, match="credentials"):
            Supernode(address, tmp_path, tmp_path / "log", None, {})


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("0.0.0.0", "127.0.0.1:9092"),
        ("::", "[::1]:9092"),
        ("10.0.0.5", "10.0.0.5:9092"),
        ("server.example", "server.example:9092"),
    ],
)
def test_where_this_machine_reaches_its_superlink(tmp_path: Path, host: str, address: str) -> None:
    files = ServerFiles(tmp_path / "ca", tmp_path / "crt", tmp_path / "key")
    assert Superlink(host, 9092, tmp_path, tmp_path / "log", files, None).address == address


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:0", "host:65536", "::1:1"])
def test_what_is_no_address(tmp_path: Path, address: str) -> None:
    with pytest.raises(SubmodelError, match=re.escape(repr(address))):
        Supernode(address, tmp_path, tmp_path / "log", None, {})


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    server = ServerFiles(tmp_path / "ca", tmp_path / "crt", tmp_path / "key")
    with pytest.raises(SubmodelError, match=f"^{tmp_path / 'ca'}: "):
        Superlink("127.0.0.1", 9092, tmp_path, tmp_path / "log", server, None).start()
    device = DeviceFiles(tmp_path / "ca", tmp_path / "key")
    with pytest.raises(SubmodelError, match=f"^{tmp_path / 'ca'}: "):
        Supernode("127.0.0.1:9092", tmp_path, tmp_path / "log", device, {}).start()


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        link = Superlink("127.0.0.1", port, tmp_path, tmp_path / "log", None, None)
        with pytest.raises(SubmodelError, match=str(port)):
            link.start()
    assert not (tmp_path / "log").exists()


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    link = Superlink("127.0.0.1", free_port(), tmp_path, tmp_path / "file" / "log", None, None)
    with pytest.raises(SubmodelError, match=str(tmp_path / "file")):
        link.start()


def test_the_thin_app_is_one_file_that_flower_takes() -> None:
    assert [path.name for path in thin_app().iterdir()] == ["pyproject.toml"]
    content, settings = bundle(thin_app())
    app = get_fab_config(content)["tool"]["flwr"]["app"]
    assert app["components"] == {
        "serverapp": "submodel.federation.flower.server_app:app",
        "clientapp": "submodel.federation.flower.client_app:app",
    }
    assert settings == {"folder": "", "config": "", "settings": ""}


# Why a device's SuperNode ended


@pytest.mark.parametrize(
    ("output", "status", "reason"),
    [
        (
            "Exit Code: 305\n[code: 2004] Failed to activate SuperNode.",
            1,
            "refused this device's key",
        ),
        ("Exit Code: 305\n[code: 2001] SuperNode authentication", 1, "this device has none"),
        (
            "SSL/TLS handshake error detected.\n[SSL: CERTIFICATE_VERIFY_FAILED] certificate "
            "verify failed: unable to get local issuer certificate (_ssl.c:1006)\n",
            1,
            "is not valid for this device's CA: unable to get local issuer certificate",
        ),
        ("SSL/TLS handshake error detected.\n[SSL] record layer failure", 1, "does not use TLS"),
        ("Exit Code: 302\nUnable to parse the private key file.", 1, "not an EC key"),
        ("SuperNode ID: 7\nSuperNode terminated gracefully.", 0, "no longer registered"),
        ("SuperNode terminated gracefully.", 0, "did not accept this device's signature"),
        ("SuperNode ID: 7\n", -9, "it was ended by SIGKILL"),
        ("Traceback\nValueError: odd\n", 1, "it failed: ValueError: odd"),
        ("", 1, "it failed without output"),
    ],
)
def test_the_reason_of_an_end_is_one_sentence(output: str, status: int, reason: str) -> None:
    assert reason in explain_exit(output, status)
    assert "\n" not in explain_exit(output, status)


class FakeNode(Supernode):
    """A process that lives while it has output; time passes only while it sleeps or starts."""

    def __init__(self, tmp_path: Path, lives: list[float], words: Sequence[str] = ()) -> None:
        super().__init__("127.0.0.1:9092", tmp_path, tmp_path / "log", None, {})
        self.lives, self.words, self.now, self.stops = lives, list(words), 0.0, 0

    def start(self) -> None:
        self.now += self.lives.pop(0)

    def alive(self) -> bool:
        return bool(self.words)

    def new_output(self) -> str:
        return self.words.pop(0)

    def health(self) -> probe.Health:
        return probe.Health(False, "it is closed")

    def stop(self) -> None:
        self.stops += 1

    def exit_reason(self) -> str:
        return "it ended"

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_the_pauses_grow_and_begin_anew_after_it_has_worked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = FakeNode(tmp_path, [0.0] * 7 + [100.0, 0.0])
    monkeypatch.setattr(supernode, "time", node)
    events: list[str] = []
    keep_running(node, events.append, lambda: not node.lives and len(events) == 9)
    pauses = [event.removeprefix("it ended; trying again in ") for event in events]
    assert pauses == ["1 s", "2 s", "4 s", "8 s", "16 s", "30 s", "30 s", "1 s", "2 s"]
    assert node.stops == 10


def test_a_key_that_was_refused_is_shown_again_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crashed device is admitted when it no longer counts as online, without waiting half a
    minute.
    """
    node = FakeNode(tmp_path, [0.0] * 7)
    refusal = explain_exit("[code: 2004]", 1)
    monkeypatch.setattr(supernode, "time", node)
    monkeypatch.setattr(node, "exit_reason", lambda: refusal)
    events: list[str] = []
    keep_running(node, events.append, lambda: not node.lives)
    pauses = [event.removeprefix(f"{refusal}; trying again in ") for event in events]
    assert pauses == ["1 s", "2 s", "4 s", "5 s", "5 s", "5 s"]


def test_a_device_tells_once_that_the_server_is_lost_and_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = "WARNING :   Connection attempt failed, retrying in 0.82 seconds"
    words = [lost, lost, "", "INFO :      SuperNode ID: 18446744073709551615", "", lost, lost]
    words += ["INFO :      Connection successful after 62.37 seconds and 3 tries.", lost]
    node = FakeNode(tmp_path, [0.0], words)
    monkeypatch.setattr(supernode, "time", node)
    events: list[str] = []
    keep_running(node, events.append, lambda: not node.words)
    gone = "no connection to 127.0.0.1:9092: it is closed; trying again"
    joined = "joined 127.0.0.1:9092 as device 18446744073709551615"
    assert events == [gone, joined, gone, "connected to 127.0.0.1:9092 again", gone]
    assert node.stops == 1


# The real thing, over TLS on loopback


@dataclass(frozen=True)
class Files:
    """Throw-away certificates and keys."""

    server: ServerFiles
    other_ca: Path
    device: DeviceFiles
    public_key: bytes
    stranger: DeviceFiles


def openssh(key: Any) -> bytes:
    form = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    text: bytes = key.public_bytes(*form)
    return text


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("files")
    own = credentials.create(folder / "own", ["localhost"], ["device", "stranger"])
    other = credentials.create(folder / "other", ["localhost"], ["device"])
    device, stranger = (credentials.load_device(folder / "own/devices" / n) for n in own.devices)
    return Files(own.server, other.server.ca, device, own.public_keys()["device"], stranger)


APP = """
import json, time
from pathlib import Path
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server, client = ServerApp(), ClientApp()

@server.main()
def main(grid, context):
    folder = Path(context.run_config["folder"])
    (folder / "started").touch()
    if context.run_config["wait"]:
        time.sleep(600)
    [node] = grid.get_node_ids()
    ask = Message(RecordDict(), node, MessageType.QUERY)
    ids = list(grid.push_messages([ask]))
    while not (replies := list(grid.pull_messages(ids))):
        time.sleep(0.1)
    [reply] = replies
    (folder / "reply.json").write_text(json.dumps(dict(reply.content["config"])))

@client.query()
def query(message, context):
    return Message(RecordDict({"config": ConfigRecord(context.node_config)}), reply_to=message)
"""
PYPROJECT = """
[project]
name = "tiny"
version = "1.0.0"
[tool.flwr.app]
publisher = "test"
[tool.flwr.app.components]
serverapp = "tiny_flower_app:server"
clientapp = "tiny_flower_app:client"
[tool.flwr.app.config]
folder = ""
wait = false
"""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("app")
    (folder / "modules").mkdir()
    (folder / "modules" / "tiny_flower_app.py").write_text(APP)
    (folder / "app").mkdir()
    (folder / "app" / "pyproject.toml").write_text(PYPROJECT)
    return folder


@pytest.fixture(scope="module")
def link(files: Files, app: Path) -> Iterator[Superlink]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(SOURCE), str(app / "modules")]))
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):  # loopback must not use the proxy
            patch.setenv(name, f"http://127.0.0.1:{free_port()}")
        where = app / "flower"
        link = Superlink(
            "127.0.0.1", free_port(), where / "home", where / "log", files.server, where / "db"
        )
        link.start()
        yield link
        link.stop()


@pytest.fixture
def control(link: Superlink, files: Files) -> Iterator[Control]:
    with closing(Control(link.address, files.server.ca)) as control:
        yield control


def until(condition: Callable[[], Any], seconds: float = 30) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
    return found


@dataclass
class Device:
    """A SuperNode that is kept running in a thread, with its output."""

    node: Supernode
    events: list[str]
    stopped: threading.Event

    def printed(self, text: str) -> bool:
        return any(text in event for event in self.events)


@pytest.fixture
def run_device(link: Superlink, tmp_path: Path) -> Iterator[Callable[..., Device]]:
    started: list[tuple[Device, threading.Thread]] = []

    def run(name: str, credentials: DeviceFiles | None) -> Device:
        home, log = tmp_path / name, tmp_path / f"{name}.log"
        node = Supernode(link.address, home, log, credentials, TOLD)
        device = Device(node, [], threading.Event())
        arguments = (node, device.events.append, device.stopped.is_set)
        thread = threading.Thread(target=keep_running, args=arguments)
        thread.start()
        started.append((device, thread))
        return device

    yield run
    for device, _ in started:
        device.stopped.set()
    for _, thread in started:
        thread.join()


@pytest.mark.slow
def test_a_superlink_over_tls_from_start_to_end(
    control: Control,
    link: Superlink,
    files: Files,
    app: Path,
    tmp_path: Path,
    run_device: Callable[..., Device],
    submodel: Command,
) -> None:
    for _ in range(2):
        control.register(files.public_key)
    [node] = control.nodes()
    assert (node.fingerprint, node.status) == (key_fingerprint(files.public_key), "registered")
    assert node.last_seen is None

    device = run_device("device", files.device)
    stranger = run_device("stranger", files.stranger)
    until(lambda: stranger.printed("refused this device's key"))
    stranger.stopped.set()
    assert stranger.printed("; trying again in 1 s")
    assert not stranger.printed("joined")
    until(lambda: device.printed(f"as device {node.id}"))
    [online] = control.nodes()
    assert (online.id, online.status) == (node.id, "online")
    assert online.last_seen is not None
    assert abs(time.time() - online.last_seen.timestamp()) < 30
    folder = RunFolder(tmp_path / "run")
    folder.create(parse({}))
    ServingPlace.of(link.address, files.server.ca).save(folder)
    shown = submodel("federation", "status", folder.path).stdout
    assert f"served on port {probe.split_address(link.address)[1]}; 1 device(s) registered" in shown
    assert "online" in shown

    failing = control.submit(app / "app", {"folder": "/nowhere"})
    run = control.submit(app / "app", {"folder": str(tmp_path)})
    assert control.status(run) in ("pending", "starting", "running")
    until(lambda: control.status(run).startswith("finished"))
    assert control.status(run) == "finished:completed"
    reply = json.loads((tmp_path / "reply.json").read_text())
    assert reply == TOLD
    control.stop(run)  # without effect, as it has ended
    assert control.status(run) == "finished:completed"

    until(lambda: control.status(failing).startswith("finished"))
    assert control.status(failing) == "finished:failed"
    assert "No such file or directory: '/nowhere/started'" in control.details(failing)

    long = control.submit(app / "app", {"folder": str(tmp_path), "wait": True})
    control.stop(long)
    assert control.status(long) == "finished:stopped"

    device.stopped.set()
    until(lambda: control.nodes()[0].status == "offline")
    assert len(control.nodes()) == 1


def signed(key: ec.EllipticCurvePrivateKey) -> dict[str, str]:
    """Return the headers of a device with this key."""
    request = httpx.Request("POST", "https://127.0.0.1")
    context: Any = SimpleNamespace(request=request)
    reply = httpx.Response(200)
    NodeAuthHttpInterceptor(key, key.public_key()).intercept(context, lambda _: reply)
    return {name: value for name, value in request.headers.items() if name.startswith("flwr-")}


@pytest.mark.slow
def test_without_a_key_the_superlink_takes_next_to_nothing(
    control: Control, link: Superlink, files: Files
) -> None:
    """Bodies without a key, in one piece or in chunks, and heads without an end."""
    host, port = probe.split_address(link.address)
    [own] = [one for one in descendants(os.getpid()) if "launcher.py" in command_line(one)]
    peak = Path(f"/proc/{own.pid}/status")
    known, stranger = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    control.register(openssh(known.public_key()))
    piece = bytes(1 << 20)

    def memory() -> int:
        return int(re.findall(r"VmHWM:\s+(\d+) kB", peak.read_text())[0]) * 1024

    def push(headers: dict[str, str], megabytes: int, length: bool = True) -> int:
        """Send a request; return its status, or 0 if the connection is cut first."""
        trust = probe.trust(files.server.ca)
        with closing(http.client.HTTPSConnection(host, port, timeout=30, context=trust)) as line:
            try:
                line.putrequest("POST", PUSH)
                fields = {"content-type": "application/protobuf", **headers}
                if length:
                    fields["content-length"] = str(megabytes << 20)
                else:
                    fields["transfer-encoding"] = "chunked"
                for name, value in fields.items():
                    line.putheader(name, value)
                line.endheaders()
                for _ in range(megabytes):
                    line.send(piece if length else b"100000\r\n" + piece + b"\r\n")
                return line.getresponse().status
            except OSError:
                return 0

    assert push(signed(known), 1) == 400  # not a message of Flower, but it is read
    before = memory()
    for headers in ({}, signed(stranger), {**signed(known), "flwr-timestamp": "2026-01-01"}):
        assert push(headers, 1) in (0, 413)
        assert push(headers, 100) in (0, 413)
        assert push(headers, 100, length=False) in (0, 413)
    assert push(signed(known), 100) in (0, 413)
    assert push({f"x-{i}": "x" * 10_000 for i in range(500)}, 0) in (0, 400, 431)
    assert probe.check_health(link.address, files.server.ca).ok
    assert memory() - before < 10_000_000


@pytest.mark.slow
def test_what_the_superlink_refuses(control: Control, link: Superlink, app: Path) -> None:
    with pytest.raises(SubmodelError, match=r"rounds; allowed: folder, wait"):
        control.submit(app / "app", {"rounds": 3})
    with pytest.raises(SubmodelError, match=str(app / "modules")):
        control.submit(app / "modules", {})
    with pytest.raises(SubmodelError, match=f"{link.address} .*Run ID"):
        control.status(17)
    for key in (b"ssh-rsa nonsense", openssh(ed25519.Ed25519PrivateKey.generate().public_key())):
        with pytest.raises(SubmodelError, match="P-384"):
            control.register(key)
    with (
        closing(Control("127.0.0.1:9", None)) as unreachable,
        pytest.raises(SubmodelError, match=r"127\.0\.0\.1:9"),
    ):
        unreachable.nodes()


@pytest.mark.slow
def test_no_header_moves_a_request_to_another_machine(link: Superlink, files: Files) -> None:
    host, port = probe.split_address(link.address)
    context = probe.trust(files.server.ca)
    with closing(http.client.HTTPSConnection(host, port, context=context)) as connection:
        connection.request("POST", "/v1/control/list-runs", headers={"X-Forwarded-For": "10.0.0.5"})
        assert connection.getresponse().status != 403


def test_what_a_device_learns_about_a_server(link: Superlink, files: Files) -> None:
    health = probe.check_health(link.address, files.server.ca)
    assert (health.ok, health.problem, health.clock_problem) == (True, "", "")
    assert abs(health.ahead) < 2
    late = replace(health, ahead=health.ahead + 7)
    assert re.search(r"\b\d+ s\b", late.clock_problem)
    wrong = probe.check_health(link.address, files.other_ca)
    assert (wrong.ok, wrong.is_untrusted) == (False, True)
    assert "TLS" in probe.check_health(link.address, None).problem
    assert probe.check_health("127.0.0.1:9", None).problem.startswith("127.0.0.1:9: ")


def test_a_server_without_tls_is_told_from_one_with(files: Files) -> None:
    with socket.create_server(("127.0.0.1", 0)) as plain:

        def reply() -> None:
            peer, _ = plain.accept()
            with peer:
                peer.recv(1024)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=reply)
        thread.start()
        address = f"127.0.0.1:{plain.getsockname()[1]}"
        assert re.match(f"{address} .*TLS", probe.check_health(address, files.server.ca).problem)
        thread.join()


def test_a_key_that_is_not_the_certificates(files: Files, tmp_path: Path) -> None:
    broken = replace(files.server, key=files.device.key)
    link = Superlink("127.0.0.1", free_port(), tmp_path, tmp_path / "log", broken, None)
    with pytest.raises(SubmodelError, match=f"{broken.certificate} .*{broken.key}"):
        link.start()


@pytest.mark.slow
def test_a_superlink_that_cannot_start_says_why(tmp_path: Path) -> None:
    database = tmp_path / "database"
    database.write_text("this is no database, however long one may look at it " * 20)
    link = Superlink("127.0.0.1", free_port(), tmp_path, tmp_path / "log", None, database)
    with pytest.raises(SubmodelError) as error:
        link.start()
    assert str(tmp_path / "log") in str(error.value)
    assert "file is not a database" in str(error.value)
    assert not link.alive()


@pytest.mark.slow
def test_a_superlink_that_is_killed_leaves_nothing_behind(link: Superlink) -> None:
    time.sleep(1)  # processes started in the last half second were not checked yet
    assert link.alive()
    [own] = [one for one in descendants(os.getpid()) if "launcher.py" in command_line(one)]
    below = descendants(own.pid)
    assert any("superexec" in command_line(one) for one in below)
    own.kill()
    until(lambda: not link.alive())
    link.stop()
    assert not any(is_running(one) for one in {own, *below})


PARENT = """
import sys, time
from pathlib import Path
from submodel.federation.flower.control import Control
from submodel.federation.flower.superlink import Superlink
from submodel.federation.flower.supernode import Supernode
folder, app, port = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
link = Superlink("127.0.0.1", port, folder / "link", folder / "link.log", None, None)
link.start()
Control(link.address, None).submit(app, {"folder": str(folder), "wait": True})
node = Supernode(link.address, folder / "node", folder / "node.log", None, {})
node.start()
while "SuperNode ID" not in node.new_output():
    time.sleep(0.1)
while not (folder / "started").exists():
    time.sleep(0.1)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_nothing_outlives_a_parent_that_is_killed(app: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path), str(app / "app"), str(free_port())]
    paths = os.pathsep.join([str(SOURCE), str(app / "modules")])
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": paths}
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        below = descendants(parent.pid)
        assert len(below) == 5
        lines = [command_line(one) for one in below]
        for name in ("superlink", "supernode", "superexec", "flwr-serverapp"):
            assert any(name in line for line in lines)
        parent.send_signal(signal.SIGKILL)
    until(lambda: not any(is_running(one) for one in below), 10)
