"""Contract 7: a run killed at any moment and resumed ends with the bytes of one never killed."""

from __future__ import annotations

import json
import random
import shutil
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from submodel.algorithm.rounds import initial_state
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.errors import CheckpointError, DivergedError, SubmodelError
from submodel.runs import checkpoint
from submodel.runs.loop import Interruption, RunFolder, run_rounds
from submodel.runs.training import Training
from tests.support.commands import Command
from tests.support.forked import forking, start_command
from tests.support.runs import SMALL, run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finished") / "run"
    run(path, parse(SMALL))
    return path


def without_times(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in RunFolder(path).metrics()]


def test_a_run_is_a_folder(finished: Path) -> None:
    folder = RunFolder(finished)
    assert folder.config() == parse(SMALL)
    history = folder.metrics()
    assert [line["round"] for line in history] == [1, 2, 3, 4, 5, 6]
    for line in history:
        assert line.keys() >= {
            "train_loss",
            "coverage",
            "bytes_down",
            "bytes_up",
            "flops",
            "seconds",
        }
        assert line["seconds"].keys() >= {"plan", "gather", "train", "merge"}
    assert history[1].keys() >= {"test_loss", "test_accuracy", "capacity_accuracy"}
    assert set(history[1]["capacity_accuracy"]) == {"1", "0.5", "0.25", "0.125"}
    assert history[1]["capacity_accuracy"]["1"] == history[1]["test_accuracy"]
    summary = folder.summary()
    assert summary is not None
    assert summary.keys() >= {"test_accuracy", "test_loss", "rounds", "model_sha256"}
    assert folder.curves_file.read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in folder.checkpoints.iterdir()) == ["round-000004", "round-000006"]


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(
    finished: Path, tmp_path: Path
) -> None:
    first = RunFolder(finished).summary()
    assert first is not None
    again = run(tmp_path / "again", parse(SMALL))
    other = run(tmp_path / "other", parse({**SMALL, "seed": 1}))
    assert again["model_sha256"] == first["model_sha256"] != other["model_sha256"]
    assert without_times(tmp_path / "again") == without_times(finished)


@pytest.mark.parametrize("stop", [1, 2, 5])
def test_interrupted_and_resumed_is_the_same_run(finished: Path, tmp_path: Path, stop: int) -> None:
    def interrupt(line: dict[str, Any]) -> None:
        if line["round"] == stop:
            raise KeyboardInterrupt

    config = parse(SMALL)
    with pytest.raises(Interruption, match=f"round {stop} of 6"):
        run(tmp_path / "run", config, on_round=interrupt)
    resumed = run(tmp_path / "run", config, resume=True)
    assert resumed["model_sha256"] == (RunFolder(finished).summary() or {})["model_sha256"]
    assert without_times(tmp_path / "run") == without_times(finished)
    assert (tmp_path / "run/model.safetensors").read_bytes() == (
        finished / "model.safetensors"
    ).read_bytes()


def test_killed_at_random_moments_and_resumed_is_the_same_run(
    tmp_path: Path, submodel: Command
) -> None:
    settings = {"train.rounds": 24, "train.checkpoint_every": 1, "train.evaluate_every": 8,
                "model.name": "mlp", "model.width": 64, "clients.per_round": 4}  # fmt: skip
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    assert submodel("train", *options, "--out", tmp_path / "whole").returncode == 0
    killed = tmp_path / "killed"
    chance = random.Random(0)
    process = start_command("train", *options, "--out", killed)
    kills = 0
    for _ in range(30):
        # wait for the first write, then kill at any moment
        while process.is_alive() and not list(killed.glob("checkpoints/round-*")):
            time.sleep(0.02)
        begun = len(RunFolder(killed).metrics())
        while process.is_alive() and len(RunFolder(killed).metrics()) <= begun + 3:
            time.sleep(0.01)
        time.sleep(chance.random() * 0.05)
        if not process.is_alive():
            break
        process.kill()
        process.join()
        kills += 1
        process = start_command("resume", killed)
    process.join()
    assert process.exitcode == 0
    assert kills >= 2
    hashes = [json.loads((tmp_path / n / "summary.json").read_text())["model_sha256"]
              for n in ("whole", "killed")]  # fmt: skip
    assert hashes[0] == hashes[1]
    assert without_times(tmp_path / "whole") == without_times(killed)


def damaged_copy(finished: Path, to: Path) -> RunFolder:
    shutil.copytree(finished, to)
    (to / "summary.json").unlink()
    return RunFolder(to)


