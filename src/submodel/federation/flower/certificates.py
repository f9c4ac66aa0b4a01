"""Certificates and keys of a federation as bytes: authority, server, devices."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from submodel.core.errors import SubmodelError

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise SubmodelError(
        "a federation needs the package 'cryptography': pip install 'submodel[flower]'"
    ) from None

# The authority outlives several server certificates, so devices keep their files.
AUTHORITY_LIFE = timedelta(days=3650)
# Longest validity that every TLS client accepts, also under a private authority.
SERVER_LIFE = timedelta(days=825)
# For devices with slow clocks.
LEEWAY = timedelta(days=1)
ALWAYS = ("localhost", "127.0.0.1")

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


@dataclass(frozen=True)
class Pair:
    """Certificate and its private key (PEM)."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True)
class DeviceKeys:
    """Private and public key of a device (OpenSSH)."""

    private: bytes
    public: bytes


def parse_host(text: str) -> x509.GeneralName:
    """Parse a name or address of the server.

    >>> parse_host("FL.example.org").value, parse_host("192.0.2.7").value
    ('fl.example.org', IPv4Address('192.0.2.7'))
    """
    try:
        # a zone, as in fe80::1%eth0, is only valid on one machine
        address = ipaddress.ip_address(text) if "%" not in text else None
    except ValueError:
        address = None
    if address is not None:
        if address.is_unspecified:
            raise SubmodelError(f"{text}: an address to listen on; devices cannot reach it")
        return x509.IPAddress(address)
    labels = text.lower().split(".")
    if len(text) > 253 or labels[-1].isdigit() or not all(map(_LABEL.fullmatch, labels)):
        raise SubmodelError(
            f"{text!r} is not a host: give a name such as fl.example.org or an address such as "
            "192.0.2.7, without a port"
        )
    return x509.DNSName(text.lower())


def new_authority(now: datetime) -> Pair:
    """Create an authority that may sign server certificates, but no further authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = _name(f"submodel federation {identifier.digest.hex()[:8]}")
    builder = _builder(name, name, key, now, now + AUTHORITY_LIFE)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    return Pair(_pem(builder.sign(key, hashes.SHA256())), _private_pem(key))


def new_server(authority: Pair, hosts: Sequence[str], now: datetime) -> Pair:
    """Create a key and certificate of a server for these hosts."""
    names = list(dict.fromkeys(parse_host(host) for host in (*hosts, *ALWAYS)))
    signer = _private(authority.key)
    issuer = read_certificate(authority.certificate)
    if issuer.not_valid_after_utc <= now:
        raise SubmodelError(
            f"the authority of this federation expired on {issuer.not_valid_after_utc:%Y-%m-%d}: "
            "create a new federation with 'submodel federation init'"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(now + SERVER_LIFE, issuer.not_valid_after_utc)
    builder = _builder(_name("submodel server"), issuer.subject, key, now, end)
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage("digital_signature"), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectAlternativeName(names), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False),
    ):
        builder = builder.add_extension(extension, critical)
    return Pair(_pem(builder.sign(signer, hashes.SHA256())), _private_pem(key))


def new_device() -> DeviceKeys:
    """Create a pair of keys of a device, in the format of Flower's SuperNode."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return DeviceKeys(private, public + b"\n")


def registered_form(public: bytes) -> bytes:
    """Return a public key in the form that Flower stores and compares byte by byte."""
    try:
        key = serialization.load_ssh_public_key(public)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise SubmodelError("not an OpenSSH public key of the kind ecdsa")
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def check_device_key(private: bytes) -> None:
    """Raise `SubmodelError` if Flower's SuperNode cannot use the key."""
    try:
        key = serialization.load_ssh_private_key(private, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SubmodelError("not an OpenSSH private key of the kind ecdsa, without a passphrase")


def read_certificate(pem: bytes) -> x509.Certificate:
    """Read a certificate in PEM."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise SubmodelError("not a certificate in PEM") from None


def hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the names and addresses of a certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    kinds = (x509.DNSName, x509.IPAddress)
    return tuple(str(name.value) for name in names if isinstance(name, kinds))


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the authority signed the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def keys_match(pair: Pair) -> bool:
    """Whether the private key is that of the certificate."""
    return _private(pair.key).public_key() == read_certificate(pair.certificate).public_key()


def _private(pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SubmodelError("not an elliptic-curve private key in PEM, without a passphrase")
    return key


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - LEEWAY)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*purposes: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in purposes for usage in _USAGES})


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
