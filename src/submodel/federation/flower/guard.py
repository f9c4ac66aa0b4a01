"""Guard of a SuperLink: only its own machine may control it, other machines reach devices' paths.

Flower serves three interfaces on one port: control (submit a run, which is code that every device
executes), runtime (for its own helper processes) and fleet (for devices, which sign with their
keys). Its account login has no effect, so the guard filters all requests: other machines reach only
the fleet interface and the health check. Everything else is closed, also after an upgrade of
Flower. The size of devices' requests is limited (bounds.py).

The launcher runs this file by its path (launcher.py), so it imports nothing of the package except
bounds.py, which is in the same folder and imports nothing of it either.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from submodel.federation.flower import bounds
else:
    _spec = importlib.util.spec_from_file_location("bounds", Path(__file__).with_name("bounds.py"))
    bounds = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(bounds)

FLEET = "/v1/fleet/"
HEALTH = "/health"
_SHUTDOWN = 2  # seconds for open requests when the SuperLink stops
# Flower's switches for former interfaces, on separate ports without a guard.
_UNGUARDED_SWITCHES = ("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API")

AsgiSend = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[bounds.AsgiScope, bounds.AsgiReceive, AsgiSend], Awaitable[None]]


def is_loopback(host: str) -> bool:
    """Whether an address is of this machine only.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.5")]
    [True, True, True, False]
    """
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    ipv4_address = getattr(address, "ipv4_mapped", None)
    return bool((ipv4_address or address).is_loopback)


def is_allowed(scope: bounds.AsgiScope) -> bool:
    """Whether a request is allowed: fleet from all machines, the rest from this machine.

    >>> is_allowed({"type": "http", "path": "/v1/control/start-run", "client": ("10.0.0.5", 1)})
    False
    """
    if scope["type"] == "lifespan":
        return True
    path = scope["path"]
    if scope["type"] == "http" and (path == HEALTH or path.startswith(FLEET)):
        return True
    client, server = scope.get("client"), scope.get("server")
    if not client:
        return False
    # helpers of a SuperLink that is bound to one address use that address
    return is_loopback(client[0]) or bool(server and client[0] == server[0])


KeyCheck = Callable[[bounds.AsgiScope], Awaitable[bool]]
"""Check whether a request is signed with a registered key."""


async def _no_key(_: bounds.AsgiScope) -> bool:
    return False


class Guard:
    """Middleware before Flower: status 403 if a request is not allowed, 413 if it is too long."""

    def __init__(
        self, app: AsgiApp, has_key: KeyCheck = _no_key, chunk: int = bounds.UNREGISTERED_BYTES
    ) -> None:
        self._app, self._has_key, self._chunk = app, has_key, chunk

    async def __call__(
        self, scope: bounds.AsgiScope, receive: bounds.AsgiReceive, send: AsgiSend
    ) -> None:
        """Handle one request."""
        if not is_allowed(scope):
            if scope["type"] == "http":
                await _refuse(send, 403, "Allowed only from the server's own machine.")
            else:
                await receive()
                await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http" and scope["path"].startswith(FLEET):
            await self._fleet(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _fleet(
        self, scope: bounds.AsgiScope, receive: bounds.AsgiReceive, send: AsgiSend
    ) -> None:
        """Handle a request to the fleet interface, which may come from any machine."""
        most = bounds.largest_body(scope["path"], self._chunk)
        body, length = None, bounds.declared_length(scope)
        if length <= bounds.UNREGISTERED_BYTES or (length <= most and await self._has_key(scope)):
            body = await bounds.whole_body(receive, max(length, bounds.UNREGISTERED_BYTES))
        if body is None:
            await _refuse(
                send, 413, "The request is too long for this key, or for a request without a key."
            )
        else:
            await self._app(scope, bounds.replay(body, receive), send)


async def _refuse(send: AsgiSend, status: int, detail: str) -> None:
    text = json.dumps({"detail": detail}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(text)).encode()),
        (b"connection", b"close"),  # the rest is not read
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


def run_superlink() -> None:
    """Run ``flower-superlink`` behind the guard, with the same arguments."""
    for name in _UNGUARDED_SWITCHES:
        os.environ.pop(name, None)

    import uvicorn
    from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
    from flwr.supercore.http_logging import get_uvicorn_log_config
    from flwr.supercore.logger import console_handler
    from flwr.superlink.cli.flower_superlink import (
        SuperLinkLifespan,
        _parse_superlink_lifespan_config,
    )
    from flwr.superlink.main import create_app

    bounds.guard_answers()
    config = _parse_superlink_lifespan_config()
    app = create_app(config, SuperLinkLifespan)
    uvicorn.run(
        Guard(app, bounds.RegisteredKeys(app), FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE),
        host=config.host,
        port=config.port,
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
        workers=1,
        log_config=get_uvicorn_log_config(console_handler.level),
        http="h11",  # limits the head of a request; the other implementation does not
        # a proxy header could fake this machine's address
        proxy_headers=False,
        timeout_graceful_shutdown=_SHUTDOWN,
    )


if __name__ == "__main__":
    run_superlink()
