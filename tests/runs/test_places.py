"""A run and its original folder: actions without data, and data that has moved."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import submodel as package
from submodel.config import parse
from submodel.config.meaning import located, made_absolute, paths_in
from submodel.core.errors import ConfigError
from submodel.runs.folder import RunFolder
from tests.support.commands import Command

SETTINGS = ("clients.count=6", "clients.per_round=3", "train.rounds=2", "model.width=8")
SHORT = [word for setting in SETTINGS for word in ("--set", setting)]
TABLE = [*SHORT, "--set", "data.name=csv:table.csv", "--set", "model.name=mlp"]
TEXT = [*SHORT, "--set", "data.name=text:text.txt", "--set", "model.name=gpt", "--set",
        "model.layers=1", "--set", "model.heads=1", "--set", "data.length=8"]  # fmt: skip


def write_table(path: Path, rows: int = 120, changed: bool = False) -> None:
    draws = random.Random(0)
    lines = ["x,y,target"]
    for _ in range(rows):
        x = draws.random()
        lines.append(f"{x},{draws.random()},{'uvw'[int(3 * x)]}")
    if changed:
        lines[-1] = lines[-1].replace(lines[-1].split(",")[1], "0.123")
    path.write_text("\n".join(lines) + "\n", "utf-8")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Make a folder with data, in which a run of each kind was started with relative paths."""
    home = tmp_path / "home"
    home.mkdir()
    write_table(home / "table.csv")
    (home / "text.txt").write_text("to be or not to be, that is the question\n" * 40, "utf-8")
    (tmp_path / "elsewhere").mkdir()
    return home


def hash_of_run(path: Path) -> str:
    return str((RunFolder(path).summary() or {})["model_sha256"])


@pytest.mark.slow
def test_a_run_goes_on_from_another_folder_to_the_same_bytes(home: Path, submodel: Command) -> None:
    elsewhere = home.parent / "elsewhere"
    assert submodel("train", *TABLE, "--out", "run", cwd=home).returncode == 0
    longer = ["--set", "train.rounds=4"]
    assert submodel("train", *TABLE, *longer, "--out", "long", cwd=home).returncode == 0
    resumed = submodel("resume", "../home/run", *longer, cwd=elsewhere)
    assert resumed.returncode == 0, resumed.stderr
    assert hash_of_run(home / "run") == hash_of_run(home / "long")
    assert RunFolder(home / "run").config().data.name == "csv:table.csv"  # as it was written
    assert submodel("score", "../home/run", cwd=elsewhere).returncode == 0


