"""A browser for the tests of pages, where the machine has one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.browser import NO_BROWSER, Browser

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-quic", "--hide-scrollbars"),
)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One for all tests of a process; they are skipped where there is none."""
    program = next((path for name in _PROGRAMS if (path := shutil.which(name))), None)
    driver_program = shutil.which("chromedriver")
    if program is None or driver_program is None:
        pytest.skip(NO_BROWSER)
    driver = _start(program, driver_program, tmp_path_factory.mktemp("browser"))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


def _start(program: str, driver_program: str, profile: Path) -> Chrome:
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = program
    for text in (*_OPTIONS, f"--user-data-dir={profile}", "--window-size=1280,900"):
        options.add_argument(text)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return Chrome(options=options, service=Service(driver_program))
