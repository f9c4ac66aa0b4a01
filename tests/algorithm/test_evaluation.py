"""Scores with static norms, on the training part, of single clients, and with reused modules."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import submodel
from submodel.algorithm.dispatch import cut_of
from submodel.algorithm.evaluation import (
    capacity_models,
    client_tests,
    evaluate_capacities,
    evaluate_model,
    evaluation_module,
    evenly,
    score_clients,
)
from submodel.algorithm.rounds import initial_state
from submodel.algorithm.score import cached_module, score
from submodel.algorithm.types import Assignment, Setup, State
from submodel.config import Config, parse
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError
from submodel.data import Dataset, Examples, dataset
from submodel.data.facts import owners_of
from submodel.engines.processes.group import ProcessGroup
from submodel.model.build import build_module, load, tensors_of
from submodel.model.cut import WHOLE, Cut, gather
from submodel.model.norm import StaticBatchNorm, Statistics
from submodel.report.tables import clients_table
from submodel.runs.export import trained_module
from submodel.runs.loop import Interruption, RunFolder, run_rounds
from submodel.runs.training import Training
from tests.support.common import tiny_images, tiny_setup
from tests.support.ranks import run_group


def images(count: int = 260) -> Dataset:
    """Make more than a batch of images of every label, with a smaller last batch."""
    data = tiny_images(count)
    return dataset((data.train.x, data.train.y), (data.train.x[:130] + 0.5, data.train.y[:130]))


def module_of(setup: Setup, state: State, cut: Cut) -> nn.Module:
    module = build_module(setup.module, cut)
    load(module, gather(cut, state.tensors))
    return module


def direct(module: nn.Module, examples: Examples, batch: int) -> tuple[float, float]:
    """Return the mean loss and accuracy with batch statistics, as in training."""
    module.train()
    with torch.no_grad():
        out = torch.cat([module(x) for x in torch.split(examples.x, batch)])
    loss = functional.cross_entropy(out, examples.y)
    return float(loss), float((out.argmax(1) == examples.y).double().mean())


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [1.0, 0.5])
@pytest.mark.parametrize("model", ["cnn", "preresnet18"])
def test_test_batches_are_normalised_by_themselves(model: str, capacity: float) -> None:
    setup = tiny_setup(model, images(), train={"statistics": "test_batch"})
    state = initial_state(setup)
    cut = WHOLE if capacity == 1 else cut_of(setup, Assignment(0, 0, capacity))
    found = evaluate_model(setup, state, cut)
    expected = direct(module_of(setup, state, cut), setup.clients.dataset.test, batch=50)
    assert (found.loss, found.accuracy) == pytest.approx(expected, rel=1e-4)
    other = tiny_setup(model, images())
    assert abs(evaluate_model(other, state, cut).loss - found.loss) > 1e-3


def test_capacities_are_evaluated_alike() -> None:
    setup = tiny_setup("cnn", images(), train={"statistics": "test_batch"})
    state = initial_state(setup)
    scores = evaluate_capacities(setup, state, evaluate_model(setup, state))
    cut = cut_of(setup, Assignment(0, -1, 0.25))
    expected = direct(module_of(setup, state, cut), setup.clients.dataset.test, batch=50)
    assert scores[0.25].loss == pytest.approx(expected[0], rel=1e-4)


def pooled_loss(setup: Setup, state: State, x: Tensor) -> float:
    """Compute statistics layer by layer over all of ``x`` in batches of 200, then the test loss."""
    module = copy.deepcopy(setup.module).train()
    load(module, gather(WHOLE, state.tensors))
    seen: dict[nn.Module, list[Tensor]] = {}
    layers = [layer for layer in module.modules() if isinstance(layer, StaticBatchNorm)]

    def see(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.setdefault(layer, []).append(inputs[0])

    hooks = [layer.register_forward_pre_hook(see) for layer in layers]
    with torch.no_grad():
        for part in torch.split(x, 200):
            module(part)
        for hook in hooks:
            hook.remove()
        for layer in layers:
            inputs = torch.cat(seen[layer])
            layer.statistics = (inputs.mean((0, 2, 3)), inputs.var((0, 2, 3), correction=0))
        test = setup.clients.dataset.test
        return float(functional.cross_entropy(module.eval()(test.x), test.y))


@pytest.mark.slow
@pytest.mark.parametrize("count", [None, 40, 230, 1000])
def test_statistics_of_some_of_the_clients_examples(count: int | None) -> None:
    section = {} if count is None else {"statistics_examples": count}
    setup = tiny_setup("preresnet18", images(), train=section)
    state = initial_state(setup)
    x = setup.clients.dataset.train.x
    if count is not None and count < len(x):
        x = x[evenly(len(x), count, seed=0)]
        assert len(x) == count
    assert evaluate_model(setup, state).loss == pytest.approx(
        pooled_loss(setup, state, x), rel=1e-4
    )


def test_examples_for_statistics_are_spread_and_repeatable() -> None:
    positions = evenly(1003, 100, seed=3)
    assert np.array_equal(positions, evenly(1003, 100, seed=3))
    assert not np.array_equal(positions, evenly(1003, 100, seed=4))
    assert len(set(positions)) == 100
    assert np.abs(positions - np.arange(100) * 10.03).max() < 11
    assert len(set(positions % 10)) == 10  # labels in turn all occur
    assert np.array_equal(evenly(7, 7, seed=0), np.arange(7))


def run_config(**settings: Any) -> Config:
    return parse(
        {
            "model": {"name": "cnn", "width": 4},
            "data": {"partition": "iid"},
            "clients": {"count": 4, "per_round": 4, "capacities": [1, 0.5]},
            "train": {"rounds": 3, "evaluate_every": 2, **settings},
        }
    )


@pytest.mark.slow
def test_the_training_part_is_scored_on_request(tmp_path: Path) -> None:
    config = run_config(evaluate_train=True, statistics="test_batch")
    setup = prepare(config, data=images())
    folder = RunFolder(tmp_path / "run")
    folder.create(config)
    state, history = run_rounds(Training(config, setup), folder)
    assert ["train_eval_loss" in line for line in history] == [False, True, True]
    expected = direct(module_of(setup, state, WHOLE), setup.clients.dataset.train, batch=50)
    last = history[-1]
    found = (last["train_eval_loss"], last["train_eval_accuracy"])
    assert found == pytest.approx(expected, rel=1e-4)
    summary = folder.summary() or {}
    for key in ("test_loss", "test_accuracy", "train_eval_loss", "train_eval_accuracy"):
        assert summary[key] == last[key]
    plain = run_config()
    assert (
        "train_eval_loss" not in run_rounds(Training(plain, prepare(plain, data=images())))[1][-1]
    )


@pytest.mark.slow
def test_exports_keep_the_statistics_of_the_clients(tmp_path: Path) -> None:
    exported = []
    for source in ("clients", "test_batch"):
        config = run_config(statistics=source)
        setup = prepare(config, data=images())
        folder = RunFolder(tmp_path / source)
        folder.create(config)
        training = Training(config, setup)
        state, _ = run_rounds(training, folder)
        module, score, _ = trained_module(training, state, 1.0)
        exported.append((module(setup.clients.dataset.test.x), score))
    assert torch.equal(exported[0][0], exported[1][0])
    assert exported[0][1] == exported[1][1]


def use_cached(net: nn.Module, value: float = 1.0) -> nn.Module:
    tensors = {name: torch.full_like(t, value) for name, t in tensors_of(net).items()}
    with cached_module(net, tensors, WHOLE, "cpu") as module:
        return module


class Counter(nn.Module):
    """Count its calls, so that a second pass differs from the first."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        result: Tensor = self.layer(x) * self.calls
        return result