@pytest.mark.slow
def test_a_model_is_opened_exported_and_writes_text_where_its_data_is_not(
    home: Path,
    submodel: Command,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert submodel("train", *TEXT, "--out", "run", cwd=home).returncode == 0
    whole = submodel("generate", "run", "--tokens", "12", cwd=home).stdout
    moved = home.parent / "elsewhere/moved"
    shutil.move(home / "run", moved)
    shutil.rmtree(home)
    monkeypatch.chdir(moved.parent)
    assert submodel("generate", "moved", "--tokens", "12").stdout == whole
    exported = submodel("export", "moved", "--capacity", "1/4", "--json")
    assert exported.returncode == 0, exported.stderr
    assert '"test": null' in exported.stdout
    assert "--set data.name=text:PATH" in caplog.text
    run = package.open("moved")
    assert run.model is not None
    file, score = run.export(0.5, "program")
    assert score is None
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    program: Any = torch.export.load(file).module()
    assert torch.allclose(program(tokens), run.submodel(0.5)(tokens), atol=1e-5)
    with pytest.raises(ConfigError, match=r"text\.txt"):
        run.score()


@pytest.mark.slow
def test_data_that_moved_is_named_and_compared(home: Path, submodel: Command) -> None:
    elsewhere = home.parent / "elsewhere"
    assert submodel("train", *TABLE, "--out", "run", cwd=home).returncode == 0
    shutil.move(home / "table.csv", elsewhere / "here.csv")
    lost = submodel("score", "run", cwd=home)
    assert "submodel resume run --set data.name=csv:PATH" in lost.stderr
    write_table(elsewhere / "short.csv", rows=100)
    write_table(elsewhere / "other.csv", changed=True)
    before = (home / "run/config.toml").read_bytes()
    for name, difference in (
        ("short", "train inputs: float32 96 x 2 .*float32 80 x 2"),
        ("other", r"train inputs: float32 96 x 2 .*\(sha256 "),
    ):
        for more in ([], ["--set", "train.rounds=3"]):
            place = f"data.name=csv:{name}.csv"
            refused = submodel("resume", "../home/run", "--set", place, *more, cwd=elsewhere)
            assert refused.returncode == 2
            assert re.search(difference, refused.stderr)
    assert (home / "run/config.toml").read_bytes() == before
    model = hash_of_run(home / "run")
    resumed = submodel("resume", "../home/run", "--set", "data.name=csv:here.csv", cwd=elsewhere)
    assert resumed.returncode == 0, resumed.stderr
    assert RunFolder(home / "run").config().data.name == f"csv:{elsewhere / 'here.csv'}"
    assert hash_of_run(home / "run") == model
    assert submodel("score", "run", cwd=home).returncode == 0
    run = package.open(home / "run").resume({"train": {"rounds": 3}}, progress=False)
    assert run.finished


def test_the_clients_that_data_names_are_part_of_its_fingerprint(
    home: Path, submodel: Command
) -> None:
    rows = (home / "table.csv").read_text("utf-8").splitlines()
    for name, owner in (("a", "uv"), ("b", "vu")):
        named = [f"{row},{owner[n % 2]}" for n, row in enumerate(rows[1:])]
        (home / f"{name}.csv").write_text("\n".join([f"{rows[0]},who", *named]), "utf-8")
    settings = [*TABLE[4:], "--set", "data.name=csv:a.csv", "--set", "data.client=who"]
    assert submodel("train", *settings, "--out", "run", cwd=home).returncode == 0
    refused = submodel("resume", "run", "--set", "data.name=csv:b.csv", cwd=home)
    assert "named clients: 2 " in refused.stderr
    checkpoint = next((home / "run/checkpoints").iterdir())
    shutil.rmtree(home / "run/checkpoints")
    refused = submodel("resume", "run", "--set", "data.name=csv:b.csv", cwd=home)
    assert "named clients: 2 " in refused.stderr, checkpoint  # data.json contains it as well


def test_statistics_of_norms_are_kept_with_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    draws = random.Random(0)
    for part, count in (("train", 12), ("test", 4)):
        for label in ("dark", "light"):
            folder = tmp_path / "images" / part / label
            folder.mkdir(parents=True)
            for number in range(count):
                shade = draws.randrange(100) + 100 * (label == "light")
                Image.new("L", (8, 8), shade).save(folder / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    sections: dict[str, Any] = {
        "data": {"name": "folder:images", "labels_per_client": 2},
        "model": {"width": 4},
        "clients": {"count": 2, "per_round": 2, "capacities": [1, 0.5]},
        "train": {"rounds": 1},
    }
    from submodel.config.setup import prepare
    from submodel.runs.loop import run_rounds
    from submodel.runs.training import Training

    config = parse(sections)
    files = RunFolder(tmp_path / "run")
    files.create(config)
    run_rounds(Training(config, prepare(config)), files)
    run = package.open("run")
    x = torch.randn(3, 1, 8, 8)
    with_data = [run.submodel(capacity)(x) for capacity in (1, 0.5)]
    shutil.move(tmp_path / "images", tmp_path / "gone")
    run = package.open("run")
    for outputs, capacity in zip(with_data, (1, 0.5), strict=True):
        assert torch.equal(run.submodel(capacity)(x), outputs)
    assert run.export(0.5)[1] is None
    with pytest.raises(package.SubmodelError, match="batch norm"):
        run.submodel(0.25)


def test_paths_of_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()
    for name in ("a.txt", "b.txt", "tokens.json"):
        (tmp_path / "there" / name).touch()
    monkeypatch.chdir(tmp_path)
    text = {"name": "text:a.txt", "test_path": "b.txt", "tokens": "file:tokens.json"}
    config = parse({"data": text, "model": {"name": "gpt", "weights": "gone.safetensors"}})
    found = located(config, tmp_path / "there")
    assert found.data.name == f"text:{tmp_path / 'there/a.txt'}"
    assert found.data.test_path == str(tmp_path / "there/b.txt")
    assert found.data.tokens == f"file:{tmp_path / 'there/tokens.json'}"
    assert found.model.weights == "gone.safetensors"
    assert located(found, tmp_path) == found
    moved = parse({"data": {**text, "name": "text:c.txt"}, "model": {"name": "gpt"}})
    assert made_absolute(moved, config).data.name == f"text:{tmp_path / 'c.txt'}"
    assert made_absolute(moved, config).data.test_path == "b.txt"
    assert paths_in(parse({})) == {}


@pytest.mark.slow
def test_a_run_without_checkpoints_is_not_begun_again_in_silence(
    home: Path, submodel: Command, caplog: pytest.LogCaptureFixture
) -> None:
    assert submodel("train", *TABLE, "--out", "run", cwd=home).returncode == 0
    shutil.rmtree(home / "run/checkpoints")
    for file in ("summary.json", "model.safetensors"):
        (home / "run" / file).unlink()
    refused = submodel("resume", "run", cwd=home)
    assert refused.returncode == 2
    remedy = "submodel train run/config.toml --out run --force"
    assert remedy in refused.stderr
    assert (home / "run/metrics.jsonl").read_text("utf-8").count("\n") == 2  # nothing is lost
    assert submodel(*remedy.split()[1:], cwd=home).returncode == 0
    (home / "run/metrics.jsonl").unlink()
    (home / "run/summary.json").unlink()
    shutil.rmtree(home / "run/checkpoints")
    assert submodel("resume", "run", cwd=home).returncode == 0
    assert "round 1" in caplog.text


@pytest.mark.slow
def test_force_replaces_a_run_and_nothing_else(home: Path, submodel: Command) -> None:
    run = home / "run"
    assert submodel("train", *TABLE, "--out", "run", cwd=home).returncode == 0
    (run / "notes.txt").write_text("mine", "utf-8")
    refused = submodel("train", *TABLE, "--out", "run", cwd=home)
    assert re.search("'submodel resume run'.* --force", refused.stderr)
    with RunFolder(run).lock():
        refused = submodel("train", *TABLE, "--out", "run", "--force", cwd=home)
        assert "process" in refused.stderr
    assert RunFolder(run).finished()
    seed = ["--set", "seed=3"]
    broken = submodel(
        "train", *TABLE, "--set", "data.target=no", "--out", "run", "--force", cwd=home
    )
    assert broken.returncode == 2
    assert RunFolder(run).finished()  # an untrainable configuration replaces nothing
    replaced = submodel("train", *TABLE, *seed, "--out", "run", "--force", cwd=home)
    assert replaced.returncode == 0, replaced.stderr
    assert RunFolder(run).config().seed == 3
    assert (run / "notes.txt").read_text("utf-8") == "mine"
    assert submodel("train", *TABLE, *seed, "--out", "fresh", cwd=home).returncode == 0
    assert hash_of_run(run) == hash_of_run(home / "fresh")
    project = home / "project"
    project.mkdir()
    (project / "config.toml").write_text("seed = 1\n", "utf-8")
    refused = submodel("train", *TABLE, "--out", "project", "--force", cwd=home)
    assert "project" in refused.stderr
    assert [file.name for file in project.iterdir()] == ["config.toml"]
    assert "--force: " in submodel("train", "--force", cwd=home).stderr


def test_a_run_begun_in_python_says_how_it_goes_on_there(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    data, path = package.digits(), tmp_path / "run"
    config = {"train": {"rounds": 3}, "scheme": {"granularity": "coordinate"}}

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(package.SubmodelError):
        package.train(model, data, config, out=path, on_round=stop, progress=False)
    with pytest.raises(package.SubmodelError) as error:
        package.train(model, data, config, out=path, progress=False)
    call = f"submodel.open({str(path)!r}, model=model, data=data).resume()"
    assert call in str(error.value)
    assert "overwrite=True" in str(error.value)
    run = eval(call.removeprefix("submodel."), {"open": package.open, "model": model, "data": data})
    assert run.finished
    again = package.train(model, data, config, out=path, overwrite=True, progress=False)
    assert len(again.history) == 3
    with pytest.raises(ConfigError, match="overwrite"):
        package.train(model, data, config, overwrite=True, progress=False)


def test_metrics_are_read_once_and_again_when_they_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path, submodel: Command
) -> None:
    assert submodel("train", *TABLE, "--out", "run", cwd=home).returncode == 0
    from submodel.runs.metrics import Lines

    reads: list[Path] = []
    read = Lines.read

    def count(path: Path) -> Lines:
        reads.append(path)
        return read(path)

    monkeypatch.setattr(Lines, "read", count)
    run = package.open(home / "run")
    assert [len(run.metrics) for _ in range(3)] == [2, 2, 2]
    assert len(reads) == 1
    run.history.clear()
    assert len(run.history) == 2
    RunFolder(home / "run").add_metrics({**run.history[-1], "round": 3})
    assert [row["round"] for row in run.metrics] == [1, 2, 3]
    assert len(reads) == 2


@pytest.mark.slow
def test_export_hashes_the_model_once(
    home: Path, submodel: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert submodel("train", *TABLE, "--out", "run", cwd=home).returncode == 0
    assert submodel("fit", "run", "--capacity", "1/4", "--rounds", "1", cwd=home).returncode == 0
    from submodel.runs import checkpoint, export, fitted

    hashed: list[int] = []

    def count(tensors: dict[str, torch.Tensor]) -> str:
        hashed.append(sum(tensor.numel() for tensor in tensors.values()))
        return checkpoint.model_sha256(tensors)

    monkeypatch.setattr(export, "model_sha256", count)
    monkeypatch.setattr(fitted, "model_sha256", count)
    exported = submodel("export", "run", "--capacity", "1/4", cwd=home)
    assert "fitted" in exported.stdout, exported.stderr
    whole = sum(tensor.numel() for tensor in package.open(home / "run").model.parameters())
    assert hashed.count(whole) == 2  # one of them belongs to the line above
