"""An open page while a run starts, is killed, resumes and ends."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from submodel.report.live.web import LiveData, LiveServer
from submodel.runs.folder import RunFolder
from tests.support.browser import IS_DRAWN, Browser
from tests.support.forked import start_command

SETTINGS = ("model.name=mlp", "model.width=8", "train.rounds=100000")
PATIENCE = 60.0  # seconds, on a busy machine
STATE = "return document.getElementById('live')?.textContent === {!r}"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(LiveData(tmp_path / "run", details_age=0.5)) as live:
        thread = threading.Thread(target=live.serve_forever, args=(0.05,))
        thread.start()
        yield live
        live.shutdown()
        thread.join()


@pytest.fixture
def start() -> Iterator[Callable[..., ForkServerProcess]]:
    """Start `submodel` in processes that end with the test."""
    processes: list[ForkServerProcess] = []

    def start(*words: str | Path) -> ForkServerProcess:
        processes.append(start_command(*words))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.join()


@pytest.mark.slow
def test_a_page_follows_a_run_through_kill_resume_and_end(
    tmp_path: Path,
    server: LiveServer,
    browser: Browser,
    start: Callable[..., ForkServerProcess],
) -> None:
    path = tmp_path / "run"

    def wait_for(state: str) -> None:
        browser.wait(STATE.format(state), PATIENCE)

    def rounds_shown() -> int:
        found = re.search(r"([\d,]+) rounds?\b", browser.text("#sentence"))
        return int(found[1].replace(",", "")) if found else 0

    def slider() -> tuple[str, bool]:
        node = browser.find("#round-slider")
        at_end = node.get_attribute("value") == node.get_attribute("max")
        return browser.text(".scrub output").split(" of ")[0], at_end

    browser.open(server.url)
    assert "Waiting for a run" in browser.text("body")
    words = [word for text in SETTINGS for word in ("--set", text)]
    training = start("train", *words, "--out", path)
    browser.wait(IS_DRAWN, PATIENCE)  # without interaction
    wait_for("running")
    browser.run("window.isSame = true")
    first = rounds_shown()
    # a single round is first and last: the slider needs two to be before the end
    browser.wait("return Number(document.querySelector('#round-slider')?.max) > 0", PATIENCE)
    browser.find("#curves input[value='bytes']").click()
    browser.run("document.querySelector('#repeat details').open = true")
    browser.run("document.querySelector('#theme').scrollIntoView()")
    browser.find("#repeat summary").send_keys("")  # keyboard focus from now on

    assert training.pid is not None
    os.kill(training.pid, signal.SIGKILL)
    training.join()
    wait_for("stopped")
    assert "stopped: round" in browser.text(".warnings")
    before_kill = rounds_shown()
    assert before_kill >= first
    assert slider()[1]  # the map follows the last round
    browser.run(
        """const slider = document.querySelector("#round-slider");
        slider.value = 0;
        slider.dispatchEvent(new Event("input"));"""
    )

    rounds = RunFolder(path).rounds() + 30
    resumed = start("resume", path, "--set", f"train.rounds={rounds}")
    wait_for("finished")
    resumed.join()
    assert resumed.exitcode == 0
    browser.wait(f"return document.getElementById('sentence').textContent.includes('{rounds:,} ')")
    assert rounds_shown() == rounds > before_kill
    assert "It reached test accuracy" in browser.text("#sentence")
    assert not browser.all(".warnings")
    # the page was not reloaded, and the position in it is kept
    assert browser.run("return window.isSame")
    assert browser.run("return document.querySelector('#curves input:checked').value") == "bytes"
    assert browser.run("return document.querySelector('#repeat details').open")
    assert browser.run("return document.activeElement.tagName") == "SUMMARY"
    browser.wait(
        f"return document.querySelector('.scrub output').textContent.includes('of {rounds},')",
        PATIENCE,
    )  # coverage is read less often than the curves
    assert slider() == ("round 1", False)
    assert browser.problems() == []

    server.shutdown()
    server.server_close()  # without answers the content stays, and the page says so
    browser.wait("return document.getElementById('live').className.includes('away')")
    assert rounds_shown() == rounds