def hooked() -> nn.Module:
    net = nn.Sequential(nn.Linear(2, 1))
    net[0].register_forward_pre_hook(lambda *_: None)
    return net


def overwritten() -> nn.Module:
    net = nn.Sequential(nn.Linear(2, 1))
    net[0].forward = lambda x: x
    return net


@pytest.mark.parametrize("net", [Counter(), hooked(), overwritten(), nn.LSTM(2, 2)])
def test_a_module_that_may_remember_a_pass_is_built_for_each(net: nn.Module) -> None:
    assert use_cached(net) is not use_cached(net)


def test_large_weights_are_not_kept() -> None:
    net = nn.Linear(1 << 10, 1 << 11)
    assert use_cached(net) is not use_cached(net)


def test_nobody_shares_a_module_that_is_out() -> None:
    net = nn.Sequential(nn.Linear(2, 1, bias=False))
    ones, twos = ({"0.weight": torch.full((1, 2), value)} for value in (1.0, 2.0))
    with (
        cached_module(net, ones, WHOLE, "cpu") as one,
        cached_module(net, twos, WHOLE, "cpu") as two,
    ):
        assert [m(torch.ones(1, 2)).tolist() for m in (one, two)] == [[[2.0]], [[4.0]]]


def test_a_module_is_not_lent_again_after_an_error() -> None:
    net = nn.Sequential(nn.Linear(2, 1))
    first = use_cached(net)
    with pytest.raises(ZeroDivisionError), cached_module(net, tensors_of(net), WHOLE, "cpu"):
        _ = 1 / 0
    assert use_cached(net) is not first


@pytest.mark.parametrize("model", ["cnn", "preresnet18"])
@pytest.mark.parametrize("capacity", [1.0, 0.5])
def test_later_evaluations_are_to_the_bit_those_of_fresh_modules(
    model: str, capacity: float
) -> None:
    """In between there are other weights, another cut of the same shape, and other statistics."""
    setup = tiny_setup(model, tiny_images(60))
    state = initial_state(setup)
    cuts = [WHOLE if capacity == 1 else cut_of(setup, Assignment(r, 0, capacity)) for r in (0, 1)]
    other = replace(state, tensors={n: t * 1.5 for n, t in state.tensors.items()})
    by_batch = replace(setup, statistics=Statistics("test_batch"))
    before = [evaluate_model(setup, state, cuts[0]), evaluate_model(by_batch, state, cuts[0])]
    after = [evaluate_model(by_batch, other, cuts[1]), evaluate_model(setup, other, cuts[1])]
    fresh = tiny_setup(model, tiny_images(60))
    assert evaluate_model(fresh, other, cuts[1]) == after[1] != before[0]
    fresh = replace(tiny_setup(model, tiny_images(60)), statistics=by_batch.statistics)
    assert evaluate_model(fresh, other, cuts[1]) == after[0] != before[1]


