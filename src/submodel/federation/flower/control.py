"""Adapter to Flower's internals: submit, follow and stop runs; register and list devices.

Flower offers these only as commands that take a second each; the modules behind them change from
version to version. An upgrade of Flower changes this file (and the start of a SuperLink in
guard.py).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.cli.build import build_fab_from_disk
from flwr.common.config import flatten_dict, get_fab_config
from flwr.common.constant import HEARTBEAT_PATIENCE
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from submodel.core.errors import SubmodelError
from submodel.federation.flower.process import proxy_exceptions


class UnreachableError(SubmodelError):
    """Error: a SuperLink does not answer."""


@dataclass(frozen=True)
class Node:
    """Device as registered at a SuperLink.

    The status is ``registered`` (never seen), ``online`` or ``offline``. A crashed device counts as
    online until two heartbeats, half a minute, are missing; ``last_seen`` is then that time.
    """

    id: int
    fingerprint: str
    status: str
    last_seen: datetime | None


def thin_app() -> Path:
    """Return the folder of the submitted app: names of installed modules, no code."""
    return Path(__file__).with_name("app")


def bundle(app: Path) -> tuple[bytes, dict[str, Any]]:
    """Return an app as Flower sends it, and the defaults of a run's settings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # from a library that Flower calls
            content = build_fab_from_disk(app)
        config = get_fab_config(content)["tool"]["flwr"]["app"].get("config")
        return content, flatten_dict(config)
    except (ValueError, OSError, click.ClickException) as error:
        raise SubmodelError(f"{app} is not a Flower app: {error}") from None


def key_fingerprint(public_key: bytes) -> str:
    """Return the fingerprint of an OpenSSH public key, as in ``ssh-keygen -l``.

    >>> key_fingerprint(b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA== name")
    'SHA256:xGib3+FptS+cITct2V7iFK9qKkm/QSPPdJstK0JtCps'
    """
    try:
        blob = base64.b64decode(public_key.split()[1], validate=True)
    except (IndexError, ValueError):
        raise SubmodelError(f"{public_key[:40]!r} is not a public key in OpenSSH format") from None
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


class Control:
    """Connection to a SuperLink on this machine; ``ca`` is its CA, None for plain HTTP."""

    def __init__(self, address: str, ca: Path | None) -> None:
        self._address = address
        try:
            certificates = None if ca is None else ca.read_bytes()
            with _without_proxies():
                self._client = ControlHttpClient.from_server_address(
                    server_address=address,
                    insecure=ca is None,
                    root_certificates=certificates,
                    interceptors=[RuntimeVersionHttpInterceptor(component_name="submodel")],
                )
        except (OSError, ValueError) as error:
            raise SubmodelError(f"{ca} is not a CA certificate: {error}") from None

    def submit(self, app: Path, run_config: Mapping[str, str | int | float | bool]) -> int:
        """Submit an app; return the id of the run."""
        content, defaults = bundle(app)
        unknown = sorted(run_config.keys() - defaults.keys())
        if unknown:  # Flower's own error does not name the key
            raise SubmodelError(
                f"{app}: unknown settings {', '.join(unknown)}; allowed: {', '.join(defaults)}"
            )
        fab = fab_to_proto(Fab(hashlib.sha256(content).hexdigest(), content, {}))
        config = user_config_to_proto(dict(run_config))
        request = StartRunRequest(fab=fab, override_config=config)
        reply = self._ask("start the run", self._client.StartRun, request)
        if not reply.HasField("run_id"):
            raise SubmodelError(f"the SuperLink on {self._address} did not start the run")
        return int(reply.run_id)

    def status(self, run_id: int) -> str:
        """Return pending, starting, running or finished:completed|failed|stopped."""
        request = ListRunsRequest(run_id=run_id)
        status = self._ask("show the run", self._client.ListRuns, request).run_dict[run_id].status
        return f"{status.status}:{status.sub_status}" if status.sub_status else str(status.status)

    def details(self, run_id: int) -> str:
        """Return Flower's text on the end of a run; often empty."""
        request = ListRunsRequest(run_id=run_id)
        reply = self._ask("show the run", self._client.ListRuns, request)
        return str(reply.run_dict[run_id].status.details)

    def stop(self, run_id: int) -> None:
        """Stop a run, if it has not ended."""
        request = StopRunRequest(run_id=run_id)
        run_is_over = ApiErrorCode.RUN_ALREADY_FINISHED
        reply = self._ask("stop the run", self._client.StopRun, request, fine=run_is_over)
        if reply is not None and not reply.success:
            raise SubmodelError(f"the SuperLink on {self._address} could not stop run {run_id}")

    def register(self, public_key: bytes) -> None:
        """Register the key of a device (EC P-384, OpenSSH format); no effect if registered."""
        try:
            key = serialization.load_ssh_public_key(public_key)
            if not isinstance(key, ec.EllipticCurvePublicKey):
                raise ValueError(f"it is a {type(key).__name__}")
        except (ValueError, UnsupportedAlgorithm) as error:
            raise SubmodelError(
                f"{public_key[:40]!r} is not a public EC P-384 key in OpenSSH format: {error}"
            ) from None
        text = key.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        key_in_use = ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE
        request = RegisterNodeRequest(public_key=text)
        self._ask("register the key", self._client.RegisterNode, request, fine=key_in_use)

    def nodes(self) -> list[Node]:
        """Return all registered devices, connected or not."""
        reply = self._ask("list the devices", self._client.ListNodes, ListNodesRequest())
        return [_node(info) for info in reply.nodes_info if info.status != "unregistered"]

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _ask(
        self,
        what: str,
        call: Callable[[Any], Any],
        request: Any,
        fine: ApiErrorCode | None = None,
    ) -> Any:
        """Return Flower's reply; None if it refused with the code ``fine``."""
        try:
            return call(request)
        except httpx.HTTPStatusError as error:
            refusal = FlowerError.from_json(error.response.text)
            if refusal is not None and refusal.code == fine:
                return None
            reason = str(error)
            if refusal is not None:
                reason = " ".join(filter(None, [refusal.message, refusal.public_details]))
            raise SubmodelError(
                f"the SuperLink on {self._address} refused to {what}: {reason}"
            ) from None
        except (httpx.HTTPError, ValueError) as error:
            raise UnreachableError(
                f"cannot ask the SuperLink on {self._address} to {what}: {error}"
            ) from None


def _node(info: Any) -> Node:
    key = serialization.load_pem_public_key(info.public_key) if info.public_key else None
    openssh = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    last_seen = None
    if info.HasField("online_until"):
        # a heartbeat extends online_until by this time; afterwards it is the time of the end
        ahead = HEARTBEAT_PATIENCE * info.heartbeat_interval if info.status == "online" else 0.0
        last_seen = datetime.fromtimestamp(info.online_until - ahead, UTC)
    return Node(
        id=info.node_id,
        fingerprint=key_fingerprint(key.public_bytes(*openssh)) if key else "",
        status=info.status,
        last_seen=last_seen,
    )


@contextlib.contextmanager
def _without_proxies() -> Iterator[None]:
    """Exempt loopback from proxies while Flower's client reads the environment."""
    changes = proxy_exceptions(os.environ)
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
