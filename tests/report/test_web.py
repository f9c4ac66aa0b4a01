"""The live page: answers, refusals, and updates of a run."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from submodel.core.errors import SubmodelError
from submodel.report.live.web import LiveData, LiveServer, serve_page
from tests.support.commands import Command
from tests.support.run_folders import evaluated, round_entries, write_run

Answer = tuple[int, dict[str, str], bytes]


class Clock:
    """A clock that stands still during a request; the next one comes much later."""

    now = 0.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(LiveData(tmp_path / "run", clock=lambda: Clock.now)) as live:
        thread = threading.Thread(target=live.serve_forever, args=(0.02,))
        thread.start()
        yield live
        live.shutdown()
        thread.join()


def ask(server: LiveServer, path: str, method: str = "GET", **headers: str) -> Answer:
    Clock.now += 100.0
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, headers=named)
    response = connection.getresponse()
    return response.status, dict(response.getheaders()), response.read()


def rounds_in(answer: Answer) -> Any:
    return json.loads(answer[2])["runs"][0]["rounds"]


def test_the_page_follows_a_run_from_before_its_beginning(
    server: LiveServer, tmp_path: Path
) -> None:
    assert ask(server, "/data.json")[0] == 503
    assert b"Waiting for a run" in ask(server, "/")[2]
    folder = write_run(tmp_path / "run", [evaluated(1, 0.25), round_entries(2)])
    status, headers, page = ask(server, "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b'data-live-url="/data.json"' in page
    first = ask(server, "/data.json")
    assert rounds_in(first) == 2
    assert first[1]["Connection"] == "close"  # one request, within its time
    same = ask(server, "/data.json", If_None_Match=f'"other", {first[1]["ETag"]}')
    assert (same[0], same[2]) == (304, b"")
    folder.add_metrics(evaluated(3, 0.5))
    newer = ask(server, "/data.json", If_None_Match=first[1]["ETag"])
    assert (newer[0], rounds_in(newer)) == (200, 3)
    folder.config_file.unlink()  # as during a write: the last content is shown
    assert ask(server, "/data.json")[2] == newer[2]


def test_what_takes_long_is_read_less_often_and_only_where_something_is_new() -> None:
    now, line, reads = [0.0], [1], list[tuple[float, bool]]()

    def read(_: Path, details: bool) -> dict[str, Any]:
        reads.append((now[0], details))
        if details:
            now[0] += 2.0
        part = [line[0]] if details else None
        return {"line": line[0], "coverage": part, "partitions": part}

    live = LiveData(Path(), read, clock=lambda: now[0])
    assert live.current()[0] == {"line": 1, "coverage": [1], "partitions": [1]}
    for moment in (20.0, 30.0, 40.0, 50.0):
        now[0] = moment
        line[0] = 2 if moment >= 30 else 1
        shown, body = live.current()
        assert json.loads(body) == shown
        assert shown is not None
        assert shown["line"] == line[0]
        assert shown["coverage"] == [2 if moment >= 50 else 1]  # two seconds: not for 40 more
    assert [when for when, details in reads if details] == [0.0, 50.0]
    now[0] = 1000.0
    live.current()
    assert reads[-1] == (1000.0, False)  # nothing is new


def test_nothing_else_is_ever_sent(server: LiveServer, tmp_path: Path) -> None:
    write_run(tmp_path / "run", [evaluated(1, 0.25)])
    (tmp_path / "run" / "secret.txt").write_text("secret")
    for path in (
        *("/secret.txt", "/run/secret.txt", "/../run/secret.txt", "/%2e%2e/secret.txt"),
        *("//etc/passwd", "/data.json?file=/etc/passwd", "/data.json/", "*"),
    ):
        status, _, body = ask(server, path)
        assert (status, body) == (404, b"only / and /data.json exist\n"), path
    assert ask(server, "http://elsewhere/data.json")[0] == 403
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
        assert ask(server, "/data.json", method)[0] == 501


@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1", "localhost.evil.example:{port}", ""])
def test_requests_meant_for_another_name_are_refused(server: LiveServer, name: str) -> None:
    host = name.format(port=server.server_port)
    assert ask(server, "/data.json", Host=host)[0] == 403
    assert ask(server, "/data.json", Host=f"localhost:{server.server_port}")[0] == 503


def test_the_page_may_load_nothing_and_stand_in_no_frame(
    server: LiveServer, tmp_path: Path
) -> None:
    write_run(tmp_path / "run", [evaluated(1, 0.25)])
    _, headers, page = ask(server, "/")
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert b"default-src &#x27;none&#x27;" in page
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in headers


def test_it_listens_on_this_machine_only(server: LiveServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    with pytest.raises(SubmodelError, match=f"^--port: {server.server_port} "):
        LiveServer(server.data, server.server_port)


def test_requests_that_never_end_are_cut_off(server: LiveServer) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as client:
        client.sendall(b"GET / HTTP/1.1\r\n")
        received = b""
        try:
            for _ in range(100):
                client.sendall(b"X-Long: " + b"a" * 1000 + b"\r\n")
            while chunk := client.recv(4096):
                received += chunk
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert b" 200 " not in received
    assert ask(server, "/data.json")[0] == 503  # others are still answered


def test_many_who_only_connect_keep_nobody_out_for_long(server: LiveServer) -> None:
    idle = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(30)]
    for client in idle:
        client.close()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            assert ask(server, "/data.json")[0] == 503
            return
        except (http.client.HTTPException, OSError):
            time.sleep(0.05)
    pytest.fail("nobody is answered")


def test_it_says_where_it_is_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [evaluated(1, 0.25)])
    answers: list[int] = []

    def look_and_leave(text: str) -> None:
        port = int(text.split("http://127.0.0.1:")[1].split("/")[0])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/data.json")
        answers.append(connection.getresponse().status)
        signal.raise_signal(signal.SIGINT)

    def look_beside(text: str) -> None:
        threading.Thread(target=look_and_leave, args=(text,)).start()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        serve_page(tmp_path / "run", 0, look_beside)
    finally:
        signal.signal(signal.SIGINT, before)
    assert answers == [200]


def test_options_that_do_not_go_together_are_refused(tmp_path: Path, submodel: Command) -> None:
    assert "--port: " in submodel("watch", tmp_path, "--port", "80").stderr
    assert "submodel report" in submodel("watch", tmp_path, "--web", "--once").stderr
