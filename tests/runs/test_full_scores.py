"""Full scores of a finished run: their content, their storage, and their validity for the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import submodel
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.errors import SubmodelError
from submodel.runs.folder import RunFolder, read_full_scores
from submodel.runs.loop import run_rounds
from submodel.runs.metrics import TEST_BATCH_KEY
from submodel.runs.training import Training


def test_it_is_what_an_evaluation_of_everything_says_and_kept_for_this_model(
    tmp_path: Path,
) -> None:
    sections = {
        "model": {"name": "mlp", "width": 4},
        "data": {"examples": 200, "test_examples": 50},
        "clients": {"count": 10, "per_round": 2, "capacities": [1, 0.5]},
        "engine": {"name": "local"},
    }
    config = parse({**sections, "train": {"rounds": 2, "evaluate_capacities": False}})
    folder = RunFolder(tmp_path / "run")
    folder.create(config)
    run = submodel.open(folder.path)
    with pytest.raises(SubmodelError, match="submodel resume"):
        run.score()
    run_rounds(Training(config, prepare(config)), folder)
    assert read_full_scores(folder) is None
    entries = run.score()
    everything = {"rounds": 2, "evaluate_train": True, "evaluate_clients": "submodel"}
    wide = parse({**sections, "train": everything})
    _, history = run_rounds(Training(wide, prepare(wide)))
    assert entries == {key: history[-1][key] for key in entries}
    assert {"train_eval_accuracy", "capacity_accuracy", "client_accuracy"} <= entries.keys()
    kept = json.loads(folder.scores_file.read_text())
    assert len(kept["clients"]) == 10
    kept["entries"]["test_accuracy"] = 7.0
    folder.scores_file.write_text(json.dumps(kept))
    assert run.score()["test_accuracy"] == 7.0  # not computed again
    run.resume({"train": {"rounds": 3}}, progress=False)
    assert read_full_scores(folder) is None  # of another model


def test_norms_that_go_by_test_batches_are_scored_beside_those_that_do_not(tmp_path: Path) -> None:
    sections = {
        "model": {"name": "cnn", "width": 4},
        "data": {"examples": 400, "test_examples": 200, "partition": "iid"},
        "clients": {"count": 10, "per_round": 10, "capacities": [1]},
        "local": {"lr": 0.1},
        "engine": {"name": "local"},
    }
    config = parse({**sections, "train": {"rounds": 3}})
    folder = RunFolder(tmp_path / "run")
    folder.create(config)
    run_rounds(Training(config, prepare(config)), folder)
    entries = submodel.open(folder.path).score()
    by_batch = parse({**sections, "train": {"rounds": 3, "statistics": "test_batch"}})
    _, history = run_rounds(Training(by_batch, prepare(by_batch)))
    assert entries[TEST_BATCH_KEY] == history[-1]["test_accuracy"] != entries["test_accuracy"]
