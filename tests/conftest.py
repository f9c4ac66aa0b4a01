"""Fixtures and hooks of pytest."""

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
from tests.support.order import slow_first, thin_out

if TYPE_CHECKING:
    from tests.support.commands import Command
    from tests.support.processes import Processes

gc.set_threshold(10_000)  # tests make many small objects, and few cycles of large ones
# disabled until everything is loaded, as none of it is garbage and every collection would scan it
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    """Install the filter of doctests."""
    config.pluginmanager.register(DoctestFilter())


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out the `deep` ones
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Thin out large products of cases; start every worker with slow tests."""
    thin_out(items)
    items[:] = slow_first(items, getattr(config, "workerinput", {}).get("workercount", 1))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report the tests that were skipped without a browser."""
    reports = terminalreporter.stats.get("skipped", [])
    count = sum(NO_BROWSER in str(report.longrepr) for report in reports)
    if count:
        text = f"{count} tests of pages were skipped: {NO_BROWSER}"
        terminalreporter.write_line(text, red=True, bold=True)


def pytest_collection_finish() -> None:
    """Freeze loaded objects, so that the garbage collector does not scan them."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def submodel(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command in this process; return exit status, output and errors."""

    def run(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        words = [str(argument) for argument in arguments]
        with monkeypatch.context() as here:
            here.setattr("signal.signal", lambda *_: None)  # restore ours afterwards
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
    """Remove a test's own modules, as another test's have the same names."""
    if Path(__file__).is_relative_to(folder):
        return
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and Path(file).is_relative_to(folder):
            del sys.modules[name]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """A place for real processes, which end with the test."""
    from tests.support.processes import Processes  # needs an extra that other tests do not need

    processes = Processes(tmp_path)
    try:
        yield processes
    finally:
        processes.close()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests of a process; tests are skipped without one."""
    driver = start_browser(tmp_path_factory.mktemp("browser"))
    if driver is None:
        pytest.skip(NO_BROWSER)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
