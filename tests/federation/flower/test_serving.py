"""Following a run: what is started again when something dies, all in one process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest

from submodel.cli.devices import serve_command
from submodel.config import parse
from submodel.engines.processes.launch import free_port
from submodel.errors import ConfigError, SubmodelError
from submodel.federation.device import Report
from submodel.federation.flower import serving
from submodel.federation.flower.control import UnreachableError
from submodel.federation.flower.serving import ServedRun, ServingPlace
from submodel.federation.flower.superlink import Superlink
from submodel.federation.roster import Entry
from submodel.runs.loop import Interruption, RunFolder
from tests.support.commands import Command


class Link:
    """A SuperLink that is alive or not."""

    def __init__(self) -> None:
        self.lives, self.starts = False, 0

    def start(self) -> None:
        self.lives, self.starts = True, self.starts + 1

    def alive(self) -> bool:
        return self.lives

    def stop(self) -> None:
        self.lives = False


class Scene:
    """A served run; `asked` is called for its status, with how often that happened before."""

    def __init__(
        self, folder: Path, asked: Callable[[int], str], keys: Callable[[], Mapping[str, bytes]]
    ) -> None:
        self.keys = keys
        self.folder, self.link = RunFolder(folder), Link()
        self.folder.create(parse({}))
        self.submitted: list[Mapping[str, Any]] = []
        self.said: list[str] = []
        self.registered: list[bytes] = []
        self._asked, self._times = asked, 0

    def __call__(self, *_: object) -> Scene:
        return self  # in the place of a connection

    def submit(self, _: Path, run_config: Mapping[str, Any]) -> int:
        self.submitted.append(run_config)
        return len(self.submitted)

    def status(self, _: int) -> str:
        self._times += 1
        return self._asked(self._times - 1)

    def register(self, key: bytes) -> None:
        self.registered.append(key)

    def stop(self, _: int) -> None: ...

    def close(self) -> None: ...

    def follow(self) -> None:
        link = cast(Superlink, self.link)
        served = ServedRun(self.folder, link, "here:1", None, self.keys, self.said.append)
        served.follow(lambda _: None)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scene]:
    def make(asked: Callable[[int], str], keys: Callable[[], Mapping[str, bytes]] = dict) -> Scene:
        made = Scene(tmp_path / "run", asked, keys)
        monkeypatch.setattr(serving, "Control", made)
        return made

    monkeypatch.setattr(serving, "_PAUSE", 0.0)
    monkeypatch.setattr(serving, "_ASK_EVERY", -1.0)
    return make


def finished(scene: Scene) -> str:
    scene.folder.summary_file.write_text("{}")
    return "finished:completed"


def test_a_superlink_that_dies_while_it_is_asked_is_started_again(
    scene: Callable[..., Scene],
) -> None:
    def asked(times: int) -> str:
        if times == 0:
            made.link.lives = False
            raise UnreachableError("connection refused")
        return finished(made)

    made = scene(asked)
    made.follow()
    assert made.said == ["the SuperLink died after round 0: starting it again"]
    assert made.link.starts == len(made.submitted) == 2
    assert not made.link.lives


def test_one_that_does_not_answer_is_asked_again(scene: Callable[..., Scene]) -> None:
    def asked(times: int) -> str:
        if times < 3:
            raise UnreachableError("timed out")
        return finished(made)

    made = scene(asked)
    made.follow()
    assert not made.said
    assert len(made.submitted) == 1


def test_new_devices_are_let_in_and_trouble_with_their_keys_does_not_end_the_run(
    scene: Callable[..., Scene],
) -> None:
    looks = 0

    def keys() -> Mapping[str, bytes]:
        nonlocal looks
        looks += 1
        if looks in (2, 3):
            raise SubmodelError("federation: no such folder")
        return {"one": b"1"} if looks < 4 else {"one": b"1", "two": b"2"}

    def asked(times: int) -> str:
        return "running" if times < 4 else finished(made)

    made = scene(asked, keys)
    made.follow()
    assert made.registered == [b"1", b"2"]
    assert made.said == [
        "device one may join",
        "no new devices: federation: no such folder",
        "device two may join",
    ]


def test_but_not_for_ever(scene: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(_: int) -> str:
        raise UnreachableError("timed out")

    made = scene(asked)
    monkeypatch.setattr(serving, "_SILENCE", -1.0)
    with pytest.raises(SubmodelError, match=r"here:1 does not answer; .* 'submodel resume .*/run'"):
        made.follow()
    assert not made.link.lives


def test_an_app_that_dies_is_submitted_again_until_it_never_gets_anywhere(
    scene: Callable[..., Scene],
) -> None:
    made = scene(lambda _: "finished:failed")
    with pytest.raises(SubmodelError, match="app died 6 times without finishing a round"):
        made.follow()
    assert made.said == ["the server's app died after round 0: starting it again"] * 5
    assert len(made.submitted) == 6


def test_what_stopped_a_run_the_last_time_does_not_stop_it_again(
    scene: Callable[..., Scene],
) -> None:
    def asked(times: int) -> str:
        if times == 1:
            made.folder.stopped_file.write_text("nobody answered\n")
        return "finished:failed" if times < 2 else finished(made)

    made = scene(asked)
    made.folder.stopped_file.write_text("of an earlier time\n")
    with pytest.raises(Interruption, match="nobody answered"):
        made.follow()
    assert len(made.submitted) == 2
    made.follow()
    assert len(made.submitted) == 3


def test_ctrl_c_while_it_starts_says_where_the_run_stands(scene: Callable[..., Scene]) -> None:
    made = scene(lambda _: "running")

    def interrupted() -> None:
        made.link.lives = True
        raise KeyboardInterrupt

    made.link.start = interrupted  # type: ignore[method-assign]
    with pytest.raises(Interruption, match="stopped after round 0"):
        made.follow()
    assert not made.link.lives


def test_what_devices_cannot_do_is_said_before_anything_starts(tmp_path: Path) -> None:
    settings = ["scheme.name=masked-sgd", "clients.count=1", "clients.per_round=1"]
    with pytest.raises(ConfigError, match="'masked-sgd' is training on a single machine"):
        serve_command(None, settings, tmp_path / "run", insecure=True)
    assert not (tmp_path / "run").exists()


def test_status_tells_what_the_folder_knows(tmp_path: Path, submodel: Command) -> None:
    assert "not a run" in submodel("federation", "status", tmp_path).stderr
    folder = RunFolder(tmp_path / "run")
    folder.create(parse({}))
    report = Report("kitchen [red]", 300, (), 0.25, None, "abc")
    entry = Entry(17, 0, report, answered=4, missed=1, last_problem="no answer in 3 s")
    folder.devices_file.write_text(json.dumps([asdict(entry)]))
    shown = submodel("federation", "status", folder.path)
    assert shown.returncode == 0, shown.stderr
    assert "begun by 'flwr run'" in shown.stdout
    [row] = [line for line in shown.stdout.splitlines() if "kitchen" in line]
    cells = [cell.strip() for cell in row.split("│")[1:-1]]
    assert cells == [
        *("0", "kitchen [red]", "unknown", "0.25", "300", "4", "1", "never", "no answer in 3 s")
    ]
    ServingPlace("127.0.0.1", free_port(), None).save(folder)
    shown = submodel("federation", "status", folder.path)
    assert "run: not served now (the SuperLink on 127.0.0.1:" in shown.stdout
    assert "kitchen" in shown.stdout
