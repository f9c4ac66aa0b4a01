"""A federation's folder: use by TLS and Flower, refusals, and output for users."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from submodel.core.errors import SubmodelError
from submodel.federation.flower import certificates, credentials
from submodel.federation.flower.credentials import Federation
from submodel.federation.flower.process import ServerFiles
from tests.support.commands import Command

HOST = "fl.example.org"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return credentials.create(tmp_path / "federation", [HOST, "192.0.2.7"], ["phone", "pi-2"])


def handshake(server: ServerFiles, ca: Path, name: str) -> str | None:
    """Connect over loopback as a client that trusts ``ca`` and expects ``name``."""
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(server.certificate, server.key)
    client = ssl.create_default_context(cafile=ca)
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # the default since Python 3.13

    def answer() -> None:
        with suppress(OSError), listener.accept()[0] as accepted:
            accepted.settimeout(5)
            own.wrap_socket(accepted, server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            with (
                socket.create_connection(listener.getsockname(), timeout=5) as plain,
                client.wrap_socket(plain, server_hostname=name) as secured,
            ):
                return secured.version()
        finally:
            thread.join()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", HOST, "192.0.2.7"])
def test_devices_accept_the_server_under_its_names(federation: Federation, name: str) -> None:
    ca = federation.folder / "devices/phone/ca.crt"
    assert handshake(federation.server, ca, name) == "TLSv1.3"
    federation.check(name)


@pytest.mark.parametrize("name", ["evil.example.org", "example.org", "127.0.0.2"])
def test_devices_refuse_the_server_under_another_name(federation: Federation, name: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=r"[Mm]ismatch"):
        handshake(federation.server, federation.server.ca, name)
    with pytest.raises(SubmodelError, match=rf"{name} .*{HOST}, 192\.0\.2\.7, local"):
        federation.check(name)


def test_devices_refuse_the_server_of_another_federation(
    federation: Federation, tmp_path: Path
) -> None:
    other = credentials.create(tmp_path / "other", [HOST], ["phone"])
    with pytest.raises(ssl.SSLCertVerificationError, match="local issuer"):
        handshake(other.server, federation.server.ca, HOST)
    shutil.copy(federation.server.ca, other.server.ca)
    with pytest.raises(SubmodelError, match=f"{other.server.certificate}: .*{other.server.ca}"):
        other.check(HOST)


def test_the_authority_signs_servers_and_nothing_below_them(federation: Federation) -> None:
    authority = x509.load_pem_x509_certificate((federation.folder / "ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate(federation.server.certificate.read_bytes())

    def limits(certificate: x509.Certificate) -> x509.BasicConstraints:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value

    assert (limits(authority).ca, limits(authority).path_length) == (True, 0)
    assert not limits(server).ca
    usage = server.extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.digital_signature
    assert not usage.key_cert_sign
    assert authority.not_valid_after_utc - server.not_valid_after_utc == timedelta(days=3650 - 825)
    assert server.not_valid_before_utc < datetime.now(UTC) - timedelta(hours=23)


def test_flower_reads_the_keys(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.cli.flower_supernode import _try_setup_client_authentication

    registered = federation.public_keys()
    assert list(registered) == ["phone", "pi-2"]
    for name, key in registered.items():
        home = federation.folder / "devices" / name
        files = credentials.load_device(home)
        loaded = _try_setup_client_authentication(
            argparse.Namespace(
                auth_supernode_private_key=str(files.key), auth_supernode_public_key=None
            )
        )
        assert loaded is not None
        # the SuperNode sends the registered key, byte for byte
        assert public_key_to_bytes(loaded[1]) == try_load_public_key(home / "device.pub")
        assert key == (home / "device.pub").read_bytes()
        assert loaded[1].curve.name == "secp384r1"


def test_private_files_are_private_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = credentials.create(tmp_path / "open", [HOST], ["phone"])
    finally:
        os.umask(before)
    found = {
        str(path.relative_to(made.folder)): stat.S_IMODE(path.stat().st_mode)
        for path in (made.folder, *made.folder.rglob("*"))
    }
    folders = dict.fromkeys([".", "server", "devices", "devices/phone"], 0o700)
    keys = dict.fromkeys(["ca.key", "server/server.key", "devices/phone/device.key"], 0o600)
    public = [".gitignore", "ca.crt", "server/ca.crt", "server/server.crt"]
    public += ["devices/phone/ca.crt", "devices/phone/device.pub"]
    assert found == folders | keys | dict.fromkeys(public, 0o644)


@pytest.mark.parametrize("name", ["ca.key", "server/server.key", "devices/pi-2/device.key"])
def test_a_key_that_others_can_read_is_refused(federation: Federation, name: str) -> None:
    (federation.folder / name).chmod(0o640)
    with pytest.raises(SubmodelError, match=rf"{name}: .*0640.*chmod 600"):
        credentials.load_federation(federation.folder)


@pytest.mark.parametrize(
    "name", ["server/ca.crt", "server/server.crt", "server/server.key", "devices/phone/device.pub"]
)
def test_a_missing_file_is_named(federation: Federation, name: str) -> None:
    (federation.folder / name).unlink()
    with pytest.raises(SubmodelError, match=f"{name}: "):
        credentials.load_federation(federation.folder)


def test_a_server_needs_no_private_key_but_its_own(federation: Federation) -> None:
    (federation.folder / "ca.key").unlink()
    for name in federation.devices:
        (federation.folder / "devices" / name / "device.key").unlink()
    assert credentials.load_federation(federation.folder) == federation
    assert len(federation.public_keys()) == 2
    assert credentials.add(federation.folder, ["third"]).devices == ("phone", "pi-2", "third")
    with pytest.raises(SubmodelError, match=r"ca\.key: "):
        credentials.renew_certificate(federation.folder)


def test_a_certificate_out_of_its_time_is_refused(federation: Federation) -> None:
    now = datetime.now(UTC)
    federation.check(HOST, now - timedelta(hours=23))
    federation.check(HOST, now + timedelta(days=824))
    for when in (now - timedelta(hours=25), now + timedelta(days=826)):
        with pytest.raises(SubmodelError, match=f"{when:%Y-%m-%d}.*'submodel federation renew'"):
            federation.check(HOST, when)


def test_a_renewed_server_is_accepted_by_the_old_devices(federation: Federation) -> None:
    before = federation.server.certificate.read_bytes(), federation.server.key.read_bytes()
    device = federation.folder / "devices/phone/ca.crt"
    trusted = device.read_bytes()
    (federation.folder / "server/server.key.new").write_text("left by a renewal that was killed")
    same = credentials.renew_certificate(federation.folder)
    assert same.hosts == (HOST, "192.0.2.7", "localhost", "127.0.0.1")
    renewed = credentials.renew_certificate(federation.folder, ["new.example.org"])
    assert renewed.hosts == ("new.example.org", "localhost", "127.0.0.1")
    assert renewed.server.certificate.read_bytes() != before[0]
    assert renewed.server.key.read_bytes() != before[1]
    assert stat.S_IMODE(renewed.server.key.stat().st_mode) == 0o600
    left = sorted(path.name for path in renewed.server.key.parent.iterdir())
    assert left == ["ca.crt", "server.crt", "server.key"]
    assert device.read_bytes() == trusted
    assert handshake(renewed.server, device, "new.example.org") == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(renewed.server, device, HOST)
    renewed.server.key.write_bytes(before[1])
    with pytest.raises(SubmodelError, match=r"server\.key: .*server\.crt"):
        renewed.check("new.example.org")


def test_only_the_own_authority_renews(federation: Federation, tmp_path: Path) -> None:
    other = credentials.create(tmp_path / "other", [HOST], ["phone"])
    shutil.copy(other.folder / "ca.key", federation.folder / "ca.key")
    with pytest.raises(SubmodelError, match=r"ca\.key: .*server/ca\.crt"):
        credentials.renew_certificate(federation.folder)


def test_no_certificate_outlives_its_authority() -> None:
    start = datetime(2030, 1, 1, tzinfo=UTC)
    authority = certificates.new_authority(start)
    end = certificates.read_certificate(authority.certificate).not_valid_after_utc
    late = certificates.new_server(authority, [HOST], end - timedelta(days=3))
    assert certificates.read_certificate(late.certificate).not_valid_after_utc == end
    with pytest.raises(SubmodelError, match="2039-12-30"):
        certificates.new_server(authority, [HOST], end)


@pytest.mark.parametrize(
    "host",
    ["", "a b", "fl.example.org:9092", "https://fl.example.org", "10.0.0.256", "[::1]", "-a.org",
     "fe80::1%eth0", "0.0.0.0", "::", "müller.de", "a..b", "*.example.org", "x" * 64, "a." * 127],
)  # fmt: skip
def test_what_is_not_a_host_is_refused(host: str, tmp_path: Path) -> None:
    with pytest.raises(SubmodelError, match=f"^'?{re.escape(host)}'?(:| )"):
        credentials.create(tmp_path / "federation", [host], ["phone"])
    assert not (tmp_path / "federation").exists()


def test_hosts_are_kept_once_and_in_order(tmp_path: Path) -> None:
    made = credentials.create(tmp_path / "f", ["::1", "FL_1.local", "localhost", "::1"], ["a"])
    assert made.hosts == ("::1", "fl_1.local", "localhost", "127.0.0.1")
    made.check("FL_1.LOCAL")
    made.check("0::1")


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "-x", "a/b", "a b", "ä", "a\n", "x" * 65]
)
def test_what_is_not_a_name_is_refused(federation: Federation, name: str, tmp_path: Path) -> None:
    before = sorted(federation.folder.rglob("*"))
    with pytest.raises(SubmodelError, match=re.escape(repr(name))):
        credentials.add(federation.folder, ["fine", name])
    with pytest.raises(SubmodelError, match=re.escape(repr(name))):
        credentials.create(tmp_path / "other", [HOST], [name])
    assert sorted(federation.folder.rglob("*")) == before
    assert not (tmp_path / "other").exists()


def test_no_device_is_made_twice(federation: Federation) -> None:
    key = federation.folder / "devices/phone/device.key"
    before = key.read_bytes()
    with pytest.raises(SubmodelError, match="devices/phone: "):
        credentials.add(federation.folder, ["new", "phone"])
    with pytest.raises(SubmodelError, match=r"^new: "):
        credentials.add(federation.folder, ["new", "new"])
    assert key.read_bytes() == before
    assert credentials.load_federation(federation.folder).devices == ("phone", "pi-2")
    shutil.copy(key.with_name("device.pub"), federation.folder / "devices/pi-2/device.pub")
    with pytest.raises(SubmodelError, match=r"pi-2.*key.*phone"):
        federation.public_keys()


def test_who_looks_while_devices_are_added_sees_whole_ones(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, ...]] = []
    write = credentials._write

    def slowly(home: Path, files: Mapping[str, bytes]) -> None:
        for name, content in files.items():
            write(home, {name: content})
            seen.append(credentials.load_federation(federation.folder).devices)

    monkeypatch.setattr(credentials, "_write", slowly)
    added = credentials.add(federation.folder, ["late"])
    assert set(seen) == {federation.devices}
    assert set(added.devices) == {*federation.devices, "late"}
    assert {p.name for p in (federation.folder / "devices").iterdir()} == set(added.devices)


def test_only_an_empty_folder_becomes_a_federation(federation: Federation, tmp_path: Path) -> None:
    before = (federation.folder / "ca.key").read_bytes()
    (tmp_path / "file").write_text("x")
    for taken in (federation.folder, tmp_path / "file"):
        with pytest.raises(SubmodelError, match=f"^{taken}"):
            credentials.create(taken, [HOST], ["phone"])
    assert (federation.folder / "ca.key").read_bytes() == before
    (tmp_path / "empty").mkdir(mode=0o755)
    made = credentials.create(tmp_path / "empty", [HOST], ["phone"])
    assert stat.S_IMODE(made.folder.stat().st_mode) == 0o700
    with pytest.raises(SubmodelError, match="file/below: "):
        credentials.create(tmp_path / "file/below", [HOST], ["phone"])
    with pytest.raises(SubmodelError, match="host"):
        credentials.create(tmp_path / "none", [], ["phone"])


def test_damaged_files_are_named(federation: Federation) -> None:
    public = federation.folder / "devices/phone/device.pub"
    for content in ("garbage", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB" + "A" * 42):
        public.write_text(content)
        with pytest.raises(SubmodelError, match=r"device\.pub: .*OpenSSH"):
            federation.public_keys()
    federation.server.key.write_text("garbage")
    with pytest.raises(SubmodelError, match=r"server\.key: .*elliptic"):
        federation.check(HOST)
    federation.server.certificate.write_text("garbage")
    with pytest.raises(SubmodelError, match=r"server\.crt: .*PEM"):
        federation.check(HOST)


def test_a_device_checks_its_own_credentials(federation: Federation, tmp_path: Path) -> None:
    home = tmp_path / "device"
    with pytest.raises(SubmodelError, match=r"device: .*devices/NAME"):
        credentials.load_device(home)
    shutil.copytree(federation.folder / "devices/phone", home)
    files = credentials.load_device(home)
    assert load_ssh_private_key(files.key.read_bytes(), None)
    files.key.chmod(0o644)
    with pytest.raises(SubmodelError, match=r"device\.key: .*0644"):
        credentials.load_device(home)
    files.key.chmod(0o600)
    files.key.write_bytes(federation.server.key.read_bytes())
    with pytest.raises(SubmodelError, match=r"device\.key: .*OpenSSH"):
        credentials.load_device(home)
    files.ca.unlink()
    with pytest.raises(SubmodelError, match=r"ca\.crt: "):
        credentials.load_device(home)


@pytest.fixture
def federation_command(submodel: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run ``submodel federation`` in an empty folder; return exit status, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        done = submodel("federation", *arguments)
        return done.returncode, done.stdout, done.stderr

    return run


def test_init_says_what_goes_where_and_what_to_run_next(federation_command: Run) -> None:
    status, out, err = federation_command("init", "--host", HOST, "--host", "192.0.2.7")
    assert (status, err) == (0, "")
    made = credentials.load_federation(Path("federation"))
    assert made.devices == ("device-1", "device-2", "device-3")
    assert out.splitlines() == [
        "made federation: a federation of a server and 3 device(s)",
        "federation/server/server.crt: valid for fl.example.org, 192.0.2.7, localhost, 127.0.0.1 "
        f"until {made.expires:%Y-%m-%d}",
        "copy one folder to each device, and no other file:",
        "  federation/devices/device-1  ->  'device' on device-1",
        "  federation/devices/device-2  ->  'device' on device-2",
        "  federation/devices/device-3  ->  'device' on device-3",
        "  device.key is private to its device: once it is there, it can be deleted here",
        "federation/ca.key: do not copy it, and better keep it offline. A holder of it can pose as "
        "the server;",
        "  only 'submodel federation renew' needs it.",
        "next, on the server:    submodel serve CONFIG.toml --federation federation",
        "next, on every device:  submodel join fl.example.org --data DIR",
    ]


def test_devices_by_number_by_name_and_later(federation_command: Run) -> None:
    assert federation_command("init", "many", "--host", HOST, "--devices", "10")[0] == 0
    assert credentials.load_federation(Path("many")).devices[:2] == ("device-01", "device-02")
    assert (
        federation_command("init", "few", "--host", HOST, "--device", "b", "--device", "a")[0] == 0
    )
    status, out, _ = federation_command("add", "c", "d", "--federation", "few")
    assert status == 0
    assert out.splitlines()[0] == "few: 2 device(s) more, now 4"
    assert "few/devices/d  ->  'device' on d" in out
    assert "few/devices/a" not in out
    status, out, _ = federation_command("renew", "--federation", "few", "--host", "192.0.2.8")
    assert status == 0
    assert "few/server/server.crt: valid for 192.0.2.8, localhost, 127.0.0.1 until" in out
    assert list(credentials.load_federation(Path("few")).public_keys()) == ["a", "b", "c", "d"]


BAD = {
    "no host": (["init"], "--host"),
    "both": (["init", "--host", HOST, "--devices", "2", "--device", "a"], "--devices"),
    "none": (["init", "--host", HOST, "--devices", "0"], "--devices"),
    "a port": (["init", "--host", "fl:9092"], "error: 'fl:9092'"),
    "no federation": (["add", "a"], "error: federation: "),
    "nothing to renew": (["renew"], "error: federation: "),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BAD)
def test_mistakes_are_sentences(case: str, federation_command: Run) -> None:
    arguments, message = BAD[case]
    status, out, err = federation_command(*arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert not Path("federation").exists()


def test_without_the_package_a_sentence_says_what_to_install() -> None:
    code = "import sys; sys.modules['cryptography'] = None; from submodel.cli import main; main()"
    command = [sys.executable, "-c", code, "federation", "init", "--host", HOST]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert line.endswith(": pip install 'submodel[flower]'")