SMALL = {"name": "mlp", "width": 8}


def setup_of(data: Dataset, /, **sections: Any) -> Setup:
    clients = {"count": 6, "per_round": 2, "capacities": [1, 0.5]}
    if data.owners is not None:
        clients["count"] = len(data.owners)
    return prepare(parse({"model": SMALL, "clients": clients, **sections}), data=data)


def at_random(setup: Setup) -> State:
    """Make a state whose models answer at random."""
    state, draws = initial_state(setup), torch.Generator().manual_seed(1)
    tensors = {n: torch.randn(t.shape, generator=draws) / 4 for n, t in state.tensors.items()}
    return replace(state, tensors=tensors)


def module_for(setup: Setup, state: State, capacity: float) -> nn.Module:
    tensors, cut = capacity_models(setup, state).get(capacity, (state.tensors, WHOLE))
    with evaluation_module(setup, replace(state, tensors=tensors), cut) as module:
        return copy.deepcopy(module)  # cached modules are returned


def repeated(examples: Examples, times: Tensor) -> Examples:
    return examples.take(torch.repeat_interleave(torch.arange(len(examples)), times))


METRICS = {"metrics": ["accuracy", "f1", "calibration"]}


@pytest.mark.parametrize("partition", ["labels", "iid", "dirichlet"])
@pytest.mark.parametrize("model", ["submodel", "global"])
def test_clients_are_scored_as_on_the_test_examples_of_their_labels_as_often(
    partition: str, model: Any
) -> None:
    """An example of label l has the weight c_l / n_l, so it is repeated in proportion."""
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
        module = module_for(setup, state, capacity if model == "submodel" else 1.0)
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
    owners = owners_of(names[: len(data.train.y)], test_names)
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
        module = module_for(setup, state, one.capacity)
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
    """Stop a run in its third round."""

    def measure(self, before: State, after: State) -> dict[str, Any]:  # noqa: ARG002
        if after.round == 3:
            raise KeyboardInterrupt
        return {}


@pytest.mark.slow
def test_a_resumed_run_tells_the_same_of_clients(tmp_path: Path) -> None:
    with pytest.raises(Interruption):
        train(tmp_path / "run", callbacks=[Stops()])
    train(tmp_path / "run", resume=True)
    assert without_seconds(submodel.open(tmp_path / "run").history) == without_seconds(
        train().history
    )
    (tmp_path / "run/summary.json").unlink()  # as if killed before its last write
    train(tmp_path / "run", resume=True)
    summary = submodel.open(tmp_path / "run").summary
    assert summary is not None
    assert summary["client_loss"] == train().history[-1]["client_loss"]


def run_in_a_group(group: ProcessGroup, folder: str) -> None:
    chosen = parse({"model": SMALL, **config()})
    _, history = run_rounds(Training(chosen, prepare(chosen, data=tiny_images(240))), group=group)
    Path(folder, f"{group.rank}").write_text(repr(history[-1]["client_accuracy"]))


@pytest.mark.slow
def test_processes_share_the_work_and_tell_the_same(tmp_path: Path) -> None:
    run_group(run_in_a_group, str(tmp_path), processes=2)
    chosen = parse({"model": SMALL, **config()})
    _, history = run_rounds(Training(chosen, prepare(chosen, data=tiny_images(240))))
    texts = {path.read_text() for path in tmp_path.iterdir()}
    assert texts == {repr(history[-1]["client_accuracy"])}


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"train": {"statistics": "test_batch"}}, "statistics"),
        ({"engine": {"name": "flower"}}, "devices"),
    ],
)
def test_what_cannot_be_scored_is_refused(sections: dict[str, Any], reason: str) -> None:
    given = {"model": SMALL, **sections}
    given["train"] = {"evaluate_clients": "global", **sections.get("train", {})}
    with pytest.raises(ConfigError, match=rf"^train\.evaluate_clients: .*{reason}"):
        prepare(parse(given), data=tiny_images(240))


def test_clients_whom_nothing_tells_apart_are_refused() -> None:
    x = torch.randn(60, 3)
    data = dataset((x, x[:, :1]), (x, x[:, :1]))
    given = {"clients": {"count": 6, "per_round": 2}, "train": {"evaluate_clients": "global"}}
    with pytest.raises(ConfigError, match=r"^train\.evaluate_clients: .*test examples"):
        prepare(parse({"model": SMALL, **given}), data=data)
