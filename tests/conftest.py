"""What pytest gives to tests that ask for it."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from submodel.cli import main
from tests.support.browser import NO_BROWSER, Browser, start_browser
from tests.support.doctests import DoctestFilter
from tests.support.durations import SHARED, Recorder, arrange, measured, shared_key

if TYPE_CHECKING:
    from tests.support.commands import Command
    from tests.support.processes import House

gc.set_threshold(10_000)  # tests make many small objects, and few circles of large ones
gc.disable()  # until all is loaded: nothing of it is garbage, and it was gone through at every step


def pytest_addoption(parser: pytest.Parser) -> None:
    """One option of ours."""
    text = "write what is slow to tests/durations.json"
    parser.addoption("--record-durations", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """With it, measure; only the process that hears of all tests."""
    config.pluginmanager.register(DoctestFilter())
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests are marked, and come first."""
    arrange(items, measured(), getattr(config, "workerinput", {}).get("workercount", 1))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Iterator[None]:
    """What several tests use is measured apart from the test that is the first to do so."""
    start = time.perf_counter()
    result = yield
    if fixturedef.scope != "function" and isinstance(request._pyfuncitem, pytest.Item):
        seconds = time.perf_counter() - start
        request._pyfuncitem.user_properties.append((SHARED, (shared_key(fixturedef), seconds)))
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was skipped for want of a browser is said aloud."""
    reports = terminalreporter.stats.get("skipped", [])
    count = sum(NO_BROWSER in str(report.longrepr) for report in reports)
    if count:
        text = f"{count} tests of pages were skipped: {NO_BROWSER}"
        terminalreporter.write_line(text, red=True, bold=True)


def pytest_collection_finish() -> None:
    """What is loaded by now stays: the garbage collector need not go through it again and again."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def submodel(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command, run in this process: its exit status, output and errors."""

    def run(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        words = [str(argument) for argument in arguments]
        with monkeypatch.context() as here:
            here.setattr("signal.signal", lambda *_: None)  # ours stay as they are
            here.setattr("sys.argv", ["submodel", *words])
            if cwd is not None:
                here.chdir(cwd)
            with pytest.raises(SystemExit) as stop:
                main()
            _forget_modules(Path.cwd())
        assert isinstance(stop.value.code, int)
        return subprocess.CompletedProcess(words, stop.value.code, *capsys.readouterr())

    return run


def _forget_modules(folder: Path) -> None:
    """Forget a test's own modules, as the end of a process would; another's have the same names."""
    if Path(__file__).is_relative_to(folder):
        return
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and Path(file).is_relative_to(folder):
            del sys.modules[name]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A place for real processes, which are gone afterwards."""
    from tests.support.processes import House  # it needs an extra that other tests do without

    house = House(tmp_path)
    try:
        yield house
    finally:
        house.close()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One for all tests of a process; they are skipped where there is none."""
    driver = start_browser(tmp_path_factory.mktemp("browser"))
    if driver is None:
        pytest.skip(NO_BROWSER)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
