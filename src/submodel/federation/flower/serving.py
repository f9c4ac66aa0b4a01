"""Serving a run: a SuperLink, the run submitted to it, and everything that died started again.

The run itself is trained by the server's app, a process that the SuperLink starts; its folder holds
all there is to know, so following it is reading the folder, and going on after any death is
submitting the folder again.
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

Say = Callable[[str], None]
_PAUSE, _ASK_EVERY = 0.5, 2.0
_SILENCE = 60.0  # seconds that a SuperLink may not answer, be it busy or started again by its owner
_DEATHS = 5  # without a round in between, until one gives up
_LOCK_PATIENCE = 60.0
_MOST_PLACE = 2**16  # bytes


@dataclass(frozen=True)
class ServingPlace:
    """Where a run is served; the names are those of the file in its folder."""

    host: str
    port: int
    federation: str | None  # its folder; None: insecure, on loopback
    own: bool = True  # False: a SuperLink that somebody else runs
    ca: str | None = None  # of such a one

    @property
    def address(self) -> str:
        """Where this machine reaches it."""
        return probe.join_address("127.0.0.1" if self.host == "0.0.0.0" else self.host, self.port)

    def certificate(self) -> Path | None:
        """The CA certificate of the server; None: insecure."""
        if self.federation is not None:
            return load_federation(Path(self.federation)).server.ca
        return None if self.ca is None else Path(self.ca)

    def keys(self) -> Mapping[str, bytes]:
        """The public keys of the federation's devices, as they are now."""
        return load_federation(Path(self.federation)).public_keys() if self.federation else {}

    @classmethod
    def of(cls, superlink: str, ca: Path | None) -> ServingPlace:
        """A SuperLink that somebody else runs, if it answers; without ``ca`` on loopback only."""
        host, port = probe.split_address(superlink)
        if ca is None and not is_loopback(host):
            raise SubmodelError(
                f"--superlink {superlink}: give its --ca; without one only 127.0.0.1 is allowed"
            )
        health = probe.check_health(superlink, ca)
        if not health.ok:
            raise SubmodelError(f"--superlink {superlink}: {health.trouble}")
        return cls(host, port, None, own=False, ca=None if ca is None else str(ca.resolve()))

    def save(self, folder: RunFolder) -> None:
        """Remember it."""
        text = json.dumps(asdict(self), indent=2) + "\n"
        folder.serving_file.write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, folder: RunFolder) -> ServingPlace:
        """What `save` wrote."""
        try:
            return read_typed(_PLACE, folder.serving_file, _MOST_PLACE)
        except UnreadableError:
            raise SubmodelError(
                f"{folder.path}: not begun by 'submodel serve'; to go on with it: flwr run APP "
                f"--run-config 'folder=\"{folder.path.resolve()}\"'"
            ) from None


_PLACE = TypeAdapter(ServingPlace)


class ServedRun:
    """One run on a SuperLink, ours or another's."""

    def __init__(self, folder: RunFolder, place: ServingPlace, say: Say) -> None:
        self._folder, self._place, self._say = folder, place, say
        self._address, self._ca = place.address, place.certificate()
        self._link: Superlink | None = None
        credentials, database = None, folder.path / "superlink.db"
        if place.federation is not None:
            federation = load_federation(Path(place.federation))
            credentials, database = federation.server, federation.folder / "superlink.db"
            federation.check("localhost")
        if place.own:
            home, log = folder.path / ".flower", folder.link_log_file
            self._link = Superlink(place.host, place.port, home, log, credentials, database)
            self._address = self._link.address
        self._registered_keys: set[bytes] = set()
        self._control: Control | None = None
        self._run_id = 0
        self._rounds = folder.rounds()
        self._deaths = 0
        self._trouble = ""

    def follow(self, on_round: OnRound) -> None:
        """Until the run is finished; raises `Interruption` if it stops before."""
        try:
            self._begin()
            last_question = last_answer = time.monotonic()
            while True:
                self._tell(on_round)
                if self._link is not None and not self._link.alive():
                    self._again("the SuperLink died")
                    last_answer = time.monotonic()
                elif time.monotonic() - last_question > _ASK_EVERY:
                    last_question = time.monotonic()
                    status = self._status()
                    if status is None and last_question - last_answer > _SILENCE:
                        raise SubmodelError(
                            f"the SuperLink on {self._address} does not answer; when it does, "
                            f"'submodel resume {self._folder.path}' goes on"
                        )
                    if status is not None:
                        last_answer = time.monotonic()
                        if self._is_finished(status, on_round):
                            return
                time.sleep(_PAUSE)
        except KeyboardInterrupt:
            self._tell(on_round)
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
        """Let devices in that the federation has got since."""
        assert self._control is not None
        for name, key in self._place.keys().items():
            if key not in self._registered_keys:
                self._control.register(key)
                self._registered_keys.add(key)
                self._say(f"device {name} may join")

    def _submit(self) -> None:
        assert self._control is not None
        self._folder.stopped_file.unlink(missing_ok=True)  # why it stopped the last time
        where = {"folder": str(self._folder.path.resolve())}
        self._run_id = self._control.submit(thin_app(), where)

    def _tell(self, on_round: OnRound) -> None:
        for line in self._folder.metrics():
            if line["round"] <= self._rounds:
                continue
            self._rounds = line["round"]
            on_round(line)
            self._deaths = 0
            if missing := {**line.get("missing", {}), **line["refused"]}:
                names = "; ".join(f"client {c}: {why}" for c, why in missing.items())
                self._say(f"round {line['round']} without {names}")

    def _status(self) -> str | None:
        """How the run stands, and on the way let new devices in; None: nobody answers."""
        assert self._control is not None
        try:
            self._let_in()
            return self._control.status(self._run_id)
        except UnreachableError:
            return None

    def _let_in(self) -> None:
        """Register who is new; what is wrong with the federation's folder is said, and no more."""
        try:
            self._register()
            self._trouble = ""
        except UnreachableError:
            raise
        except SubmodelError as error:
            if str(error) != self._trouble:
                self._say(f"no new devices: {error}")
            self._trouble = str(error)

    def _is_finished(self, status: str, on_round: OnRound) -> bool:
        """Whether a run of this status is; one whose app died is started again."""
        if not status.startswith("finished"):
            return False
        self._tell(on_round)
        if status == "finished:completed" and self._folder.summary_file.is_file():
            return True
        if self._folder.stopped_file.is_file():
            raise Interruption(self._folder.stopped_file.read_text("utf-8").strip())
        if status == "finished:stopped":
            raise Interruption(f"stopped after round {self._rounds}")
        self._again("the server's app died")
        return False

    def _again(self, what: str) -> None:
        """Start again what died; the run goes on from its last round."""
        self._deaths += 1
        if self._deaths > _DEATHS:
            raise SubmodelError(
                f"{what} {self._deaths} times without finishing a round; see "
                f"{self._folder.log_file} and {self._folder.link_log_file}"
            )
        self._say(f"{what} after round {self._rounds}: starting it again")
        if self._link is not None and not self._link.alive():
            self._end()
            self._begin()
        else:
            self._wait_for_lock()
            self._submit()

    def _wait_for_lock(self) -> None:
        """An app that was stopped, or whose SuperLink died, notices it later: it must be gone."""
        with self._folder.lock(_LOCK_PATIENCE):
            pass  # and leave it to the app that follows

    def _end(self) -> None:
        if self._control is not None:
            with suppress(SubmodelError):
                self._control.stop(self._run_id)
            self._control.close()
            self._control = None
        if self._link is not None:
            self._link.stop()
