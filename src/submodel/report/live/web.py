"""Live page of runs, served by this machine to browsers on this machine.

The server answers ``/`` and ``/data.json`` from memory: no path of a request becomes a path on the
disk. It listens on 127.0.0.1 and refuses requests for other host names, which a page could point
here (DNS rebinding).
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
_PLAIN_PORT = 80  # browsers omit it
_MOST_REQUEST = 2**14  # bytes of a request with its headers
_MOST_CONNECTIONS = 16
_SOCKET_TIMEOUT = 5.0  # seconds of silence before a connection is closed
_REQUEST_TIMEOUT = 15.0  # maximum seconds of a request
_LEAST_AGE, _AGE_FACTOR = 1.0, 4.0  # data is kept for this many seconds, or times its reading time
_LEAST_DETAILS_AGE, _DETAILS_AGE_FACTOR = (
    10.0,
    20.0,
)  # likewise of the slower coverage and partitions
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
<body><p>Waiting for a run to begin.</p>
</body></html>
"""


class LiveData:
    """Cached data of a page, read again on request once it has expired.

    Args:
        path: folder of a run or an experiment.
        read: function from a folder to the data of a page, with or without details.
        clock: clock in seconds.
        details_age: minimum seconds between two readings of the details (coverage, partitions).
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
        """Return the data and its JSON, None before the first run; one thread reads at a time."""
        with self._guard:
            begin = self._clock()
            if begin >= self._good_until:
                try:
                    self._data = self._read_all(begin)
                    self._body = _json(self._data).encode()
                except (SubmodelError, OSError):
                    pass  # not begun, or being written: keep the former data
                end = self._clock()
                self._good_until = end + max(_LEAST_AGE, _AGE_FACTOR * (end - begin))
            return self._data, self._body

    def _read_all(self, begin: float) -> dict[str, Any]:
        """Read the data; read the details less often, and only after a change."""
        data = self._read(self._path, False)
        text = _json(data)
        if text != self._details_are_of and begin >= self._details_good_until:
            data = self._read(self._path, True)
            self._details = {name: data[name] for name in _DETAILS}
            end = self._clock()
            self._details_are_of = text
            self._details_good_until = end + max(
                self._details_age, _DETAILS_AGE_FACTOR * (end - begin)
            )
        return {**data, **self._details}


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


class _ShortRequest:
    """Lines of a stream up to a limit, so that an endless request ends."""

    def __init__(self, stream: BufferedIOBase) -> None:
        self._stream, self._rest = stream, _MOST_REQUEST

    def readline(self, most: int = -1) -> bytes:
        line = self._stream.readline(self._rest if most < 0 else min(most, self._rest))
        self._rest -= len(line)
        return line

    def close(self) -> None:
        self._stream.close()


class _Handler(BaseHTTPRequestHandler):
    """Handler of one request."""

    server: LiveServer
    timeout = _SOCKET_TIMEOUT
    protocol_version = "HTTP/1.1"  # browsers ignore ETags of HTTP/1.0
    server_version, sys_version = "submodel", ""

    def setup(self) -> None:
        super().setup()
        self.rfile = cast(Any, _ShortRequest(self.rfile))

    def handle(self) -> None:
        """Handle the request within its time limit."""
        end = threading.Timer(_REQUEST_TIMEOUT, self._close_connection)
        end.daemon = True
        end.start()
        try:
            super().handle()
        except OSError:  # the browser has disconnected
            pass
        finally:
            end.cancel()

    def _close_connection(self) -> None:
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # already closed
            return

    def do_GET(self) -> None:
        """Send the page or its data."""
        if self.headers.get_all("Host", []) not in self.server.hosts:
            self._send(
                HTTPStatus.FORBIDDEN, "text/plain", b"this server is for its own machine only\n"
            )
        elif self.path == "/":
            self._send_page()
        elif self.path == _DATA:
            self._send_data()
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"only / and /data.json exist\n")

    def _send_page(self) -> None:
        data, _ = self.server.data.current()
        text = _WAITING if data is None else page_html(data, live_url=_DATA)
        self._send(HTTPStatus.OK, "text/html", text.encode())

    def _send_data(self) -> None:
        data, body = self.server.data.current()
        if data is None:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", b"no run yet\n")
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

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - name of the base class
        """Log no requests."""


class LiveServer(ThreadingHTTPServer):
    """Server of one page, on this machine only.

    Args:
        data: data of the page.
        port: port to listen on; 0 for a free one.
    """

    daemon_threads, block_on_close = True, False
    request_queue_size = 2 * _MOST_CONNECTIONS

    def __init__(self, data: LiveData, port: int = 0) -> None:
        self.data = data
        self._slots = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise SubmodelError(f"--port: {port} cannot be used: {plain(why)}") from None
        port_text = "" if self.server_port == _PLAIN_PORT else f":{self.server_port}"
        names = [f"{name}{port_text}" for name in (ADDRESS, "localhost")]
        self.hosts = [[name] for name in names]
        self.url = f"http://{names[0]}/"

    def server_bind(self) -> None:
        """Bind without a lookup of the machine's name, which may be slow."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a request in a new thread, unless there are too many."""
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle a request, then release its slot."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()


def serve_page(path: Path, port: int, log: Callable[[str], None]) -> None:
    """Serve a live page until Ctrl-C; the run may begin, stop, continue and end meanwhile.

    Args:
        path: folder of a run or an experiment.
        port: port to listen on; 0 for a free one.
        log: function called with the address of the page.
    """
    with LiveServer(LiveData(path), port) as server:
        log(f"{plain(path, 200)} is shown on {server.url} (this machine only); Ctrl-C ends that")
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            return
