"""SuperNode of a device: settings, restarts of Flower's client, readable failures."""

from __future__ import annotations

import json
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from submodel.core.amounts import parse_amount, parse_capacity, si
from submodel.core.errors import SubmodelError, refuse
from submodel.engines.processes.launch import free_port
from submodel.federation.flower import probe
from submodel.federation.flower.guard import is_loopback
from submodel.federation.flower.process import Child, DeviceFiles

_POLL = 0.2
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_REFUSED_PAUSE = 5.0  # seconds at most until a refused key is tried again
_KEY = re.compile(r"[A-Za-z0-9_-]+")
_JOIN_LINE = re.compile(r"SuperNode ID: (\d+)")
_REFUSED_KEY = (
    "the server refused this device's key: it is not registered, or the device crashed "
    "and still counts as online (for about half a minute)"
)
_FORGOTTEN_DEVICE = "this device is no longer registered at the server"
_REFUSED_SIGNATURE = "the server did not accept this device's signature"
_OUR_LINE = re.compile(r"^submodel: (.*)$", re.MULTILINE)  # lines of launcher.py
_LOSS_LINE, _RETURN_LINE = "Connection attempt failed", "Connection successful"


def node_config(values: Mapping[str, str | int | float | bool]) -> str:
    r"""Return the text for ``--node-config``, for values with any text.

    Flower splits it at quotation marks before it reads it as TOML, so values contain none.

    >>> print(node_config({"data": 'C:\\my "own" data', "memory": 2, "verbose": True}))
    data="C:\\my \u0022own\u0022 data" memory=2 verbose=true
    """
    for key in values:
        if not _KEY.fullmatch(key):
            raise SubmodelError(
                f"{key!r} is not the name of a setting: use letters, digits, _ and -"
            )
    return " ".join(f"{key}={_toml(value)}" for key, value in values.items())


