"""Pages of folders: groups, tests, sentences and refusals."""

from __future__ import annotations

import base64
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import submodel
from submodel.comparison.statistics import behind_best
from submodel.core.errors import SubmodelError
from submodel.model.axes.declare import unpack_units
from submodel.report.holdings import source_of
from submodel.report.page import page_data, page_html, write_page
from submodel.report.page.types import MOST_POINTS
from submodel.report.plots.series import read_partition
from submodel_lab.converged.questions import QUESTIONS
from tests.support.commands import Command
from tests.support.records import make_comparison, make_study
from tests.support.run_folders import make_run

RESULTS = Path(__file__).parents[2] / "results"
PAGE_OF_DOCS = Path(__file__).parents[2] / "docs" / "report.md"


def floats(packed: str) -> list[float]:
    numbers: list[float] = np.frombuffer(base64.b64decode(packed), "<f4").tolist()
    return numbers


def data_of(*paths: Path) -> dict[str, Any]:
    return page_data(paths, details=False)


def test_a_run_is_told_by_its_costs_and_scores(tmp_path: Path) -> None:
    data = data_of(make_run(tmp_path / "run").path)
    (run,) = data["runs"]
    assert run["rounds"] == 12
    assert floats(run["scores"]["round"]) == [2, 4, 6, 8, 10, 12]
    assert floats(run["scores"]["bytes"]) == [2000 * r for r in (2, 4, 6, 8, 10, 12)]
    assert floats(run["every"]["seconds"])[-1] == pytest.approx(12 * 0.111, rel=1e-6)
    assert run["every"]["clients"] == 10.0  # the same in every round: one number
    assert run["final"]["test_accuracy"] == pytest.approx(0.8)
    assert run["final"]["capacity_accuracy.0.25"] == pytest.approx(0.4)
    assert run["phases"] == pytest.approx({"plan": 0.012, "train": 1.2, "merge": 0.12})
    assert data["title"] == "run"  # its folder, the name that users know
    assert "80.0 %" in data["sentence"]
    assert "rolling" in data["sentence"]
    assert data["warnings"] == []


def test_runs_are_grouped_by_what_differs(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / f"a{s}", s).path for s in range(3)]
    paths += [
        make_run(tmp_path / f"b{s}", s, settings={"scheme": {"name": "static"}}).path
        for s in range(3)
    ]
    paths += [make_run(tmp_path / "c", 0, settings={"local": {"lr": 0.5}}).path]
    groups = data_of(*paths)["groups"]
    assert [group["runs"] for group in groups] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [set(group["settings"]) for group in groups] == [{"local.lr", "scheme.name"}] * 3
    assert "static" in groups[1]["label"]
    assert "local.lr = 0.5" in groups[2]["label"]
    assert "order" not in groups[0]["label"]  # it only follows from the scheme


def test_tests_are_those_of_all_experiments(tmp_path: Path) -> None:
    data = data_of(make_comparison(tmp_path / "comparison"))
    standing = next(s for s in data["standings"] if s["measure"] == "test_accuracy")
    scores = {
        group["label"]: {
            data["runs"][r]["seed"]: data["runs"][r]["final"]["test_accuracy"]
            for r in group["runs"]
        }
        for group in data["groups"]
    }
    assert data["groups"][standing["best"]]["label"] == "rolling"
    for name, judgement in behind_best(scores).items():
        row = next(r for r in standing["rows"] if data["groups"][r["group"]]["label"] == name)
        assert row["p"] == judgement.p
        assert row["verdict"] == judgement.verdict == "holds"
        low, high = judgement.interval or (math.nan, math.nan)
        assert row["difference_interval"] == pytest.approx((-high, -low))
        assert row["difference"] == pytest.approx(-np.mean(judgement.differences))
    assert "2 of the 2 others are behind" in data["sentence"]
    loss = next(s for s in data["standings"] if s["measure"] == "test_loss")
    assert loss["rows"][1]["difference"] > 0  # less is better, so worse ones have more


def test_a_comparison_without_its_runs_is_read_from_records(tmp_path: Path) -> None:
    whole = data_of(make_comparison(tmp_path / "comparison"))
    (tmp_path / "comparison" / "records").rename(tmp_path / "kept")
    records = data_of(tmp_path / "kept")
    assert [g["label"] for g in records["groups"]] == [g["label"] for g in whole["groups"]]
    assert records["commands"] == ["submodel compare rolling,static,random"]
    assert records["runs"][0]["phases"] == {}
    assert whole["runs"][0]["phases"] != {}
    assert records["sentence"] == whole["sentence"]


