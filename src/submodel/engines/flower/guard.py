"""A SuperLink that takes orders from its own machine only; others reach the devices' door.

Flower serves three interfaces on one port: control (submit a run, which is code that every device
executes), runtime (for its own helper processes) and fleet (for devices, which sign with their
keys). Its account login is a no-op, so the guard stands before all of them: from another machine
only the fleet interface and the health check answer. Whatever else is served, now or after an
upgrade of Flower, is closed.

This file is run by its path (see launcher.py) and so imports nothing of the package.
"""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

FLEET = "/v1/fleet/"
HEALTH = "/health"
_SHUTDOWN = 2  # seconds that an open request has to end when the SuperLink stops
# Switches of Flower's for interfaces of the past, on ports of their own that nothing guards.
_UNGUARDED = ("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def is_loopback(host: str) -> bool:
    """Whether only this machine can be at, or reach, the address.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.5")]
    [True, True, True, False]
    """
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def allowed(scope: Scope) -> bool:
    """Whether a request may pass: the fleet's for all, every other from this machine.

    >>> allowed({"type": "http", "path": "/v1/control/start-run", "client": ("10.0.0.5", 1)})
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
    # A SuperLink bound to one address is reached on it by its helpers too: from that address.
    return is_loopback(client[0]) or bool(server and client[0] == server[0])


class Guard:
    """Answers 403 to whatever is not allowed, before any code of Flower sees it."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if allowed(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            text = json.dumps({"detail": "Only the server's own machine may do this."}).encode()
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(text)).encode()),
            ]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": text})
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008})


def main() -> None:
    """``flower-superlink`` with the guard around its application; takes its arguments."""
    for name in _UNGUARDED:
        os.environ.pop(name, None)

    import uvicorn
    from flwr.supercore.http_logging import get_uvicorn_log_config
    from flwr.supercore.logger import console_handler
    from flwr.superlink.cli.flower_superlink import (
        SuperLinkLifespan,
        _parse_superlink_lifespan_config,
    )
    from flwr.superlink.main import create_app

    config = _parse_superlink_lifespan_config()
    uvicorn.run(
        Guard(create_app(config, SuperLinkLifespan)),
        host=config.host,
        port=config.port,
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
        workers=1,
        log_config=get_uvicorn_log_config(console_handler.level),
        # with them a header could claim that a request comes from this machine
        proxy_headers=False,
        timeout_graceful_shutdown=_SHUTDOWN,
    )


if __name__ == "__main__":
    main()
