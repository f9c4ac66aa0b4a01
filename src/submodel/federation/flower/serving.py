"""Serving of a run: a SuperLink, the submitted run, and restarts of processes that died.

The server's app, a process of the SuperLink, trains the run. The run's folder holds its whole
state, so progress is read from the folder, and submitting the folder again continues the run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from submodel.core.errors import SubmodelError
from submodel.core.files import UnreadableError, read_typed
from submodel.federation.flower import probe
from submodel.federation.flower.control import Control, UnreachableError, thin_app
from submodel.federation.flower.credentials import load_federation
from submodel.federation.flower.guard import is_loopback
from submodel.federation.flower.superlink import Superlink
from submodel.runs.callbacks import OnRound
from submodel.runs.folder import RunFolder
from submodel.runs.loop import Interruption

Log = Callable[[str], None]
_PAUSE, _ASK_EVERY = 0.5, 2.0
_ANSWER_TIMEOUT = 60.0  # seconds without an answer of the SuperLink, which may be restarting
_MOST_RESTARTS = 5  # without a finished round in between
_LOCK_TIMEOUT = 60.0
_MOST_PLACE = 2**16  # bytes


@dataclass(frozen=True)
class ServingPlace:
    """Address of a served run; the field names are those of the file in its folder."""

    host: str
    port: int
    federation: str | None  # folder of the federation; None: insecure, on loopback
    own: bool = True  # False: a SuperLink that was started otherwise
    ca: str | None = None  # CA of such a SuperLink

    @property
    def address(self) -> str:
        """Address of the server for this machine."""
        return probe.join_address("127.0.0.1" if self.host == "0.0.0.0" else self.host, self.port)

    def certificate(self) -> Path | None:
        """Return the CA certificate of the server; None: insecure."""
        if self.federation is not None:
            return load_federation(Path(self.federation)).server.ca
        return None if self.ca is None else Path(self.ca)

    def keys(self) -> Mapping[str, bytes]:
        """Return the present public keys of the federation's devices."""
        return load_federation(Path(self.federation)).public_keys() if self.federation else {}

    @classmethod
    def of(cls, superlink: str, ca: Path | None) -> ServingPlace:
        """Return the place of a running SuperLink; without ``ca`` only on loopback."""
        host, port = probe.split_address(superlink)
        if ca is None and not is_loopback(host):
            raise SubmodelError(
                f"--superlink {superlink}: give its --ca; without one only 127.0.0.1 is allowed"
            )
        health = probe.check_health(superlink, ca)
        if not health.ok:
            raise SubmodelError(f"--superlink {superlink}: {health.problem}")
        return cls(host, port, None, own=False, ca=None if ca is None else str(ca.resolve()))

    def save(self, folder: RunFolder) -> None:
        """Write the place to the run's folder."""
        text = json.dumps(asdict(self), indent=2) + "\n"
        folder.serving_file.write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, folder: RunFolder) -> ServingPlace:
        """Read the file of `save`."""
        try:
            return read_typed(_PLACE, folder.serving_file, _MOST_PLACE)
        except UnreadableError:
            raise SubmodelError(
                f"{folder.path}: not begun by 'submodel serve'; continue with: flwr run APP "
                f"--run-config 'folder=\"{folder.path.resolve()}\"'"
            ) from None


_PLACE = TypeAdapter(ServingPlace)