@pytest.mark.slow
def test_the_recorded_results_of_the_project_have_pages() -> None:
    data = data_of(RESULTS / "small")
    assert len(data["groups"]) == len(list((RESULTS / "small").glob("*.json")))
    assert any(row[-1] == "holds" for table in data["tables"] for row in table["rows"])
    assert len(data_of(RESULTS / "compare-rounds")["groups"]) == 22
    converged = data_of(RESULTS / "converged")  # tables of learning rates lie beside the records
    titles = [table["title"] for table in converged["tables"]]
    assert titles == [question.title for question in QUESTIONS.values()]
    assert "CIFAR-10, L = 5: rolling" in [group["label"] for group in converged["groups"]]


def test_ways_that_were_tested_on_different_data_are_not_compared(tmp_path: Path) -> None:
    schemes, names = ("rolling", "static"), ("digits", "mnist")
    paths = [
        make_run(tmp_path / f"{data}-{scheme}", settings={
            "scheme": {"name": scheme}, "data": {"name": data}}).path
        for data in names
        for scheme in schemes
    ]  # fmt: skip
    data = data_of(*paths)
    standings = [s for s in data["standings"] if s["measure"] == "test_accuracy"]
    assert [(s["data"], s["best"]) for s in standings] == [("digits", 0), ("mnist", 2)]
    assert [[row["group"] for row in s["rows"]] for s in standings] == [[0, 1], [2, 3]]
    assert all(f"Best by test accuracy on {name}: " in data["sentence"] for name in names)
    together = data_of(*paths[:2])
    assert {s["data"] for s in together["standings"]} == {""}


def test_what_is_said_of_many_runs_is_said_once(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / f"{seed}", seed, finished_rounds=5).path for seed in range(6)]
    (warning,) = data_of(*paths)["warnings"]
    assert "and 3 more runs: stopped: round 5 of 12" in warning


def test_a_study_is_told_by_its_verdicts(tmp_path: Path) -> None:
    data = data_of(make_study(tmp_path / "study"))
    (study,) = data["studies"]
    assert study["claims"]["rows"][0][-1] == "yes"
    assert len(study["rows"]) == 6
    assert data["sentence"] == "1 study judges 1 statements: 1 yes."


def test_what_went_wrong_is_said(tmp_path: Path) -> None:
    line = {"refused": {"7": "not finite", "\x1b[31m9": "not finite"}, "missing": {"3": "silent"}}
    stopped_run = make_run(tmp_path / "a", finished_rounds=5, line=line)
    twice = [make_run(tmp_path / name).path for name in ("b", "c")]
    data = data_of(stopped_run.path, *twice)
    troubles = data["runs"][0]["troubles"]
    assert [(t["kind"], t["reason"], t["count"]) for t in troubles] == [
        ("refused", "not finite", 2),
        ("missing", "silent", 1),
    ]
    assert "\x1b" not in json.dumps(data)
    assert "\\u001b" not in json.dumps(data)
    assert any("round 5 of 12" in warning for warning in data["warnings"])
    assert any("same configuration and seed" in warning for warning in data["warnings"])