def _toml(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    # JSON's escapes are TOML's, except DEL; characters outside ASCII need none
    text = json.dumps(value, ensure_ascii=False)[1:-1].replace("\x7f", r"\u007f")
    return '"' + re.sub(r"\\(.)", lambda m: r"\u0022" if m[1] == '"' else m[0], text) + '"'


class Supernode:
    """Connection of a device to the SuperLink; ``config`` goes to the ClientApp."""

    def __init__(
        self,
        superlink: str,
        home: Path,
        log: Path,
        credentials: DeviceFiles | None,
        config: Mapping[str, str | int | float | bool],
    ) -> None:
        host, _ = probe.split_address(superlink)
        if credentials is None and not is_loopback(host):
            raise SubmodelError(
                f"a server on {host} needs credentials; without them only 127.0.0.1 is allowed"
            )
        self.superlink, self._credentials = superlink, credentials
        self._home, self._log = home, log
        self._arguments = ["--superlink", superlink]
        if credentials is None:
            self._arguments += ["--insecure"]
        else:
            self._arguments += ["--root-certificates", str(credentials.ca.absolute())]
            self._arguments += ["--auth-supernode-private-key", str(credentials.key.absolute())]
        if config:
            self._arguments += ["--node-config", node_config(config)]
        self._child: Child | None = None

    def start(self) -> None:
        """Start the SuperNode; it connects by itself, however long that takes."""
        files = self._credentials
        for path in (files.ca, files.key) if files else ():
            if not path.is_file():
                raise SubmodelError(f"{path}: no such file, but the device's credentials need it")
        self.stop()
        port = free_port()
        arguments = [*self._arguments, "--host", "127.0.0.1", "--port", str(port)]
        runtime = ["--runtime-api-address", f"127.0.0.1:{port}", "--insecure"]
        self._child = Child("supernode", arguments, self._home, self._log, runtime)
        self._child.start()

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._child is not None and self._child.alive()

    def stop(self) -> None:
        """Disconnect from the SuperLink and end the process with its descendants."""
        if self._child is not None:
            self._child.stop()

    def new_output(self) -> str:
        """Return the output since the last call."""
        return self._child.new_output() if self._child else ""

    def health(self) -> probe.Health:
        """Check the health of the SuperLink from this device."""
        files = self._credentials
        return probe.check_health(self.superlink, files.ca if files else None)

    def exit_reason(self) -> str:
        """Return the reason of the end, in one sentence."""
        if self._child is None:
            return "it was not started"
        reason = explain_exit(self._child.output(), self._child.returncode)
        if reason in (_FORGOTTEN_DEVICE, _REFUSED_SIGNATURE):
            return self.health().clock_problem or reason
        return reason


def explain_exit(output: str, returncode: int | None) -> str:
    """Return the reason of a SuperNode's end, from its log and exit status."""
    if "[code: 2004]" in output:
        return _REFUSED_KEY
    if "[code: 2001]" in output:
        return "the server requires a key, and this device has none"
    if refusal := re.search(r"CERTIFICATE_VERIFY_FAILED\] certificate verify failed: (.*)", output):
        reason = refusal[1].partition(" (_ssl.c")[0]
        return f"the server's certificate is not valid for this device's CA: {reason}"
    if "SSL/TLS handshake error" in output:
        return "the server does not use TLS"
    if "Exit Code: 302" in output:
        return "the device's private key is not an EC key in OpenSSH format"
    if "submodel: the process that starts apps has ended" in output:
        return "the process that starts apps has ended"
    if "401 Unauthorized" in output or (returncode == 0 and _JOIN_LINE.search(output)):
        return _FORGOTTEN_DEVICE
    if returncode == 0:  # Flower exits silently when a signature is refused
        return _REFUSED_SIGNATURE
    if returncode is not None and returncode < 0:
        return f"it was ended by {signal.Signals(-returncode).name}"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f"it failed: {lines[-1]}" if lines else "it failed without output"


def keep_running(
    node: Supernode, on_event: Callable[[str], None], should_stop: Callable[[], bool]
) -> None:
    """Run a node until ``should_stop()``; restart it after growing pauses when it ends."""
    pause = _FIRST_PAUSE
    try:
        while not should_stop():
            start = time.monotonic()
            node.start()
            _follow(node, on_event, should_stop)
            if should_stop():
                return
            reason = node.exit_reason()
            node.stop()
            if time.monotonic() - start > _LONGEST_PAUSE:  # after a working connection
                pause = _FIRST_PAUSE
            if reason == _REFUSED_KEY:
                pause = min(pause, _REFUSED_PAUSE)
            on_event(f"{reason}; trying again in {pause:g} s")
            end = time.monotonic() + pause
            while time.monotonic() < end and not should_stop():
                time.sleep(_POLL)
            pause = min(2 * pause, _LONGEST_PAUSE)
    finally:
        node.stop()


def _follow(
    node: Supernode, on_event: Callable[[str], None], should_stop: Callable[[], bool]
) -> None:
    """Follow a node until it ends; report when it joins, disconnects and reconnects."""
    is_lost = False
    while node.alive() and not should_stop():
        output = node.new_output()
        for sentence in _OUR_LINE.findall(output):
            on_event(sentence)
        if join := _JOIN_LINE.search(output):
            on_event(f"joined {node.superlink} as device {join[1]}")
            is_lost = False
        elif _RETURN_LINE in output:
            on_event(f"connected to {node.superlink} again")
            is_lost = False
        elif _LOSS_LINE in output and not is_lost:
            health = node.health()
            problem = (
                health.problem or "it answers, but not to Flower (is there a proxy in between?)"
            )
            on_event(f"no connection to {node.superlink}: {problem}; trying again")
            is_lost = True
        time.sleep(_POLL)


def join(
    address: str,
    settings: Mapping[str, str | int | float | bool],
    files: DeviceFiles | None,
    log: Callable[[str], None],
) -> None:
    """Take part in the training of a server until Ctrl-C.

    Args:
        address: address of the server, as HOST:PORT.
        settings: result of `node_settings`.
        files: credentials of the device; None: insecure.
        log: function called with every event as a line of text.
    """
    with tempfile.TemporaryDirectory(prefix="submodel-") as temporary:
        home = Path(temporary)
        journal = home / "journal.jsonl"
        config = {**settings, "journal": str(journal)}
        node = Supernode(address, home, home / "supernode.log", files, config)
        log(f"joining {address}; Ctrl-C leaves")
        is_over = threading.Event()
        printer = threading.Thread(target=_print_journal, args=(journal, is_over, log), daemon=True)
        printer.start()
        try:
            keep_running(node, log, is_over.is_set)
        except KeyboardInterrupt:
            log("left")
        finally:
            is_over.set()
            printer.join(timeout=5)


def node_settings(
    data: str | None,
    part: int | None,
    capacity: str | None,
    memory: str | None,
    name: str | None,
    settings: Sequence[str] = (),
) -> dict[str, str | int | float | bool]:
    """Return the settings of the device's app; raise `ConfigError` if they are invalid."""
    problems = []
    if (data is None) == (part is None):
        problems.append("give --data DIR or, for tests, --part NUMBER, and only one of them")
    place, problem = ("", "") if data is None else find_own_data(data)
    problems += [f"--data: {problem}"] * bool(problem)
    if data is None and settings:
        problems.append("--set: goes with --data; a part of the run's data has the run's keys")
    problems += [
        f"--set {setting}: expected data.KEY=VALUE"
        for setting in settings
        if not setting.strip().startswith("data.") or "=" not in setting or "\n" in setting
    ]
    if capacity is not None and memory is not None:
        problems.append("give --capacity or --memory, not both")
    refuse(problems)
    values = {
        "data": place or None,
        "set": "\n".join(settings) or None,
        "part": part,
        "capacity": None if capacity is None else parse_capacity(capacity),
        "memory": None if memory is None else parse_amount(memory),
        "name": name,
    }
    return {key: value for key, value in values.items() if value is not None}


def find_own_data(text: str) -> tuple[str, str]:
    """Resolve ``--data`` to a name or absolute path, with a description of any problem.

    >>> find_own_data("mnist")
    ('mnist', '')
    >>> find_own_data("/nowhere/pictures")[1]
    '/nowhere/pictures: no such file or folder, nor the name of a data source'
    """
    from submodel.data.builtin_data import SOURCES

    path = Path(text).expanduser()
    if path.exists():
        return str(path.resolve()), ""
    if text == "own" or not SOURCES.accepts(text):
        return text, f"{text}: no such file or folder, nor the name of a data source"
    prefix, _, argument = text.partition(":")
    if prefix not in SOURCES.prefixes or SOURCES.entries[prefix].argument != "PATH":
        return text, ""
    path = Path(argument).expanduser()
    problem = "" if path.exists() else f"{argument}: no such file or folder"
    return f"{prefix}:{path.resolve()}", problem


def _print_journal(journal: Path, is_over: threading.Event, log: Callable[[str], None]) -> None:
    """Print the journal of the device's app, line by line."""
    position = 0
    while True:
        last = is_over.is_set()
        if journal.is_file():
            with journal.open("rb") as file:
                file.seek(position)
                for line in file:
                    if line.endswith(b"\n"):
                        position += len(line)
                        log(describe_entry(json.loads(line)))
        if last:
            return
        is_over.wait(0.5)


def describe_entry(line: Mapping[str, Any]) -> str:
    """Describe one line of the journal.

    >>> describe_entry({"kind": "report", "seconds": 1.5, "capacity": 0.25, "examples": 300})
    'reported: capacity 0.25, 300 examples'
    """
    if "problem" in line:
        return f"cannot take part: {line['problem']}"
    if line["kind"] == "report":
        share = "as configured" if line["capacity"] is None else f"{line['capacity']:g}"
        return f"reported: capacity {share}, {line['examples']} examples"
    sizes = f"{si(line['bytes_down'], 'B')} down, {si(line['bytes_up'], 'B')} up"
    if line["kind"] == "moments":
        return f"measured for the norms in {line['seconds']:.1f} s, {sizes}"
    return (
        f"round {line['topic']}: trained on {line['processed']} examples in "
        f"{line['seconds']:.1f} s, loss {line['loss']:.4f}, {sizes}"
    )
