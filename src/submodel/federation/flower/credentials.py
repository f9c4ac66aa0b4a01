"""Folder of a federation: credentials of its server and of its devices.

::

    ca.crt ca.key                          certificate authority of the federation
    server/{ca.crt,server.crt,server.key}  files of the server
    devices/NAME/{ca.crt,device.key,device.pub}   files for one device

Only new server certificates need the key of the authority, and only the device needs its private
key.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from submodel.core.errors import SubmodelError
from submodel.federation.flower import certificates
from submodel.federation.flower.process import DeviceFiles, ServerFiles

if TYPE_CHECKING:
    from cryptography import x509

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Federation:
    """Folder of a federation and the sorted names of its devices."""

    folder: Path
    devices: tuple[str, ...]

    @property
    def server(self) -> ServerFiles:
        """Files of the server."""
        home = self.folder / "server"
        return ServerFiles(home / "ca.crt", home / "server.crt", home / "server.key")

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names and addresses of the server's certificate."""
        return certificates.hosts_of(_certificate(self.server.certificate))

    @property
    def expires(self) -> datetime:
        """End of the server certificate's validity."""
        return _certificate(self.server.certificate).not_valid_after_utc

    def public_keys(self) -> dict[str, bytes]:
        """Return the public keys of all devices by name, in OpenSSH format."""
        keys: dict[str, bytes] = {}
        owners: dict[bytes, str] = {}
        for name in self.devices:
            path = self.folder / "devices" / name / "device.pub"
            content = _read(path)
            with _naming(path):
                key = certificates.registered_form(content)
            if key in owners:
                raise SubmodelError(
                    f"{path}: the same key as that of {owners[key]}; every device needs its own"
                )
            keys[name], owners[key] = content, name
        return keys

    def check(self, host: str, when: datetime | None = None) -> None:
        """Raise `SubmodelError` if devices would refuse the server's certificate.

        Args:
            host: name or address of the server.
            when: time of the check; None: now.
        """
        now, path, mend = when or datetime.now(UTC), self.server.certificate, "federation renew"
        host = str(certificates.parse_host(host).value)
        certificate = _certificate(path)
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise SubmodelError(
                f"{path}: valid from {certificate.not_valid_before_utc:%Y-%m-%d} to "
                f"{certificate.not_valid_after_utc:%Y-%m-%d}, not on {now:%Y-%m-%d}; "
                f"'submodel {mend}' creates a new one"
            )
        if host not in self.hosts:
            raise SubmodelError(
                f"{path}: not for {host} but for {', '.join(self.hosts)}; "
                f"'submodel {mend} --host {host}' creates one"
            )
        if not certificates.is_issued_by(certificate, _certificate(self.server.ca)):
            raise SubmodelError(f"{path}: not signed by {self.server.ca}, which devices trust")
        _pair(path, self.server.key)


def create(folder: Path, hosts: Sequence[str], devices: Sequence[str]) -> Federation:
    """Create the folder of a federation; ``hosts`` are the addresses of its server."""
    if not hosts:
        raise SubmodelError("give at least one host, the address of the server for devices")
    _check_names(devices)
    now = datetime.now(UTC)
    authority = certificates.new_authority(now)
    server = certificates.new_server(authority, hosts, now)
    with _readable_errors():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise SubmodelError(f"{folder}: exists and is not an empty folder")
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        # keeps private keys out of repositories
        _write(folder, {".gitignore": b"*\n", "ca.crt": authority.certificate})
        _write(folder, {"ca.key": authority.key})
        (folder / "server").mkdir(mode=0o700)
        _write(folder / "server", {"ca.crt": authority.certificate, **_server_files(server)})
        (folder / "devices").mkdir(mode=0o700)
        _write_devices(folder, authority.certificate, devices)
    return load_federation(folder)


def add(folder: Path, names: Sequence[str]) -> Federation:
    """Create credentials of further devices of a federation."""
    federation = load_federation(folder)
    _check_names(names)
    with _readable_errors():
        for name in names:
            if (folder / "devices" / name).exists():
                raise SubmodelError(f"{folder / 'devices' / name}: a device of this name exists")
        _write_devices(folder, federation.server.ca.read_bytes(), names)
    return load_federation(folder)