def test_scores_that_are_not_numbers_do_no_harm(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", every=1)
    text = folder.metrics_file.read_text("utf-8").replace('"test_loss": 0.2', '"test_loss": NaN')
    folder.metrics_file.write_text(text, "utf-8")
    json.dumps(data_of(folder.path), allow_nan=False)


def test_long_runs_are_thinned(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", rounds=2 * MOST_POINTS)
    (run,) = data_of(folder.path)["runs"]
    rounds = floats(run["every"]["round"])
    assert len(rounds) == run["every"]["rows"] == MOST_POINTS
    assert (rounds[0], rounds[-1]) == (1, 2 * MOST_POINTS)


def test_who_has_what_is_computed_where_the_data_is_at_hand(tmp_path: Path) -> None:
    here = make_run(tmp_path / "here").path
    away = make_run(tmp_path / "away", settings={"data": {"name": "hf:no/where"}}).path
    partitions = page_data([here, away])["partitions"]
    counts = np.array(floats(partitions[0]["counts"])[:-1]).reshape(partitions[0]["clients"], -1)
    assert counts.shape == (50, 10)
    assert counts.sum() == 1442  # the training examples of the digits
    assert partitions[1]["words"][0].startswith("Not shown: ")


@pytest.mark.parametrize("name", ["cifar10", "mnist", "fashion-mnist", "shakespeare", "hf:a/b"])
def test_looking_at_a_run_fetches_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds although the name of a file in the cache has the same start."""
    monkeypatch.setenv("SUBMODEL_DATA", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    for other in ("cifar100-fine-archive", "mnist2", "fashion-mnist2", "shakespeare2"):
        (tmp_path / f"cache/{other}.safetensors").touch()
    commands: list[Any] = []
    monkeypatch.setattr("shutil.which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr("subprocess.run", lambda command, **_: commands.append(command))
    monkeypatch.setattr("datasets.load_dataset", lambda *names: commands.append(names))
    monkeypatch.setattr("submodel.data.sources.mnist._DEBIAN_FOLDER", tmp_path / "none")
    path = make_run(tmp_path / "run", settings={"data": {"name": name}}).path
    data = page_data([path])  # it has no layers.json, so its model would be made from the data
    assert "machine" in data["partitions"][0]["words"][0]
    assert "machine" in data["coverage"][0]["reason"]
    for look in (read_partition, lambda paths: source_of(paths[0])):
        with pytest.raises(SubmodelError, match="machine"):
            look([path])
    assert not commands


@pytest.mark.parametrize("name", ["nothing", "a folder", "a file"])
def test_what_is_no_result_is_refused(name: str, tmp_path: Path, submodel: Command) -> None:
    path = tmp_path / name
    if name == "a folder":
        path.mkdir()
    elif name == "a file":
        path.write_text("", "utf-8")
    result = submodel("report", path)
    assert result.returncode == 2
    assert str(path) in result.stderr
    with pytest.raises(SubmodelError, match="folder"):
        page_data([])


@pytest.mark.slow
def test_the_command_writes_one_file(tmp_path: Path, submodel: Command) -> None:
    folder = make_run(tmp_path / "run").path
    assert submodel("report", folder).stdout.strip() == str(folder / "report.html")
    other = make_run(tmp_path / "other", 1).path
    submodel("report", folder, other, cwd=tmp_path)
    assert (tmp_path / "report.html").stat().st_size < 2**20
    assert submodel("report", folder, "--out", tmp_path).returncode == 2


def test_nothing_in_the_data_can_end_its_element_or_run(tmp_path: Path) -> None:
    data = data_of(make_run(tmp_path / "run").path)
    data["title"] = "</script><script>alert(1)</script><!--"
    page = page_html(data)
    assert page.count("</script>") == 3  # the data, the charting library, ours
    assert "alert(1)<" not in page
    assert "connect-src" not in page
    assert "connect-src &#x27;self&#x27;" in page_html(data, live_url="/data.json")
    write_page(data, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8") == page


def test_a_page_is_not_written_over_a_folder(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run").path
    with pytest.raises(SubmodelError, match=f"^out: {tmp_path} "):
        submodel.write_report(run, out=tmp_path)
    with pytest.raises(SubmodelError, match="folder"):
        submodel.write_report(out=tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.slow
def test_fitted_sub_models_are_shown_with_their_scores_and_units(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    config = {"train": {"rounds": 2}, "clients": {"capacities": [1, 0.5]}}
    submodel.train(net, submodel.digits(), config, out=tmp_path / "run")
    opened_run = submodel.open(tmp_path / "run", model=net, data=submodel.digits())
    (about,) = opened_run.fit("1/2", rounds=1, cut="prefix", progress=False)
    (fit,) = data_of(tmp_path / "run")["runs"][0]["fits"]
    assert (fit["capacity"], fit["cut"], fit["headline"]) == (0.5, "prefix", "accuracy")
    assert fit["before"] == about["score_before"]["accuracy"]
    assert fit["score"] == about["score"]["accuracy"]
    assert fit["global_score"] == about["global_score"]["accuracy"]
    assert fit["bytes"] == about["bytes_down"] + about["bytes_up"]
    ((axis, size),) = fit["sizes"].items()
    kept_units = np.flatnonzero(unpack_units(fit["units"][axis], size))
    assert (size, kept_units.tolist()) == (8, [0, 1, 2, 3])
    (tmp_path / "run/fit/capacity-0.5/fit.json").write_text("{}", "utf-8")
    data = data_of(tmp_path / "run")
    assert data["runs"][0]["fits"] == []
    assert any("fit.json: damaged" in warning for warning in data["warnings"])


def test_the_example_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "runs" / "digits")
    make_run(tmp_path / "runs" / "other", scheme="static")
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE_OF_DOCS.read_text("utf-8"), re.DOTALL)
    exec(compile(example, PAGE_OF_DOCS.name, "exec"), {})
    page = (tmp_path / "runs" / "digits" / "report.html").read_text("utf-8")
    assert "A cnn on digits was trained" in page
    assert "A cnn on digits was trained in 2 arms" in (tmp_path / "both.html").read_text("utf-8")