class ServedRun:
    """Run on a SuperLink, which is started here or was running."""

    def __init__(self, folder: RunFolder, place: ServingPlace, log: Log) -> None:
        self._folder, self._place, self._log = folder, place, log
        self._address, self._ca = place.address, place.certificate()
        self._link: Superlink | None = None
        credentials, database = None, folder.path / "superlink.db"
        if place.federation is not None:
            federation = load_federation(Path(place.federation))
            credentials, database = federation.server, federation.folder / "superlink.db"
            federation.check("localhost")
        if place.own:
            home, log_file = folder.path / ".flower", folder.link_log_file
            self._link = Superlink(place.host, place.port, home, log_file, credentials, database)
            self._address = self._link.address
        self._registered_keys: set[bytes] = set()
        self._control: Control | None = None
        self._run_id = 0
        self._rounds = folder.rounds()
        self._restarts = 0
        self._problem = ""

    def follow(self, on_round: OnRound) -> None:
        """Follow the run until it is finished; raise `Interruption` if it stops before."""
        try:
            self._begin()
            last_question = last_answer = time.monotonic()
            while True:
                self._report_rounds(on_round)
                if self._link is not None and not self._link.alive():
                    self._restart("the SuperLink died")
                    last_answer = time.monotonic()
                elif time.monotonic() - last_question > _ASK_EVERY:
                    last_question = time.monotonic()
                    status = self._status()
                    if status is None and last_question - last_answer > _ANSWER_TIMEOUT:
                        raise SubmodelError(
                            f"the SuperLink on {self._address} does not answer; when it does, "
                            f"continue with: submodel resume {self._folder.path}"
                        )
                    if status is not None:
                        last_answer = time.monotonic()
                        if self._is_finished(status, on_round):
                            return
                time.sleep(_PAUSE)
        except KeyboardInterrupt:
            self._report_rounds(on_round)
            raise Interruption(f"stopped after round {self._rounds}") from None
        finally:
            self._end()

    def _begin(self) -> None:
        self._wait_for_lock()
        if self._link is not None:
            self._link.start()
        self._control = Control(self._address, self._ca)
        self._registered_keys.clear()
        self._register()
        self._submit()

    def _register(self) -> None:
        """Register the keys of new devices of the federation."""
        assert self._control is not None
        for name, key in self._place.keys().items():
            if key not in self._registered_keys:
                self._control.register(key)
                self._registered_keys.add(key)
                self._log(f"device {name} may join")

    def _submit(self) -> None:
        assert self._control is not None
        self._folder.stopped_file.unlink(missing_ok=True)  # the reason of the last stop
        where = {"folder": str(self._folder.path.resolve())}
        self._run_id = self._control.submit(thin_app(), where)

    def _report_rounds(self, on_round: OnRound) -> None:
        for line in self._folder.metrics():
            if line["round"] <= self._rounds:
                continue
            self._rounds = line["round"]
            on_round(line)
            self._restarts = 0
            if missing := {**line.get("missing", {}), **line["refused"]}:
                names = "; ".join(f"client {c}: {why}" for c, why in missing.items())
                self._log(f"round {line['round']} without {names}")

    def _status(self) -> str | None:
        """Register new devices and return the run's status; None if there is no answer."""
        assert self._control is not None
        try:
            self._register_new()
            return self._control.status(self._run_id)
        except UnreachableError:
            return None

    def _register_new(self) -> None:
        """Register new devices; an error of the federation's folder is only logged."""
        try:
            self._register()
            self._problem = ""
        except UnreachableError:
            raise
        except SubmodelError as error:
            if str(error) != self._problem:
                self._log(f"no new devices: {error}")
            self._problem = str(error)

    def _is_finished(self, status: str, on_round: OnRound) -> bool:
        """Whether a status means a finished run; restart the run if its app died."""
        if not status.startswith("finished"):
            return False
        self._report_rounds(on_round)
        if status == "finished:completed" and self._folder.summary_file.is_file():
            return True
        if self._folder.stopped_file.is_file():
            raise Interruption(self._folder.stopped_file.read_text("utf-8").strip())
        if status == "finished:stopped":
            raise Interruption(f"stopped after round {self._rounds}")
        self._restart("the server's app died")
        return False

    def _restart(self, what: str) -> None:
        """Restart the dead process; the run continues from its last round."""
        self._restarts += 1
        if self._restarts > _MOST_RESTARTS:
            raise SubmodelError(
                f"{what} {self._restarts} times without finishing a round; see "
                f"{self._folder.log_file} and {self._folder.link_log_file}"
            )
        self._log(f"{what} after round {self._rounds}: restarting it")
        if self._link is not None and not self._link.alive():
            self._end()
            self._begin()
        else:
            self._wait_for_lock()
            self._submit()

    def _wait_for_lock(self) -> None:
        """Wait until the former app has ended and released the folder's lock."""
        with self._folder.lock(_LOCK_TIMEOUT):
            pass  # the next app takes the lock

    def _end(self) -> None:
        if self._control is not None:
            with suppress(SubmodelError):
                self._control.stop(self._run_id)
            self._control.close()
            self._control = None
        if self._link is not None:
            self._link.stop()
