"""Files damaged by a disk, a kill or an edit: one kind of error, never ignored."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from submodel.algorithm.rounds import initial_state
from submodel.config import override, parse, read, to_toml
from submodel.config.setup import prepare
from submodel.core.amounts import parse_amount
from submodel.core.errors import CheckpointError, ConfigError, SubmodelError
from submodel.runs import checkpoint
from submodel.runs.export import trained_state
from submodel.runs.loop import RunFolder, run_rounds
from submodel.runs.training import Training
from tests.support.commands import Command
from tests.support.configurations import KEYS, nested

SMALL: dict[str, Any] = {
    "model": {"name": "mlp", "width": 16},
    "clients": {"count": 20, "per_round": 4},
    "train": {"rounds": 6, "evaluate_every": 2, "checkpoint_every": 2},
}
DEEP = 10**5


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finished") / "run"
    folder = RunFolder(path)
    folder.create(parse(SMALL))
    run_rounds(Training(parse(SMALL), prepare(parse(SMALL))), folder)
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> RunFolder:
    shutil.copytree(finished, tmp_path / "run")
    return RunFolder(tmp_path / "run")


FLOATS = [key for key in KEYS if "float" in str(KEYS[key].annotation)]


@pytest.mark.parametrize("key", FLOATS)
def test_no_number_is_infinite_or_none(key: str) -> None:
    for value in (float("inf"), float("-inf"), float("nan"), 10**400, "inf", "nan", "1e999"):
        given: object = [value] if "list" in str(KEYS[key].annotation) else value
        given = {"axis": value} if key == "axes.least" else given
        with pytest.raises(ConfigError, match=key):
            parse(nested({key: given}))


LARGE = [key for key in KEYS if "int" in str(KEYS[key].annotation)]


@pytest.mark.parametrize("key", LARGE)
def test_no_whole_number_is_absurd(key: str) -> None:
    for value in (10**30, 10**400, 10**5000):
        given = [value] if key == "local.milestones" else value
        with pytest.raises(ConfigError, match=key):
            parse(nested({key: given}))
    with pytest.raises(ConfigError, match=key):
        parse(override({}, [f"{key}={'9' * 5000}"]))


TEXTS: dict[str, str] = {
    "lists in lists": "model.options.x = " + "[" * DEEP,
    "tables in tables": "model.options.x = " + "{a = " * DEEP,
    "names": "model.options." + "a." * DEEP + "b = 1",
    "spaced names": "model.options." + "a . " * DEEP + "b = 1",
    "quoted names": "model.options." + '"a.b,". ' * DEEP + "b = 1",
    "a table": "[model.options." + "a." * DEEP + "b]\nx = 1",
    "below the limit": "model.options." + "a." * 90 + "b = 1",
    "a long number": "seed = " + "9" * 5000,
    "a huge file": "name = '" + "a" * 2**20 + "'",
    "many mistakes": "clients.capacities = [" + "0," * DEEP + "]",
    "many keys": "\n".join(f"k{n} = 0" for n in range(20_000)),
    "unclosed": 'name = """' + '\\"""' * 50_000,
    "a long value": "scheme.name = '" + "a" * 200_000 + "'",
    "zeros": "name = '\0'",
    "dots": "name = '..'",
    "braces": "data.name = '{0}{x}'",
}


@pytest.mark.slow
@pytest.mark.parametrize("case", TEXTS)
def test_no_configuration_hangs_or_shows_a_traceback(case: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(TEXTS[case])
    begun = time.process_time()
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert time.process_time() - begun < 2
    assert len(str(caught.value)) < 30_000


def test_values_that_toml_cannot_hold_are_named() -> None:
    for bad in (None, object(), {1: 2}, [None]):
        with pytest.raises(ConfigError, match=r"model\.options\.x"):
            to_toml(parse({"model": {"name": "nets:make", "options": {"x": bad}}}))
    loop: dict[str, Any] = {}
    loop["x"] = loop
    with pytest.raises(ConfigError, match=r"^model\.options\.x\.x.*nested"):
        parse({"model": {"options": loop}})
    with pytest.raises(ConfigError, match=r"^model\.options\.x: "):
        parse({"model": {"options": {"x": "\udcff"}}})
    assert override({}, ["model.options.x=1\ny=2"])["model"]["options"]["x"] == "1\ny=2"
    for amount in ("1e999GB", "1e999", "...", "9" * 400):
        with pytest.raises(ConfigError):
            parse_amount(amount)


STATES: dict[str, Callable[[dict[str, Any]], object]] = {
    "not a table": lambda _: [1],
    "no round": lambda s: {k: v for k, v in s.items() if k != "round"},
    "another round": lambda s: {**s, "round": 5},
    "a fraction": lambda s: {**s, "round": 6.0},
    "true": lambda s: {**s, "round": True},
    "another seed": lambda s: {**s, "config": s["config"].replace("seed = 0", "seed = 1")},
    "other data": lambda s: {**s, "subject": {**s["subject"], "classes": "11"}},
    "lists": lambda s: {**s, "model_sha256": [], "subject": []},
    "nothing": lambda _: {},
}
STATE_TEXTS = {
    "deep": "[" * DEEP,
    "deep tables": '{"a":' * DEEP,
    "a number": "9" * 5000,
    "half": '{"round": 6, "config',
    "not text": "\udcff",
    "huge": " " * 2**24,
}


@pytest.mark.slow
@pytest.mark.parametrize("case", [*STATES, *STATE_TEXTS])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(case: str, run: RunFolder) -> None:
    file = run.checkpoints / "round-000006/state.json"
    if case in STATES:
        text = json.dumps(STATES[case](json.loads(file.read_text())))
    else:
        text = STATE_TEXTS[case]
    file.write_bytes(text.encode(errors="surrogateescape"))
    config = parse(SMALL)
    like = initial_state(prepare(config))
    state, problems = checkpoint.latest(run.checkpoints, config, like)
    assert state.round == 4
    assert len(problems) == 1
    assert "round-000006: " in problems[0]
    assert len(problems[0]) < 1000
    assert not file.parent.exists()  # so that its round is saved again


@pytest.mark.slow
def test_no_bytes_of_a_checkpoint_bring_another_error(run: RunFolder) -> None:
    config = parse(SMALL)
    like = initial_state(prepare(config))
    chance = random.Random(0)
    path = run.checkpoints / "round-000006"
    for name in ("state.json", "model.safetensors"):
        file = path / name
        whole = file.read_bytes()
        for _ in range(150):
            content = bytearray(whole)
            for _ in range(chance.randrange(1, 4)):
                start = chance.randrange(min(len(content), 2000))
                content[start : start + chance.randrange(3)] = chance.randbytes(chance.randrange(4))
            file.write_bytes(content[: chance.choice([len(content), chance.randrange(3000)])])
            try:
                assert checkpoint.read_checkpoint(path, config, like).round == 6
                assert name == "state.json" or bytes(content) == whole
            except CheckpointError:
                pass
        file.write_bytes(whole)


def test_the_millionth_round_is_newer_than_the_one_before(tmp_path: Path) -> None:
    for name in ("round-999999", "round-1000000", "round-000001", "round-x", "round-000002.old"):
        (tmp_path / name).mkdir()
    found = [path.name for path in checkpoint.checkpoint_folders(tmp_path)]
    assert found == ["round-1000000", "round-999999", "round-000001"]
    assert checkpoint.saved_round(tmp_path) == 10**6


SUMMARIES = ["", "{", "[]", "null", '{"rounds": 6}', "[" * DEEP, '{"rounds": "6"}', "\udcff"]


@pytest.mark.slow
@pytest.mark.parametrize("text", SUMMARIES, ids=range(len(SUMMARIES)))
def test_a_damaged_summary_is_written_again(text: str, run: RunFolder, submodel: Command) -> None:
    before = run.summary()
    run.summary_file.write_bytes(text.encode(errors="surrogateescape"))
    for command in ("show", "export"):
        shown = submodel(command, run.path)
        assert shown.returncode == 2
        assert f"'submodel resume {run.path}'" in shown.stderr
    with pytest.raises(SubmodelError, match="damaged"):
        trained_state(run, Training(parse(SMALL), prepare(parse(SMALL))))
    if text == SUMMARIES[0]:  # once is enough
        assert submodel("resume", run.path).returncode == 0
        assert run.summary() == before


def edit(run: RunFolder, change: Callable[[list[str]], list[str]]) -> None:
    lines = run.metrics_file.read_text().splitlines()
    run.metrics_file.write_text("".join(f"{line}\n" for line in change(lines)))


def with_round(line: str, number: object) -> str:
    return json.dumps({**json.loads(line), "round": number})


LINES: dict[str, tuple[Callable[[list[str]], list[str]], list[int], str]] = {
    "missing": (lambda s: s[:1] + s[3:], [1, 4, 5, 6], "no line is left of rounds 2 to 3"),
    "doubled": (
        lambda s: [*s[:3], s[2], *s[3:]],
        [1, 2, 3, 4, 5, 6],
        "line 4 is another one of round 3",
    ),
    "garbled": (
        lambda s: [*s[:2], s[2][:40], *s[3:]],
        [1, 2, 4, 5, 6],
        "line 3 is not that of a round; no line is left of rounds 3",
    ),
    "not an object": (lambda s: [*s[:2], "3", *s[3:]], [1, 2, 4, 5, 6], "line 3 is not"),
    "wrong number": (
        lambda s: [*s[:2], with_round(s[2], 99), *s[3:]],
        [1, 2, 4, 5, 6],
        "no line is left of rounds 3",
    ),
    "no number": (
        lambda s: [*s[:2], with_round(s[2], "3"), *s[3:]],
        [1, 2, 4, 5, 6],
        "line 3 is not that of a round",
    ),
    "without losses": (lambda s: ['{"round": 1}', *s[1:]], [2, 3, 4, 5, 6], "line 1 is not"),
    "deep": (lambda s: [*s[:5], "[" * DEEP], [1, 2, 3, 4, 5], "line 6 is not"),
    "nothing": (lambda _: [], [], "no line is left of rounds 1 to 6"),
    "backwards": (lambda s: s[::-1], [1, 2, 3, 4, 5, 6], ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", LINES)
def test_what_is_lost_of_the_metrics_is_said(
    case: str, run: RunFolder, caplog: pytest.LogCaptureFixture, submodel: Command
) -> None:
    before = run.summary() or {}
    change, left, message = LINES[case]
    edit(run, change)
    damaged = run.metrics_file.read_bytes()
    shown = submodel("show", run.path)
    assert shown.returncode == 0, shown.stderr
    run.summary_file.unlink()
    config = parse(SMALL)
    _, history = run_rounds(Training(config, prepare(config)), run, resume=True)
    assert message in caplog.text
    assert bool(message) == bool(caplog.text)
    assert [line["round"] for line in history] == left
    assert run.metrics() == history
    after = run.summary() or {}
    assert (after["model_sha256"], after["test_loss"]) == (
        before["model_sha256"],
        before["test_loss"],
    )
    assert after.get("rounds_lost", 0) == 6 - len(left)
    if "line" in message.partition(";")[0].split()[:1]:
        assert run.damaged_metrics_file.read_bytes() == damaged


def test_a_last_line_cut_short_is_no_damage(run: RunFolder) -> None:
    with run.metrics_file.open("a") as file:
        file.write('{"round": 7, "train_l')
    assert run.describe_damage() == ""
    assert run.rounds() == 6


@pytest.mark.slow
def test_a_damaged_config_is_a_sentence(run: RunFolder, submodel: Command) -> None:
    for text in ("[model", "seed = [", "[" * DEEP, "\udcff", "seed = 'x'"):
        run.config_file.write_bytes(text.encode(errors="surrogateescape"))
        for command in ("resume", "show", "export"):
            result = submodel(command, run.path)
            assert result.returncode == 2
            assert str(run.config_file) in result.stderr
            assert "Traceback" not in result.stderr
    config = parse(SMALL)  # in Python it is passed
    run.summary_file.unlink()
    run_rounds(Training(config, prepare(config)), run, resume=True)
    assert run.config() == config