def renew_certificate(folder: Path, hosts: Sequence[str] = ()) -> Federation:
    """Create a new key and certificate of the server, by default for its present hosts.

    The authority stays the same, so devices keep their files.
    """
    federation = load_federation(folder)
    key = folder / "ca.key"
    if not key.exists():
        raise SubmodelError(f"{key}: no such file; signing a certificate needs it")
    authority = _pair(federation.server.ca, key)
    server = certificates.new_server(authority, hosts or federation.hosts, datetime.now(UTC))
    home = folder / "server"
    with _readable_errors():
        files = _server_files(server)
        for name in files:
            (home / f"{name}.new").unlink(missing_ok=True)
        _write(home, {f"{name}.new": content for name, content in files.items()})
        for name in files:
            (home / f"{name}.new").replace(home / name)
    return load_federation(folder)


def load_federation(folder: Path) -> Federation:
    """Load a federation; check that the server's files exist and private keys are private.

    The private keys of the authority and of devices may be missing.
    """
    with _readable_errors():
        if not (folder / "server").is_dir():
            raise SubmodelError(
                f"{folder}: not the folder of a federation; create one with "
                f"'submodel federation init {folder} --host NAME'"
            )
        homes = sorted(path for path in (folder / "devices").glob("[!.]*") if path.is_dir())
        federation = Federation(folder, tuple(home.name for home in homes))
        server = federation.server
        publics = [home / "device.pub" for home in homes]
        _check_present([server.ca, server.certificate, server.key, *publics])
        keys = [folder / "ca.key", server.key, *(home / "device.key" for home in homes)]
        _check_private([key for key in keys if key.exists()])
    return federation


def load_device(folder: Path) -> DeviceFiles:
    """Load the credentials of a device: a copy of ``devices/NAME`` of its federation."""
    files = DeviceFiles(folder / "ca.crt", folder / "device.key")
    with _readable_errors():
        if not folder.is_dir():
            raise SubmodelError(
                f"{folder}: no such folder; copy devices/NAME of the federation here, as {folder}"
            )
        _check_present([files.ca, files.key])
        _check_private([files.key])
        _certificate(files.ca)
        content = _read(files.key)
    with _naming(files.key):
        certificates.check_device_key(content)
    return files


def _write_devices(folder: Path, ca: bytes, names: Sequence[str]) -> None:
    for name in names:
        # a concurrent server sees the whole folder or nothing
        home = Path(tempfile.mkdtemp(prefix=".", dir=folder / "devices"))
        keys = certificates.new_device()
        _write(home, {"ca.crt": ca, "device.key": keys.private, "device.pub": keys.public})
        home.rename(folder / "devices" / name)


def _server_files(server: certificates.Pair) -> dict[str, bytes]:
    return {"server.key": server.key, "server.crt": server.certificate}


def _write(home: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        # private from the first byte on
        mode = 0o600 if ".key" in name else 0o644
        number = os.open(home / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(number, "wb") as file:
            file.write(content)


def _check_names(names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        if not _NAME.fullmatch(name):
            raise SubmodelError(
                f"{name!r} is not a device name: at most 64 letters, digits, '.', '_' and "
                "'-', a letter or digit first"
            )
        if name in names[:index]:
            raise SubmodelError(f"{name}: given twice; every device needs its own name")


def _check_present(paths: Sequence[Path]) -> None:
    for path in paths:
        if not path.is_file():
            raise SubmodelError(f"{path}: no such file; the credentials are not complete")


def _check_private(paths: Sequence[Path]) -> None:
    for path in paths:
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            raise SubmodelError(
                f"{path}: a private key that others can reach (mode {mode:04o}): chmod 600 {path}"
            )


def _certificate(path: Path) -> x509.Certificate:
    content = _read(path)
    with _naming(path):
        return certificates.read_certificate(content)


def _pair(certificate: Path, key: Path) -> certificates.Pair:
    pair = certificates.Pair(_read(certificate), _read(key))
    with _naming(key):
        if not certificates.keys_match(pair):
            raise SubmodelError(f"not the private key of {certificate}")
    return pair


def _read(path: Path) -> bytes:
    with _readable_errors():
        return path.read_bytes()


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Prefix errors with the name of a file."""
    try:
        yield
    except SubmodelError as error:
        raise SubmodelError(f"{path}: {error}") from None


@contextmanager
def _readable_errors() -> Iterator[None]:
    """Raise errors of the system as `SubmodelError`."""
    try:
        yield
    except OSError as error:
        raise SubmodelError(f"{error.filename}: {error.strerror}") from None
