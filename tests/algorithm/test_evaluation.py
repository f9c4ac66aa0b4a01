"""What static batch norm is evaluated with, and scores of the training part, computed directly."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from submodel.algorithm.dispatch import cut_of
from submodel.algorithm.evaluation import evaluate_capacities, evaluate_model, evenly
from submodel.algorithm.rounds import initial_state
from submodel.algorithm.types import Assignment, Setup, State
from submodel.config import Config, parse
from submodel.data import Dataset, Examples, dataset
from submodel.model.build import build_module, load
from submodel.model.cut import WHOLE, Cut, gather
from submodel.model.norm import StaticBatchNorm
from submodel.prepare.setup import prepare
from submodel.runs.export import trained_module
from submodel.runs.loop import RunFolder, run_rounds
from submodel.runs.training import Training
from tests.support.common import tiny_images, tiny_setup


def images(count: int = 260) -> Dataset:
    """More than a batch of every kind, and a last one that is smaller."""
    data = tiny_images(count)
    return dataset((data.train.x, data.train.y), (data.train.x[:130] + 0.5, data.train.y[:130]))


def module_of(setup: Setup, state: State, cut: Cut) -> nn.Module:
    module = build_module(setup.module, cut)
    load(module, gather(cut, state.tensors))
    return module


def direct(module: nn.Module, examples: Examples, batch: int) -> tuple[float, float]:
    """The mean loss and accuracy with every batch normalised by itself: as in training."""
    module.train()
    with torch.no_grad():
        out = torch.cat([module(x) for x in torch.split(examples.x, batch)])
    loss = functional.cross_entropy(out, examples.y)
    return float(loss), float((out.argmax(1) == examples.y).double().mean())


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
    """Layer by layer, mean and variance over all of ``x`` in batches of 200, then the test loss."""
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
    assert len(set(positions % 10)) == 10  # labels that come in turns are all met
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
