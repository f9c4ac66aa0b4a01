"""The paper's experiments: their arms, runs, resumption and reports."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from submodel.comparison.records import ArmRecord
from submodel.comparison.runner import Runner
from submodel.comparison.statistics import number
from submodel.config import parse
from submodel.config.reading import without_unused
from submodel.config.setup import prepare
from submodel.core import SubmodelError
from submodel.federation.flower.process import descendants, is_running
from submodel.runs.loop import run_rounds
from submodel.runs.training import Training
from submodel_lab.paper.experiments import EXPERIMENTS, HETEROGENEITY, PaperArm, Scale, Split
from submodel_lab.paper.report import contrast_rows, write_experiment
from submodel_lab.paper.scales import scale_base
from tests.support.commands import Command
from tests.support.forked import start_command
from tests.support.records import record


def every_arm(scale: Scale) -> list[PaperArm]:
    return [v for e in EXPERIMENTS.values() for v in e.arms(scale)]


@pytest.mark.parametrize("scale", list(Scale))
def test_every_configuration_is_valid_and_claims_speak_of_what_is_run(scale: Scale) -> None:
    arms = every_arm(scale)
    for arm in arms:
        config = parse(arm.settings(scale, seed=3))
        assert config.seed == 3
        assert config.local.momentum == 0.9
        assert config.clients.sample_size == config.clients.client_count * (
            0.2 if scale == "smoke" else 0.1
        )
    for experiment in EXPERIMENTS.values():
        own = experiment.arms(scale)
        for contrast in experiment.contrasts:
            for setting in contrast.settings:
                assert set(contrast.sides(own[0].dataset, setting)) <= set(own)


def test_experiments_share_their_runs() -> None:
    arms = every_arm(Scale.SMALL)
    assert len(set(arms)) == 25 < len(arms)


def test_dirichlet_splits_are_runs_of_their_own() -> None:
    arms = EXPERIMENTS["heterofl"].arms(Scale.SMALL, split=Split.DIRICHLET)
    assert arms[0].slug == "cifar10-dirichlet-high-static-small"
    data = parse(arms[0].settings(Scale.SMALL, 0)).data
    assert (data.partition, data.alpha) == ("dirichlet", 0.1)


def test_the_settings_are_those_of_the_paper() -> None:
    labels = {
        (v.dataset, v.heterogeneity): v.settings(Scale.PAPER, 0)["data"]["labels_per_client"]
        for v in every_arm(Scale.PAPER)
    }
    assert labels == {("cifar10", "high"): 2, ("cifar10", "low"): 5,
                      ("cifar100", "high"): 20, ("cifar100", "low"): 50}  # fmt: skip
    config = parse(PaperArm("cifar100", "high", "rolling").settings(Scale.PAPER, 0))
    assert (config.model.name, config.model.width) == ("preresnet18", 64)
    assert (config.clients.count, config.clients.sample_size) == (100, 10)
    assert config.clients.capacities == [1, 1 / 2, 1 / 4, 1 / 8, 1 / 16]
    assert (config.local.batch_size, config.local.clip, config.local.weight_decay) == (10, 1, 1e-3)


@pytest.mark.every(2)
@pytest.mark.slow
@pytest.mark.parametrize("method", sorted({v.method for v in every_arm(Scale.PAPER)}))
def test_every_way_trains(method: str) -> None:
    settings = PaperArm("digits", HETEROGENEITY[0], method).settings(Scale.SMOKE, 0)
    settings["data"] |= {"examples": 200, "test_examples": 50}
    settings["train"] |= {"rounds": 2}
    settings["local"] |= {"milestones": [1]}
    config = parse(settings)
    _, history = run_rounds(Training(config, prepare(config)))
    line = history[-1]
    assert not line["refused"]
    assert 0 <= line["test_accuracy"] <= 1
    assert {"train_eval_loss", "train_eval_accuracy"} <= line.keys()
    assert "capacity_accuracy" not in line


def test_comparisons_are_seed_by_seed_and_losses_count_the_other_way() -> None:
    first, second = record("a", [0.5, 0.6, 0.7]), record("b", [0.4, 0.55, 0.5])
    assert first.ahead_of(second, "accuracy") == pytest.approx([0.1, 0.05, 0.2])
    assert second.ahead_of(first, "accuracy") == pytest.approx([-0.1, -0.05, -0.2])
    assert first.ahead_of(second, "loss") == pytest.approx([0.1, 0.05, 0.2])
    assert first.ahead_of(second, "accuracy gap") == pytest.approx([0, 0, 0])
    assert number("accuracy", [0.1, 0.05, 0.2], sign=True) == "+11.7 points ± 7.6"


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_there_is_no_verdict_below_three_seeds(seeds: int) -> None:
    experiment = EXPERIMENTS["heterofl"]
    static, rolling = experiment.arms(Scale.SMOKE)
    records = {static: record("a", [0.1, 0.11, 0.1][:seeds]), rolling: record("b", [0.15] * seeds)}
    for contrast, _, by, agree, interval, p, verdict in contrast_rows(experiment, records):
        assert contrast.startswith("rolling beats static")
        assert by.startswith("+")
        assert agree == f"{seeds} of {seeds}"
        assert bool(interval) == bool(p) == (seeds == 3)
        assert verdict == ("holds" if seeds == 3 else f"no verdict: {seeds} of 3 seeds")


def test_random_is_algorithm_1_and_fixed_sizes_are_called_dropout() -> None:
    """Every method's name and title match its sampling."""
    for arm in every_arm(Scale.SMALL):
        choice = parse(arm.settings(Scale.SMALL, 0)).scheme
        sampling = getattr(choice, "sampling", None)
        drawn = {"random": sampling == "bernoulli", "dropout": sampling == "fixed"}
        if choice.name == "random" and arm.method != "independent-at-1":
            called = arm.method.partition("-")[0]
            assert drawn[called]
            assert arm.title.startswith(called)
        else:
            assert not arm.method.startswith(tuple(drawn))


