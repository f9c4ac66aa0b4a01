"""Health check of a SuperLink, with a readable reason for a failure."""

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
# Flower accepts a signature from at most 5 s in the future or 5 minutes in the past; the reply's
# date has whole seconds and is off by half a second on average.
_AHEAD, _BEHIND = 4.5, 300.0


@dataclass(frozen=True)
class Health:
    """Result of a health check.

    ``problem`` is the reason of a failure; ``is_untrusted`` marks a certificate that the CA did not
    sign. ``ahead`` is the seconds that this clock is ahead of the server's, from its reply.
    """

    ok: bool
    problem: str = ""
    is_untrusted: bool = False
    ahead: float = 0.0

    @property
    def clock_problem(self) -> str:
        """Description of a clock too wrong for Flower's signatures; empty if it is not.

        >>> Health(ok=True, ahead=40.2).clock_problem
        "this machine's clock is 40 s ahead of the server's"
        """
        if self.ahead > _AHEAD:
            return f"this machine's clock is {self.ahead:.0f} s ahead of the server's"
        if self.ahead < -_BEHIND:
            return f"this machine's clock is {-self.ahead:.0f} s behind the server's"
        return ""


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[IPv6]:port`` into host and port.

    >>> split_address("[::1]:9092")
    ('::1', 9092)
    """
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise SubmodelError(f"{address!r} is not an address such as host:port or [IPv6]:port")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Join host and port; inverse of `split_address`.

    >>> join_address("::1", 9092)
    '[::1]:9092'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_health(address: str, ca: Path | None) -> Health:
    """Send one health check; ``ca`` is the CA to trust, None for plain HTTP.

    Flower's client and the system's settings are not used: they may use a proxy.
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
            return Health(False, f"the server on {address} is not a SuperLink")
        return Health(True, ahead=_ahead(reply.getheader("Date")))
    except ssl.SSLCertVerificationError as error:
        return Health(False, f"its certificate: {error.verify_message}", is_untrusted=True)
    except ssl.SSLError:
        return Health(False, f"{address} does not use TLS")
    except (ConnectionResetError, http.client.HTTPException):
        hint = " (does it need TLS, and so credentials?)" if ca is None else ""
        return Health(False, f"{address} closed the connection{hint}")
    except OSError as error:
        return Health(False, f"{address}: {(error.strerror or str(error)).lower()}")
    finally:
        connection.close()


def trust(ca: Path) -> ssl.SSLContext:
    """Return a TLS context that trusts only this CA."""
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
