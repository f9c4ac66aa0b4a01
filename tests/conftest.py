"""What pytest gives to tests that ask for it."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from submodel.cli import main
from tests.support.browser import NO_BROWSER, Browser, start_browser
from tests.support.doctests import DoctestFilter
from tests.support.order import slow_first

if TYPE_CHECKING:
    from tests.support.commands import Command
    from tests.support.processes import House

gc.set_threshold(10_000)  # tests make many small objects, and few circles of large ones
gc.disable()  # until all is loaded: nothing of it is garbage, and it was gone through at every step


def pytest_configure(config: pytest.Config) -> None:
    """Choose among the examples in docstrings."""
    config.pluginmanager.register(DoctestFilter())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let every worker begin with slow tests."""
    items[:] = slow_first(items, getattr(config, "workerinput", {}).get("workercount", 1))


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
