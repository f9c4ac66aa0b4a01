"""Comments of a user stay in `submodel config` and in resumed runs with changes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from submodel.config import Config, describe, keep_comments, parse, to_toml
from submodel.runs.folder import RunFolder
from tests.support.commands import Command

WRITTEN = """# my experiment

name = "a"  # short
# all of it
[train]  # how long
# until it converges
rounds = 9 # not more

[clients]
# the phones
capacities = [ # of 2026
  1, # the new ones
  "1/2",
]
count = 20   # "x" # y
# last words
"""
NOTES = {
    'name = "b"': ("# my experiment", "# short"),
    "[train]": ("# all of it", "# how long"),
    "rounds = 12": ("# until it converges", "# not more"),
    "count = 20": ("", '# "x" # y'),
}
CONFIG = parse({**tomllib.loads(WRITTEN), "name": "b", "train": {"rounds": 12}})


@pytest.mark.parametrize("write", [to_toml, describe])
def test_comments_stay_above_and_beside_their_keys(write: type[str]) -> None:
    text = write(CONFIG)
    kept = keep_comments(text, WRITTEN)
    lines = kept.splitlines()
    for start, (above, beside) in NOTES.items():
        (place,) = [n for n, line in enumerate(lines) if line.startswith(start)]
        assert beside in lines[place]
        assert not above or lines[place - 1] == above
    for note in ("# the phones", "# of 2026", "# the new ones", "# last words"):
        assert note in lines
    assert parse(tomllib.loads(kept)) == CONFIG
    assert keep_comments(text, kept) == kept  # written again and again


def test_what_we_print_ourselves_is_not_taken_for_a_comment() -> None:
    text = describe(CONFIG)
    assert keep_comments(text, text) == text
    assert keep_comments(text, describe(Config())) == text


def test_comments_of_keys_that_are_no_more_go_to_the_end() -> None:
    assert keep_comments("seed = 1\n", "# why\n[local]\nsteps = 3  # few\n") == (
        "seed = 1\n# local: why\n# local.steps: few\n"
    )
    assert keep_comments("seed = 1\n", "seed = = 2  # no TOML\n") == "seed = 1\n"


WORDS = st.text(st.sampled_from("ab#=[]\"' \\.,"), max_size=12)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(WORDS, st.lists(WORDS, max_size=3), WORDS)
def test_no_comment_changes_a_value(note: str, values: list[str], key: str) -> None:
    options = {"x": values, f"k{key}": key}
    config = parse({"name": "b", "model": {"name": "m:f", "options": options}})
    written = f"#{note}\nname = 'a' #{note}\n[model] #{note}\nname = 'm:f' #{note}\n#{note}"
    for text in (to_toml(config), describe(config)):
        kept = keep_comments(text, written)
        assert parse(tomllib.loads(kept)) == config
        assert keep_comments(text, kept) == kept


def test_a_run_that_goes_on_with_changes_keeps_its_comments(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    config = parse({"train": {"rounds": 3}})
    folder.create(config)
    text = folder.config_file.read_text().replace("rounds = 3", "rounds = 3  # a first try")
    folder.config_file.write_text(f"# for the paper\n{text}")
    longer = parse({"train": {"rounds": 5}})
    folder.update_config(longer)
    assert "rounds = 5  # a first try" in folder.config_file.read_text()
    assert folder.config_file.read_text().startswith("# for the paper\n")
    assert folder.config() == longer


def test_the_command_shows_the_users_comments(tmp_path: Path, submodel: Command) -> None:
    (tmp_path / "my.toml").write_text(WRITTEN)
    shown = submodel("config", tmp_path / "my.toml").stdout
    assert "rounds = 9  # not more # " in shown
    assert "# the phones" in shown.splitlines()
