"""Scores of clients, against scoring each by itself on examples that are put together by hand."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import submodel
from submodel.algorithm.evaluation import (
    capacity_models,
    client_tests,
    evaluate_model,
    evaluation_module,
    score_clients,
)
from submodel.algorithm.rounds import initial_state
from submodel.algorithm.score import score
from submodel.algorithm.types import Setup, State
from submodel.config import parse
from submodel.data import Dataset, Examples, dataset
from submodel.data.facts import owners_of
from submodel.engines.processes.group import ProcessGroup
from submodel.errors import ConfigError
from submodel.model.cut import WHOLE
from submodel.prepare.setup import prepare
from submodel.report.tables import clients_table
from submodel.runs.loop import Interruption, run_rounds
from submodel.runs.training import Training
from tests.support.common import tiny_images
from tests.support.ranks import run_group

SMALL = {"name": "mlp", "width": 8}


def setup_of(data: Dataset, /, **sections: Any) -> Setup:
    clients = {"count": 6, "per_round": 2, "capacities": [1, 0.5]}
    if data.owners is not None:
        clients["count"] = len(data.owners)
    return prepare(parse({"model": SMALL, "clients": clients, **sections}), data=data)


def at_random(setup: Setup) -> State:
    """A state whose models answer this and that."""
    state, draws = initial_state(setup), torch.Generator().manual_seed(1)
    tensors = {n: torch.randn(t.shape, generator=draws) / 4 for n, t in state.tensors.items()}
    return replace(state, tensors=tensors)


def module_of(setup: Setup, state: State, capacity: float) -> nn.Module:
    tensors, cut = capacity_models(setup, state).get(capacity, (state.tensors, WHOLE))
    with evaluation_module(setup, replace(state, tensors=tensors), cut) as module:
        return copy.deepcopy(module)  # what is lent goes back


def repeated(examples: Examples, times: Tensor) -> Examples:
    return examples.take(torch.repeat_interleave(torch.arange(len(examples)), times))


METRICS = {"metrics": ["accuracy", "f1", "calibration"]}


@pytest.mark.parametrize("partition", ["labels", "iid", "dirichlet"])
@pytest.mark.parametrize("model", ["submodel", "global"])
def test_clients_are_scored_as_on_the_test_examples_of_their_labels_as_often(
    partition: str, model: Any
) -> None:
    """An example of label l counts in proportion to c_l / n_l: so it is repeated that often."""
    data = tiny_images(240)
    setup = setup_of(data, data={"partition": partition}, task=METRICS)
    state = at_random(setup)
    data = setup.clients.dataset
    in_test = torch.bincount(data.test.y, minlength=10)
    multiple = math.lcm(*[int(n) for n in in_test if n])
    scored = score_clients(setup, state, client_tests(setup.clients, 6), model)
    assert [one.client for one in scored] == list(range(6))
    for one in scored:
        capacity = setup.population.capacity(one.client, 0)
        labels = torch.bincount(setup.clients.examples(one.client).y, minlength=10)
        per_label = torch.where(in_test > 0, labels * multiple // in_test.clamp(min=1), 0)
        per_label = per_label // math.gcd(*per_label.tolist())
        module = module_of(setup, state, capacity if model == "submodel" else 1.0)
        expected = score(module, repeated(data.test, per_label[data.test.y]), setup)
        assert one.capacity == capacity
        assert one.score.entries() == pytest.approx(expected.entries(), rel=1e-6)  # float32 means


def test_a_client_that_has_what_the_test_part_has_is_scored_as_the_model_is() -> None:
    data = tiny_images(240)
    data = dataset((data.test.x, data.test.y), (data.test.x, data.test.y))
    sections = {"clients": {"count": 1, "per_round": 1}, "data": {"partition": "iid"}}
    setup = prepare(parse({"model": SMALL, **sections}), data=data)
    state = at_random(setup)
    (one,) = score_clients(setup, state, client_tests(setup.clients, 1), "global")
    assert one.score.accuracy == evaluate_model(setup, state).accuracy
    assert one.score.loss == pytest.approx(evaluate_model(setup, state).loss, rel=1e-6)


def natural(targets: Tensor | None = None) -> Dataset:
    """Ann, Bob and Cid train; Dan has test examples only, Cid has none."""
    data = tiny_images(240)
    names = ["ann", "bob", "cid"] * len(data.train.y)
    test_names = (["ann", "bob", "dan", "bob"] * len(data.test.y))[: len(data.test.y)]
    owners, _ = owners_of(names[: len(data.train.y)], test_names)
    if targets is not None:
        x, test_x = data.train.x.float(), data.test.x.float()
        data = dataset((x, x.flatten(1)[:, :1]), (test_x, test_x.flatten(1)[:, :1]))
    return replace(data, owners=owners)


@pytest.mark.parametrize("is_regression", [False, True])
def test_natural_clients_are_scored_on_their_own_test_examples(is_regression: bool) -> None:
    data = natural(torch.zeros(1) if is_regression else None)
    setup = setup_of(data)
    state = at_random(setup)
    tests = client_tests(setup.clients, 3)
    scored = score_clients(setup, state, tests)
    assert [tests.names[one.client] for one in scored] == ["ann", "bob"]
    for one, places in zip(scored, (slice(0, None, 4), slice(1, None, 2)), strict=True):
        module = module_of(setup, state, one.capacity)
        expected = score(module, setup.clients.dataset.test.take(places), setup)
        assert one.score.entries() == pytest.approx(expected.entries(), rel=1e-6)  # other batches
    assert is_regression == ("r2" in scored[0].score.metrics)


def config(**train: Any) -> dict[str, Any]:
    clients = {"count": 6, "per_round": 2, "capacities": [1, 0.5]}
    settings = {"rounds": 4, "evaluate_every": 2, "evaluate_clients": "submodel", **train}
    return {"clients": clients, "train": settings}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


def train(out: Path | None = None, **options: Any) -> submodel.Result:
    given = options.pop("config", config())
    return submodel.train(net(), tiny_images(240), given, out=out, progress=False, **options)


def without_seconds(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key != "seconds"} for line in history]


def test_the_lines_tell_mean_worst_quarter_and_capacities(tmp_path: Path) -> None:
    result = train(tmp_path / "run")
    line, run = result.history[-1], submodel.open(tmp_path / "run", model=net(),
                                                  data=tiny_images(240))  # fmt: skip
    rows = run.client_scores()
    assert line["client_count"] == len(rows) == 6
    for name, worst_first in (("accuracy", 1), ("loss", -1)):
        values = [row[name] for row in rows]
        entry = line[f"client_{name}"]
        assert entry["mean"] == pytest.approx(sum(values) / 6)
        worst_two = sorted(values, key=lambda value: worst_first * value)[:2]
        assert entry["worst_quarter"] == pytest.approx(sum(worst_two) / 2)
        for share in (1.0, 0.5):
            members = [row[name] for row in rows if row["capacity"] == share]
            assert entry["capacity"][f"{share:g}"] == pytest.approx(sum(members) / len(members))
    assert "client_count" not in result.history[0]
    summary = run.summary
    assert summary is not None
    assert summary["client_accuracy"] == line["client_accuracy"]
    assert run.metrics[-1]["client_loss.worst_quarter"] == line["client_loss"]["worst_quarter"]
    table = clients_table(line)
    assert table is not None
    assert (table.title, table.row_count) == ("6 clients, round 4", 2)
    cells = [next(iter(column.cells)) for column in table.columns]
    assert cells[2] == f"{line['client_accuracy']['worst_quarter']:.1%}"


def test_without_being_asked_nothing_is_told_of_clients(tmp_path: Path) -> None:
    lines = train(config=config(evaluate_clients="no")).history
    assert not any(key.startswith("client_") for line in lines for key in line)
    asked_lines = without_seconds(train().history)
    plain_lines = [
        {key: value for key, value in line.items() if not key.startswith("client_")}
        for line in asked_lines
    ]
    assert plain_lines == without_seconds(lines)  # and nothing else depends on it


class Stops(submodel.Callback):
    """Stops a run in its third round."""

    def measure(self, before: State, after: State) -> dict[str, Any]:  # noqa: ARG002
        if after.round == 3:
            raise KeyboardInterrupt
        return {}


def test_a_resumed_run_tells_the_same_of_clients(tmp_path: Path) -> None:
    with pytest.raises(Interruption):
        train(tmp_path / "run", callbacks=[Stops()])
    train(tmp_path / "run", resume=True)
    assert without_seconds(submodel.open(tmp_path / "run").history) == without_seconds(
        train().history
    )
    (tmp_path / "run/summary.json").unlink()  # as if it had been killed before its last act
    train(tmp_path / "run", resume=True)
    summary = submodel.open(tmp_path / "run").summary
    assert summary is not None
    assert summary["client_loss"] == train().history[-1]["client_loss"]


def run_in_a_group(group: ProcessGroup, folder: str) -> None:
    chosen = parse({"model": SMALL, **config()})
    _, history = run_rounds(Training(chosen, prepare(chosen, data=tiny_images(240))), group=group)
    Path(folder, f"{group.rank}").write_text(repr(history[-1]["client_accuracy"]))


def test_processes_share_the_work_and_tell_the_same(tmp_path: Path) -> None:
    run_group(run_in_a_group, str(tmp_path), processes=2)
    chosen = parse({"model": SMALL, **config()})
    _, history = run_rounds(Training(chosen, prepare(chosen, data=tiny_images(240))))
    texts = {path.read_text() for path in tmp_path.iterdir()}
    assert texts == {repr(history[-1]["client_accuracy"])}


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"train": {"statistics": "test_batch"}}, "the statistics of a batch would be those of"),
        ({"engine": {"name": "flower"}}, "devices keep their data"),
    ],
)
def test_what_cannot_be_scored_is_refused(sections: dict[str, Any], sentence: str) -> None:
    given = {"model": SMALL, **sections}
    given["train"] = {"evaluate_clients": "global", **sections.get("train", {})}
    with pytest.raises(ConfigError) as caught:
        prepare(parse(given), data=tiny_images(240))
    assert str(caught.value).startswith(f"train.evaluate_clients: {sentence}")


def test_clients_whom_nothing_tells_apart_are_refused() -> None:
    x = torch.randn(60, 3)
    data = dataset((x, x[:, :1]), (x, x[:, :1]))
    given = {"clients": {"count": 6, "per_round": 2}, "train": {"evaluate_clients": "global"}}
    with pytest.raises(ConfigError, match="evaluate_clients: needs test examples that are"):
        prepare(parse({"model": SMALL, **given}), data=data)
