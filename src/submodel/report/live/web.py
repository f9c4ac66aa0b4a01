"""A page of runs that follows them, sent by a server of this machine to browsers of this machine.

It answers two addresses, ``/`` and ``/data.json``, from memory: no path of a request ever becomes a
path on the disk. It listens on 127.0.0.1, and a request that was meant for another name, as by a
page that had its own name point here (DNS rebinding), is refused.
"""

from __future__ import annotations

import hashlib
import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from pathlib import Path
from typing import Any, cast

from submodel.core.errors import SubmodelError, plain
from submodel.report.page import page_data, page_html

ADDRESS = "127.0.0.1"
_DATA = "/data.json"
_PLAIN_PORT = 80  # which browsers do not name
_MOST_REQUEST = 2**14  # bytes of a request with its headers
_MOST_CONNECTIONS = 16
_PATIENCE = 5.0  # seconds that a client may be silent
_LONGEST = 15.0  # seconds that a request may take in all
_LEAST_AGE, _REST = 1.0, 4.0  # seconds that data is good for; and times what reading it took
_LEAST_DETAILS_AGE, _DETAILS_REST = 10.0, 20.0  # of what takes longer: who held what, who has what
_DETAILS = ("coverage", "partitions")
_HEADERS = {
    "Cache-Control": "no-cache",
    "Connection": "close",
    "Content-Security-Policy": "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    "object-src 'none'; connect-src 'self'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_WAITING = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="2">
<link rel="icon" href="data:,"><title>submodel</title></head>
<body><p>Nothing is trained there yet; this page waits for it.</p>
</body></html>
"""


class LiveData:
    """The data of a page, read anew when it is asked for and no longer good.

    Args:
        path: the folder of a run or an experiment.
        read: from a folder to the data of a page, with or without what takes longer.
        clock: seconds.
        details_age: least seconds between two readings of the details (coverage, partitions).
    """

    def __init__(
        self,
        path: Path,
        read: Callable[[Path, bool], dict[str, Any]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        details_age: float = _LEAST_DETAILS_AGE,
    ) -> None:
        self._path, self._clock, self._details_age = path, clock, details_age
        self._read = read or (lambda folder, details: page_data([folder], details=details))
        self._guard = threading.Lock()
        self._data: dict[str, Any] | None = None
        self._body, self._good_until = b"", -1.0
        self._details: dict[str, Any] = dict.fromkeys(_DETAILS)
        self._details_are_of, self._details_good_until = "", -1.0

    def current(self) -> tuple[dict[str, Any] | None, bytes]:
        """The data and its JSON; None: there is nothing yet. Many may ask, one reads."""
        with self._guard:
            begin = self._clock()
            if begin >= self._good_until:
                try:
                    self._data = self._read_all(begin)
                    self._body = _json(self._data).encode()
                except (SubmodelError, OSError):
                    pass  # it has not begun, or is being written: what there was stays
                end = self._clock()
                self._good_until = end + max(_LEAST_AGE, _REST * (end - begin))
            return self._data, self._body

    def _read_all(self, begin: float) -> dict[str, Any]:
        """The data; what takes longer is read less often, and only where something is new."""
        data = self._read(self._path, False)
        text = _json(data)
        if text != self._details_are_of and begin >= self._details_good_until:
            data = self._read(self._path, True)
            self._details = {name: data[name] for name in _DETAILS}
            end = self._clock()
            self._details_are_of = text
            self._details_good_until = end + max(self._details_age, _DETAILS_REST * (end - begin))
        return {**data, **self._details}


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


class _ShortRequest:
    """The first bytes of a stream, line by line: a request that goes on for ever ends there."""

    def __init__(self, stream: BufferedIOBase) -> None:
        self._stream, self._rest = stream, _MOST_REQUEST

    def readline(self, most: int = -1) -> bytes:
        line = self._stream.readline(self._rest if most < 0 else min(most, self._rest))
        self._rest -= len(line)
        return line

    def close(self) -> None:
        self._stream.close()


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: LiveServer
    timeout = _PATIENCE
    protocol_version = "HTTP/1.1"  # browsers take no ETag from an older one
    server_version, sys_version = "submodel", ""

    def setup(self) -> None:
        super().setup()
        self.rfile = cast(Any, _ShortRequest(self.rfile))

    def handle(self) -> None:
        """The request, within its time."""
        end = threading.Timer(_LONGEST, self._hang_up)
        end.daemon = True
        end.start()
        try:
            super().handle()
        except OSError:  # the browser is gone
            pass
        finally:
            end.cancel()

    def _hang_up(self) -> None:
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # it is closed already
            return

    def do_GET(self) -> None:
        """Send the page or its data."""
        if self.headers.get_all("Host", []) not in self.server.hosts:
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"this server is for its own machine\n")
        elif self.path == "/":
            self._send_page()
        elif self.path == _DATA:
            self._send_data()
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there is / and /data.json\n")

    def _send_page(self) -> None:
        data, _ = self.server.data.current()
        text = _WAITING if data is None else page_html(data, live_url=_DATA)
        self._send(HTTPStatus.OK, "text/html", text.encode())

    def _send_data(self) -> None:
        data, body = self.server.data.current()
        if data is None:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", b"nothing there yet\n")
            return
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        if tag in (word.strip() for word in self.headers.get("If-None-Match", "").split(",")):
            self._send(HTTPStatus.NOT_MODIFIED, None, b"", {"ETag": tag})
        else:
            self._send(HTTPStatus.OK, "application/json", body, {"ETag": tag})

    def _send(
        self, status: HTTPStatus, kind: str | None, body: bytes, more: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **(more or {})}.items():
            self.send_header(name, value)
        if kind is not None:
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Nothing: requests are no news."""


class LiveServer(ThreadingHTTPServer):
    """The server of one page, on this machine only.

    Args:
        data: what it sends.
        port: where; 0: one that is free.
    """

    daemon_threads, block_on_close = True, False
    request_queue_size = 2 * _MOST_CONNECTIONS

    def __init__(self, data: LiveData, port: int = 0) -> None:
        self.data = data
        self._places = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise SubmodelError(f"--port: {port} cannot be served: {plain(why)}") from None
        port_text = "" if self.server_port == _PLAIN_PORT else f":{self.server_port}"
        names = [f"{name}{port_text}" for name in (ADDRESS, "localhost")]
        self.hosts = [[name] for name in names]
        self.url = f"http://{names[0]}/"

    def server_bind(self) -> None:
        """Without asking for the machine's name, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own, if there are not too many."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """And then leave its place to another."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()


def serve_page(path: Path, port: int, say: Callable[[str], None]) -> None:
    """Send a live page until Ctrl-C; the run may begin, stop, go on and end meanwhile.

    Args:
        path: the folder of a run or an experiment.
        port: where on this machine; 0: one that is free.
        say: told the page's address.
    """
    with LiveServer(LiveData(path), port) as server:
        say(f"{plain(path, 200)} is shown on {server.url} (this machine only); Ctrl-C ends that")
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            return
