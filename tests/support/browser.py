"""Pages in a browser: their content, their requests and their errors."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement


_PATIENCE = 10.0  # seconds
IS_DRAWN = """const curves = document.getElementById("curves-chart");
return document.getElementById("sentence") && (!curves || curves.querySelector("svg"));"""
"""A script that returns whether a page of ours is drawn."""
NO_BROWSER = "no browser here (chromium and chromedriver)"
"""The reason why the tests of pages are skipped."""
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-quic", "--hide-scrollbars"),
)


def start_browser(profile: Path) -> Chrome | None:
    """Start a browser with an empty profile; None if the machine has none."""
    program = next((path for name in _PROGRAMS if (path := shutil.which(name))), None)
    driver_program = shutil.which("chromedriver")
    if program is None or driver_program is None:
        return None
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = program
    for text in (*_OPTIONS, f"--user-data-dir={profile}", "--window-size=1280,900"):
        options.add_argument(text)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return Chrome(options=options, service=Service(driver_program))


class Browser:
    """A browser with helpers for tests of a page."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, page: Path | str, width: int = 1280, scheme: str = "light") -> None:
        """Open a file like a user, in a window of a size in pixels; or an address."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.problems()
        self.requests()
        self.driver.get(page if isinstance(page, str) else page.as_uri())
        if isinstance(page, Path):
            self.wait(IS_DRAWN)

    def run(self, script: str, *arguments: object) -> Any:
        """Return the result of a script."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, script: str, patience: float = _PATIENCE) -> None:
        """Wait until a script returns a true value."""
        deadline = time.monotonic() + patience
        while not self.run(script):
            assert time.monotonic() < deadline, script
            time.sleep(0.02)

    def find(self, selector: str) -> WebElement:
        """Return the first element of a CSS selector."""
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> Sequence[WebElement]:
        """Return all elements of a CSS selector."""
        return self.driver.find_elements("css selector", selector)

    def text(self, selector: str) -> str:
        """Return the text of an element."""
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def problems(self) -> list[str]:
        """Return the console messages since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def requests(self) -> list[str]:
        """Return the requested addresses since the last call."""
        messages = [
            json.loads(entry["message"])["message"]
            for entry in self.driver.get_log("performance")  # type: ignore[no-untyped-call]
        ]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]
