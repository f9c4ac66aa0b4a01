"""The environment of every Flower process: its own home, no telemetry, no installing."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

_SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    # how devices cut what they send, and so what a server takes from them (bounds.py)
    "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE": str(5 << 20),
}
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def environment(home: Path) -> dict[str, str]:
    """What a Flower process inherits: our environment, and what Flower must be told.

    >>> environment(Path("/var/flower"))["FLWR_HOME"]
    '/var/flower'
    """
    # Flower starts its helpers by name, so those of this Python must be found first
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    flower_variables = {"FLWR_HOME": str(home.absolute()), "PATH": programs.rstrip(os.pathsep)}
    return {**os.environ, **_SETTINGS, **flower_variables, **past_proxies(os.environ)}


def past_proxies(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that keep loopback out of a machine's proxy, in both spellings.

    Flower's processes of one machine talk to each other over HTTP, and its client sends even
    that through a proxy if the environment names one.

    >>> past_proxies({"NO_PROXY": "intranet"})["no_proxy"]
    'intranet,127.0.0.1,localhost,::1'
    """
    exceptions = variables.get("no_proxy") or variables.get("NO_PROXY") or ""
    hosts = [host.strip() for host in exceptions.split(",") if host.strip()]
    if "*" not in hosts:
        hosts += [host for host in _LOOPBACK if host not in hosts]
    return dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join(hosts))