def test_a_truncated_checkpoint_falls_back_to_the_one_before(
    finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = damaged_copy(finished, tmp_path / "run")
    newest = folder.checkpoints / "round-000006" / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    expected = RunFolder(finished).summary()
    assert expected is not None
    config = parse(SMALL)
    run_rounds(Training(config, prepare(config)), folder, resume=True)
    assert (folder.summary() or {})["model_sha256"] == expected["model_sha256"]
    assert "round-000006: " in caplog.text


def test_flipped_bits_are_found_and_without_any_whole_checkpoint_it_says_so(
    finished: Path, tmp_path: Path
) -> None:
    folder = damaged_copy(finished, tmp_path / "run")
    for path in folder.checkpoints.iterdir():
        tensors = path / "model.safetensors"
        content = bytearray(tensors.read_bytes())
        content[-1] ^= 1
        tensors.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"round-000006.* hash"):
        run(tmp_path / "run", parse(SMALL), resume=True)


def test_killed_before_the_first_checkpoint_it_begins_again(finished: Path, tmp_path: Path) -> None:
    config = parse(SMALL)
    RunFolder(tmp_path / "run").create(config)
    resumed = run(tmp_path / "run", config, resume=True)
    assert resumed["model_sha256"] == (RunFolder(finished).summary() or {})["model_sha256"]


def test_a_foreign_checkpoint_is_refused(finished: Path, tmp_path: Path) -> None:
    folder = damaged_copy(finished, tmp_path / "run")
    other = parse({**SMALL, "seed": 9})
    with pytest.raises(CheckpointError, match=r"config\.toml"):
        run_rounds(Training(other, prepare(other)), folder, resume=True)
    wider = prepare(parse({**SMALL, "model": {"name": "mlp", "width": 32}}))
    with pytest.raises(CheckpointError, match=r"round-000006.*tensors"):
        run_rounds(Training(parse(SMALL), wider), folder, resume=True)
    assert (folder.checkpoints / "round-000006").is_dir()  # nothing lost


def test_what_a_kill_left_half_written_is_ignored(finished: Path, tmp_path: Path) -> None:
    folder = damaged_copy(finished, tmp_path / "run")
    shutil.rmtree(folder.checkpoints / "round-000006")
    partial = folder.checkpoints / ".round-000006.partial"
    partial.mkdir()
    (partial / "model.safetensors").write_bytes(b"half")
    with folder.metrics_file.open("a") as file:
        file.write('{"round": 7, "train_lo')
    config = parse(SMALL)
    run_rounds(Training(config, prepare(config)), folder, resume=True)
    assert without_times(folder.path) == without_times(finished)


def test_a_folder_in_use_or_not_empty_is_refused(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(SubmodelError, match="submodel resume"):
        RunFolder(finished).create(parse(SMALL))
    folder = RunFolder(finished)
    with (
        folder.lock(),
        pytest.raises(SubmodelError, match=f"^{finished}: .*process"),
        folder.lock(),
    ):
        pass
    with pytest.raises(SubmodelError, match=f"^{tmp_path}: "):
        RunFolder(tmp_path).config()


def hold_lock(folder: Path, sender: Connection) -> None:
    with RunFolder(folder).lock():
        sender.send("held")
        time.sleep(600)


def test_a_second_process_is_refused_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    receiver, sender = forking().Pipe(duplex=False)
    other = forking().Process(target=hold_lock, args=(tmp_path, sender))
    other.start()
    assert receiver.recv() == "held"
    with pytest.raises(SubmodelError, match=f"^{tmp_path}: .*process"), folder.lock():
        pass
    other.kill()
    other.join()
    for _ in range(2):  # and again after its release
        with folder.lock():
            pass


def test_divergence_ends_the_run_with_a_reason_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    config = parse({**SMALL, "local": {"lr": 1e9}})
    with pytest.raises(DivergedError, match=r"\b4\b"):
        run(tmp_path / "run", config)
    assert list(RunFolder(tmp_path / "run").checkpoints.glob("round-*"))


def test_the_output_step_is_taken_after_the_last_round(finished: Path, tmp_path: Path) -> None:
    config = parse({**SMALL, "train": {**SMALL["train"], "output_step": 50.0}})
    summary = run(tmp_path / "run", config)
    plain = RunFolder(finished).summary()
    assert plain is not None
    assert summary["model_sha256"] != plain["model_sha256"]
    state, _ = checkpoint.latest(
        RunFolder(tmp_path / "run").checkpoints,
        config,
        initial_state(prepare(config)),
    )
    assert checkpoint.model_sha256(state.tensors) == plain["model_sha256"]
