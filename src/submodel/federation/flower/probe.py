"""Asks a SuperLink whether it is well, and if not, says why in words."""

from __future__ import annotations

import email.utils
import http.client
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

from submodel.core.errors import SubmodelError
from submodel.federation.flower.guard import HEALTH

_TIMEOUT = 5.0
# Flower takes a signature that is at most 5 s from the future or 5 minutes old; half a second is
# what the reply's date, which has whole seconds, may be off on average.
_AHEAD, _BEHIND = 4.5, 300.0


@dataclass(frozen=True)
class Health:
    """Whether a SuperLink answered, and if not, why.

    ``is_untrusted``: it did, but with a certificate that our CA did not sign. ``ahead`` is how
    many seconds our clock is before the server's, from its reply.
    """

    ok: bool
    trouble: str = ""
    is_untrusted: bool = False
    ahead: float = 0.0

    @property
    def clock_trouble(self) -> str:
        """What is wrong with our clock for Flower's signatures, if anything.

        >>> Health(ok=True, ahead=40.2).clock_trouble
        "this machine's clock is 40 s ahead of the server's"
        """
        if self.ahead > _AHEAD:
            return f"this machine's clock is {self.ahead:.0f} s ahead of the server's"
        if self.ahead < -_BEHIND:
            return f"this machine's clock is {-self.ahead:.0f} s behind the server's"
        return ""


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[IPv6]:port``.

    >>> split_address("[::1]:9092")
    ('::1', 9092)
    """
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise SubmodelError(f"{address!r} is not an address; one is host:port or [IPv6]:port")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """The reverse of `split_address`.

    >>> join_address("::1", 9092)
    '[::1]:9092'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_health(address: str, ca: Path | None) -> Health:
    """Ask once; ``ca`` is the CA to trust, None for plain HTTP.

    Not through Flower's client or the system's settings: those would use a proxy.
    """
    host, port = split_address(address)
    if ca is None:
        connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT)
    else:
        context = trust(ca)
        connection = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT, context=context)
    try:
        connection.request("GET", HEALTH)
        reply = connection.getresponse()
        if reply.status != http.client.OK:
            return Health(False, f"what answers on {address} is not a SuperLink")
        return Health(True, ahead=_ahead(reply.getheader("Date")))
    except ssl.SSLCertVerificationError as error:
        return Health(False, f"its certificate: {error.verify_message}", is_untrusted=True)
    except ssl.SSLError:
        return Health(False, f"{address} does not speak TLS")
    except (ConnectionResetError, http.client.HTTPException):
        hint = " (does it ask for TLS, and so for credentials?)" if ca is None else ""
        return Health(False, f"{address} hung up{hint}")
    except OSError as error:
        return Health(False, f"{address}: {(error.strerror or str(error)).lower()}")
    finally:
        connection.close()


def trust(ca: Path) -> ssl.SSLContext:
    """What trusts this CA and no other."""
    try:
        return ssl.create_default_context(cafile=ca)
    except (ssl.SSLError, OSError) as error:
        raise SubmodelError(f"{ca} is not a CA certificate: {error}") from None


def _ahead(date: str | None) -> float:
    if date is None:
        return 0.0
    try:
        there = email.utils.parsedate_to_datetime(date).timestamp()
    except ValueError:
        return 0.0
    return time.time() - there - 0.5