def test_the_records_that_are_kept_are_of_the_runs_that_their_names_say() -> None:
    """Keys that cannot change a result are ignored: a new key has its current default."""
    folder = Path(__file__).parents[2] / "results" / "small"
    arms = dict.fromkeys(every_arm(Scale.SMALL))
    assert {v.slug for v in arms} == {path.stem for path in folder.glob("*.json")}
    for arm in arms:
        kept = ArmRecord.read(folder / f"{arm.slug}.json")
        assert kept.slug == arm.slug
        assert [run.seed for run in kept.runs] == [0, 1, 2]
        ran = parse(without_unused(kept.config))
        now = parse(arm.settings(Scale.SMALL, 0))
        for section in ("scheme", "model", "data", "clients", "merge", "local", "train"):
            assert getattr(ran, section) == getattr(now, section)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_reports_hold_the_figure_the_table_and_the_verdicts(name: str, tmp_path: Path) -> None:
    experiment = EXPERIMENTS[name]
    arms = experiment.arms(Scale.SMALL)
    records = {v: record(v.slug, [0.3 + 0.01 * i, 0.31 + 0.01 * i]) for i, v in enumerate(arms)}
    page = write_experiment(experiment, records, "a command", tmp_path)
    text = page.read_text()
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    assert "a command" in text
    for arm in arms:
        assert f"| {arm.title} |" in text
    rows = contrast_rows(experiment, records)
    assert len(rows) == sum(len(c.settings) for c in experiment.contrasts)
    assert all(row[0] in text and row[-1] in text for row in rows)
    for _, numbers in experiment.paper:
        assert numbers in text


def test_records_survive_their_file_and_others_are_refused(tmp_path: Path) -> None:
    kept = record("a", [0.5, 0.6])
    kept.write(tmp_path / "a.json")
    assert ArmRecord.read(tmp_path / "a.json") == kept
    (tmp_path / "b.json").write_text('{"slug": "b"}')
    for name in ("b", "missing"):
        with pytest.raises(SubmodelError, match=f"/{name}\\.json: "):
            ArmRecord.read(tmp_path / f"{name}.json")


def command(out: Path, *options: str) -> list[str]:
    base = ["reproduce", "heterofl", "--scale", "smoke"]
    # the last value counts
    return [*base, "--seeds", "2", "--jobs", "2", "--out", str(out), *options]


@pytest.mark.slow
def test_a_stopped_reproduction_goes_on_and_can_be_redrawn(
    tmp_path: Path, submodel: Command
) -> None:
    out = tmp_path / "out"
    one = "--jobs", "1", "--seeds", "1"  # the second run waits for the first and never starts
    first = start_command(*command(out, *one), stdout=tmp_path / "printed")
    deadline = time.monotonic() + 120
    while not list(out.glob("runs/*/*/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    first.terminate()
    first.join()
    assert first.exitcode == 130
    assert "stopped" in (tmp_path / "printed").read_text()
    assert not list(out.glob("runs/*/*/summary.json"))
    assert submodel(*command(out, *one)).returncode == 0
    hashes: dict[str, Any] = {
        str(path.relative_to(out)): json.loads(path.read_text())["model_sha256"]
        for path in out.glob("runs/*/*/summary.json")
    }
    assert len(hashes) == 2
    text = (out / "heterofl.md").read_text()
    redrawn = tmp_path / "redrawn"
    again = command(redrawn, *one, "--records", str(out / "records"))
    assert submodel(*again).returncode == 0
    assert (redrawn / "heterofl.md").read_text() == text
    assert not (redrawn / "runs").exists()


@pytest.mark.slow
def test_the_runs_of_a_killed_reproduction_save_their_last_round_and_end(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = start_command(*command(out))
    deadline = time.monotonic() + 120
    while len(list(out.glob("runs/*/*/metrics.jsonl"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert first.pid is not None
    training = descendants(first.pid)
    first.kill()
    first.join()
    assert len(training) == 3  # two runs and their parent
    deadline = time.monotonic() + 20
    while any(map(is_running, training)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, training))
    assert len(list(out.glob("runs/*/*/summary.json"))) < 4
    for folder in (path.parent for path in out.glob("runs/*/*/metrics.jsonl")):
        assert list((folder / "checkpoints").iterdir())


def test_a_folder_of_another_configuration_is_refused(tmp_path: Path) -> None:
    arm, runner = PaperArm("digits", "high", "rolling"), Runner(tmp_path, 1)
    config = parse(arm.settings(Scale.SMOKE, 0))
    job = runner.job(arm.slug, config)
    job.folder.create(config)
    runner.job(arm.slug, config)
    other = config.model_copy(update={"name": "other"})
    with pytest.raises(SubmodelError, match=f"^{job.folder.path} .*--out"):
        runner.job(arm.slug, other)


def test_scales_are_those_of_the_reproduction() -> None:
    config = scale_base(Scale.SMALL)(["scheme.name=static"])
    assert (config.name, config.scheme.name, config.data.name) == ("small", "static", "cifar10")
    assert (config.data.labels_per_client, config.train.rounds) == (5, 30)
    assert config.clients.capacities == [1, 1 / 2, 1 / 4, 1 / 8, 1 / 16]
