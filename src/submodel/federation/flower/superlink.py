"""SuperLink of a run: Flower's server as a child process."""

from __future__ import annotations

import errno
import socket
import ssl
import time
from pathlib import Path

from submodel.core.errors import SubmodelError
from submodel.federation.flower import probe
from submodel.federation.flower.guard import is_loopback
from submodel.federation.flower.process import Child, ServerFiles

_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_POLL = 0.1


class Superlink:
    """Flower's server; without credentials it uses plain HTTP on loopback only.

    Without a database it loses runs and keys when it stops.
    """

    def __init__(
        self,
        host: str,
        port: int,
        home: Path,
        log: Path,
        credentials: ServerFiles | None,
        database: Path | None,
    ) -> None:
        if credentials is None and not is_loopback(host):
            raise SubmodelError(
                f"a server on {host} needs credentials; without them only 127.0.0.1 is allowed"
            )
        self._host, self._port = host, port
        self._credentials, self._database = credentials, database
        arguments = ["--host", host, "--port", str(port)]
        arguments += ["--disable-runtime-dependency-installation"]
        runtime = ["--runtime-api-address", self.address]
        if credentials is None:
            arguments += ["--insecure"]
            runtime += ["--insecure"]
        else:
            runtime += ["--root-certificates", str(credentials.ca.absolute())]
            arguments += ["--ssl-ca-certfile", str(credentials.ca.absolute())]
            arguments += ["--ssl-certfile", str(credentials.certificate.absolute())]
            arguments += ["--ssl-keyfile", str(credentials.key.absolute())]
            arguments += ["--enable-supernode-auth"]
        if database is not None:
            arguments += ["--database", str(database.absolute())]
        self._child = Child("superlink", arguments, home, log, runtime)

    @property
    def address(self) -> str:
        """Address of the server for this machine, as ``host:port``."""
        return probe.join_address(_ANY.get(self._host, self._host), self._port)

    def start(self, timeout: float = 60) -> None:
        """Start the server and wait until it answers."""
        self._check_files()
        self._check_port()
        self._child.start()
        deadline = time.monotonic() + timeout
        try:
            while not self._healthy():
                if not self._child.alive():
                    raise SubmodelError(
                        f"the SuperLink ended at its start; the last lines of {self._child.log}:\n"
                        f"{self._child.last_lines()}"
                    )
                if time.monotonic() > deadline:
                    raise SubmodelError(
                        f"the SuperLink on {self.address} did not answer within {timeout:g} s; "
                        f"the last lines of {self._child.log}:\n{self._child.last_lines()}"
                    )
                time.sleep(_POLL)
        except BaseException:
            self.stop()
            raise

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._child.alive()

    def stop(self) -> None:
        """End the server and its processes; close connections first, as it waits for them."""
        self._child.stop()

    def _healthy(self) -> bool:
        files = self._credentials
        health = probe.check_health(self.address, files.ca if files else None)
        if files and health.is_untrusted:
            raise SubmodelError(
                f"the certificate {files.certificate} is not valid for {self.address} "
                f"with the CA {files.ca}: {health.problem}"
            )
        return health.ok

    def _check_files(self) -> None:
        files = self._credentials
        for path in (files.ca, files.certificate, files.key) if files else ():
            if not path.is_file():
                raise SubmodelError(f"{path}: no such file, but the server's credentials need it")
        if files:
            probe.trust(files.ca)
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                    files.certificate, files.key
                )
            except (ssl.SSLError, OSError) as error:
                raise SubmodelError(
                    f"{files.certificate} and {files.key} are not certificate and key: {error}"
                ) from None
        if self._database is not None:
            self._database.parent.mkdir(parents=True, exist_ok=True)

    def _check_port(self) -> None:
        """Raise `SubmodelError` if the port is taken, before Flower starts processes."""
        try:
            kind, *_, where = socket.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(kind) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(where)
        except OSError as error:
            reason = f"{(error.strerror or str(error)).lower()}"
            if error.errno == errno.EADDRINUSE:
                reason = "it is in use; choose another port"
            raise SubmodelError(
                f"cannot listen on port {self._port} of {self._host}: {reason}"
            ) from None
