"""Record the pins anew: `python -m tests.pins [nets] [costs] [exports] [errors]`; minutes.

Only in the commit that intends to change a pin, so that its diff shows the changed entries. Never
because a test fails: users see these entries, so a change is either a fault or a decision. New
nets, cases and rows are recorded in the commit that adds them.
"""

from __future__ import annotations

import sys

import pytest

from tests.pins.store import COSTS, ERRORS, EXPORTS, NETS, Pins

BATTERY = "tests/model/zoo/test_battery.py::test_every"
RECORDED = {
    "nets": (
        NETS,
        [f"{BATTERY}_net_goes_through_the_battery", f"{BATTERY}_further_net_is_traced_as_before"],
    ),
    "costs": (COSTS, ["tests/pins/test_costs.py"]),
    "exports": (EXPORTS, ["tests/pins/test_exports.py"]),
    "errors": (
        ERRORS,
        [
            *("tests/prepare/test_mistakes.py", "tests/prepare/test_bad_data.py"),
            *("tests/config/test_reading.py", "tests/config/test_nothing_is_ignored.py"),
            *("tests/data/test_sources.py", "tests/data/test_given_data.py"),
            *("tests/data/test_hub_rows.py", "tests/data/test_tables.py"),
            *("tests/data/text/test_source.py", "tests/data/text/test_tokens.py"),
            *("tests/algorithm/test_server.py", "tests/deep/test_hundred.py"),
            f"{BATTERY}_further_net_goes_through_the_battery",
        ],
    ),
}
"""The tests that use the values of a file."""


def main(*names: str) -> None:
    Pins.recording = True
    for name in names or RECORDED:
        pins, tests = RECORDED[name]
        if pytest.main(["-p", "no:xdist", "-m", "deep or not deep", *tests]):
            sys.exit(f"{name}: not recorded, as tests fail")
        changed = pins.write()
        print(f"{name}: {len(pins.found)} recorded, {len(changed)} changed", *changed, sep="\n  ")
        for each, _ in RECORDED.values():
            each.found.clear()  # some tests use values of two files


if __name__ == "__main__":
    main(*sys.argv[1:])
