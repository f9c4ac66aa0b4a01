"""Files of pins: recorded values by name, one line each."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


class Pins:
    """The values of a file.

    Args:
        name: of the file, without its ending.
    """

    recording = False
    """Whether values are recorded instead of compared (`python -m tests.pins`)."""

    def __init__(self, name: str) -> None:
        self.file = FOLDER / f"{name}.json"
        self.kept: dict[str, Any] = json.loads(self.file.read_text("utf-8"))
        self.found: dict[str, Any] = {}

    def check(self, name: str, value: Any) -> None:
        """Compare a value with the recorded one."""
        value = json.loads(json.dumps(value))  # tuples are lists there
        if Pins.recording:
            assert name not in self.found, f"{name} is recorded twice"
            self.found[name] = value
            return
        assert name in self.kept, f"{name} is not in {self.file}: record it (python -m tests.pins)"
        assert value == self.kept[name], name

    def check_names(self, names: Collection[str], start: str = "") -> None:
        """Check that every recorded name under ``start`` still has a test."""
        if not Pins.recording:
            assert {name for name in self.kept if name.startswith(start)} == set(names)

    def write(self) -> list[str]:
        """Replace the file by the found values; return the names of changed values."""
        lines = ",\n".join(f"{json.dumps(n)}: {json.dumps(v)}" for n, v in self.found.items())
        self.file.write_text(f"{{\n{lines}\n}}\n", "utf-8")
        names = dict.fromkeys([*self.kept, *self.found])
        return [name for name in names if self.kept.get(name) != self.found.get(name)]


NETS, COSTS, EXPORTS, ERRORS = map(Pins, ("nets", "costs", "exports", "errors"))
