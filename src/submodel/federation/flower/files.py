"""The files with which a server and a device prove who they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ServerFiles:
    """Of a server: the federation's CA, the certificate signed by it, and its key."""

    ca: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class DeviceFiles:
    """Of a device: whom to trust, and its own private key (OpenSSH, EC P-384)."""

    ca: Path
    key: Path
