"""Every command with a result has --json, which prints one object with the keys of its help."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from submodel.cli.common import parse_help, print_json
from submodel.config import parse
from tests.cli.support import all_commands
from tests.support.commands import Command
from tests.support.runs import run

COMMANDS = all_commands()
WITHOUT = {
    "join": "it goes on until it is stopped, and has no result",
}
RESULTS = Path(__file__).parents[2] / "results"
FAST = ["--set", "train.rounds=2", "--set", "model.name=mlp", "--set", "model.width=16"]
STUDY = [
    "--set=problems=2",
    "--set=dimensions=5",
    "--set=heterogeneities=1",
    "--set=capacities=0.5",
]
TEXT = "the quick brown fox jumps over the lazy dog\n" * 20
CASES: dict[str, tuple[str, ...]] = {
    "train": ("--out", "{here}/new", *FAST),
    "resume": ("{run}",),
    "runs": ("{run}",),
    "watch": ("{run}",),
    "show": ("{run}",),
    "show --full": ("{run}",),
    "report": ("{run}", "--out", "{here}/report.html"),
    "report --figure": ("loss", "{run}", "--format", "pdf"),
    "plot": ("loss", "{run}", "--out", "{here}/loss.png"),
    "score": ("{run}",),
    "fit": ("{run}", "--capacity", "1/4", "--rounds", "1"),
    "export": ("{run}", "--capacity", "1/4", "--out", "{here}/export"),
    "generate": ("{text}", "--tokens", "3"),
    "config": (),
    "data": ("--out", "{here}/picture.png"),
    "inspect": ("mlp",),
    "cost": ("--set", "model.name=mlp"),
    "cost --memory": ("100kB", "--set", "model.name=mlp"),
    "plan": ("--set", "model.name=mlp", "--memory", "100kB"),
    "advise": ("--fleet", "1:0.2,1/4:0.8"),
    "compare": ("static,rolling", "--records", str(RESULTS / "compare-rounds"), "--out", "{here}"),
    "reproduce": ("heterofl", "--records", str(RESULTS / "small"), "--out", "{here}"),
    "reproduce --plan": ("static", "--scale", "converged"),
    "study": ("residual", *STUDY, "--out", "{here}"),
    "federation init": ("{here}/federation", "--host", "fl.example.org", "--devices", "1"),
    "federation add": ("watch", "--federation", "{federation}"),
    "federation renew": ("--federation", "{federation}"),
    "federation status": ("{run}",),
    "federation app": ("{here}/app",),
}
ELSEWHERE = {"serve": "tests/federation/flower/test_serving.py has devices for it"}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make a finished run, a run on text, and a federation."""
    from submodel.federation.flower import credentials

    base = tmp_path_factory.mktemp("places")
    (base / "text.txt").write_text(TEXT)
    common = {"clients": {"count": 4, "per_round": 2}, "train": {"rounds": 1}}
    run(base / "run", parse({**common, "model": {"name": "mlp", "width": 16}}))
    model = {"name": "gpt", "width": 8, "layers": 1, "heads": 1}
    data = {"name": f"text:{base / 'text.txt'}", "length": 8, "partition": "iid"}
    run(base / "text", parse({**common, "model": model, "data": data}))
    credentials.create(base / "federation", ["fl.example.org"], ["phone"])
    return {"run": base / "run", "text": base / "text", "federation": base / "federation"}


def test_every_command_has_json_or_a_reason() -> None:
    tried = {case.partition(" --")[0] for case in CASES}
    assert tried | WITHOUT.keys() | ELSEWHERE.keys() == COMMANDS.keys()
    for name, command in COMMANDS.items():
        has_json = any("--json" in parameter.opts for parameter in command.params)
        assert has_json == (name not in WITHOUT), name
        assert command.callback is not None
        assert bool(parse_help(command.callback).keys) == has_json, name


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_json_is_one_object_with_the_keys_of_the_help(
    case: str, places: dict[str, Path], tmp_path: Path, submodel: Command
) -> None:
    words = [word.format(here=tmp_path, **places) for word in CASES[case]]
    result = submodel(*case.split(), *words, "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    content = json.loads(result.stdout, parse_constant=_refuse)
    assert isinstance(content, dict)
    callback = COMMANDS[case.partition(" --")[0]].callback
    assert callback is not None
    keys = [key for words in parse_help(callback).keys for key in words.split(", ")]
    patterns = [re.compile(key.replace("*", r"\w+")) for key in keys]
    assert [key for key in content if not any(p.fullmatch(key) for p in patterns)] == []
    if " --" not in case:
        needed = {key for key in keys if "*" not in key} - WITH_AN_OPTION.get(case, set())
        assert needed <= content.keys()


DRY_RUN = (
    "seconds rounds processes phases quantities trial_seconds capacities "
    "seconds_alone core_share evaluation_keys"
)
WITH_AN_OPTION = {
    "train": set(DRY_RUN.split()),
    "reproduce": {"plan", "overview"},
    "show": {"scores"},
    "report": {"figure"},
    "cost": {"capacity", "limits", "batch_size", "needs", "next_larger"},
    "plot": {"figures"},
}
WITH_AN_OPTION["watch"] = {"runs", "runs_planned", "begun_runs"}  # of an experiment


def _refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is no JSON")


def test_numbers_are_those_of_the_text(places: dict[str, Path], submodel: Command) -> None:
    plain = json.loads(submodel("show", places["run"], "--json").stdout)
    assert plain["finished"]
    assert plain["round"] == plain["rounds"] == len(plain["history"]) == 1
    assert plain["summary"]["model_sha256"] in submodel("show", places["run"]).stdout
    rows = json.loads(submodel("cost", "--set", "model.name=mlp", "--json").stdout)["capacities"]
    table = submodel("cost", "--set", "model.name=mlp").stdout
    assert [row["capacity"] for row in rows] == [1, 0.5, 0.25, 0.125]
    assert all(f"{row['parameters']:,}" in table for row in rows)


def test_a_budget_that_nothing_fits_is_said_and_fails(submodel: Command) -> None:
    result = submodel("plan", "--set", "model.name=mlp", "--memory", "1B", "--json")
    assert result.returncode == 1
    content = json.loads(result.stdout)
    assert content["capacity"] is None
    assert content["next_larger"]["memory"] > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("show", "nowhere"), ("train", "--set", "train.rounds=x"), ("cost", "no.toml")]
)
def test_an_error_with_json_leaves_the_output_empty(
    words: tuple[str, ...], tmp_path: Path, submodel: Command
) -> None:
    result = submodel(*words, "--json", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")


def test_what_is_not_finite_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"losses": (float("nan"), float("inf"), 1.0), "files": {0.5: Path("a/b")}})
    plain = json.loads(capsys.readouterr().out)
    assert plain == {"losses": [None, None, 1.0], "files": {"0.5": "a/b"}}
