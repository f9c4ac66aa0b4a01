"""The meaning of a configuration is independent of spelling, writing and reading."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from submodel.config import Config, parse, read, to_toml
from submodel.config.meaning import CHANGEABLE, differences, fingerprint, meaning, refusals
from submodel.core.options import FreeOptions
from tests.support.configurations import KEYS, configurations

quick = settings(max_examples=6, deadline=None, derandomize=True)


def read_back(config: Config) -> Config:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_text(to_toml(config), encoding="utf-8")
        return read(path)


def test_the_default_configuration_means_the_same_when_it_is_read_back() -> None:
    assert fingerprint(read_back(Config())) == fingerprint(Config()) == fingerprint(parse({}))
    assert not differences(Config(), read_back(Config()))
    assert read_back(Config()) == Config()


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
@quick
@given(data=st.data())
def test_every_key_means_the_same_when_it_is_read_back(key: str, data: st.DataObject) -> None:
    config = data.draw(configurations(key))
    again = read_back(config)
    assert meaning(again) == meaning(config)
    assert fingerprint(again) == fingerprint(config)
    assert to_toml(again) == to_toml(config)
    assert refusals(config, again, config.train.rounds) == []


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(first=configurations(), second=configurations())
def test_what_differs_is_named(first: Config, second: Config) -> None:
    changed = differences(first, second)
    assert (not changed) == (to_toml(first) == to_toml(second))
    assert (fingerprint(first) == fingerprint(second)) == (changed.keys() <= set(CHANGEABLE))
    for key in changed:
        assert meaning(first).get(key) != meaning(second).get(key)


class Linear:
    """A user's schedule that falls to zero at the end of the run, or at a given round."""

    def __init__(self, end: int) -> None:
        self._end = end

    @classmethod
    def configured(cls, options: FreeOptions, rounds: int) -> Linear:
        return cls(options.options.get("end", rounds))

    def factor(self, round_: int) -> float:
        return max(0.0, 1 - round_ / self._end)


@pytest.mark.parametrize(("options", "refused"), [({}, True), ({"end": 50}, False)])
def test_a_run_is_not_extended_where_that_changes_the_rates_so_far(
    options: dict[str, int], refused: bool
) -> None:
    local = {"schedule": f"{__name__}:Linear", "options": options}
    then, now = (parse({"local": local, "train": {"rounds": rounds}}) for rounds in (10, 20))
    assert refusals(then, now, 0) == []
    problems = refusals(then, now, 5)
    assert len(problems) == refused
    assert all(f"the learning rates of '{__name__}:Linear'" in p for p in problems)
