"""All steps of a stack in one call: those that the same kernels take one by one with torch's loss
and optimisers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from submodel.algorithm.rounds import initial_state, step
from submodel.algorithm.types import Setup, State
from submodel.engines.native.library import find_compiler
from submodel.engines.native.training import WholeTraining
from submodel.model.cost import CostModel
from tests.support.common import tiny_images
from tests.support.engines import native_engine, setup_of, updates

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")
TOLERANCE = 1e-5
"""Float32 sums in another order, over a handful of steps of the same kernels."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One word for every stack that was trained in one call."""
    stacks: list[str] = []
    train = WholeTraining.train

    def count(self: WholeTraining, *args: Any) -> Any:
        stacks.append("trained")
        return train(self, *args)

    monkeypatch.setattr(WholeTraining, "train", count)
    return stacks


def step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WholeTraining, "can_train", lambda *_: False)


WORKS: dict[str, dict[str, Any]] = {
    "momentum": {"local": {"momentum": 0.9}},
    "no momentum": {"local": {"momentum": 0.0, "weight_decay": 0.01}},
    "nesterov": {"local": {"nesterov": True, "weight_decay": 0.01}},
    "clip": {"local": {"clip": 0.1}},
    "steps": {"local": {"steps": 5, "step_schedule": "cosine", "warmup_steps": 2}},
    "absent labels": {"local": {"absent_labels": "leave_out"}},
    "absent labels of nought": {"local": {"absent_labels": "zero"}},
    "coordinates": {
        "scheme": {"granularity": "coordinate"},
        "local": {"absent_labels": "leave_out", "clip": 1.0},
    },
}


@pytest.mark.parametrize("case", WORKS)
def test_updates_are_those_of_single_steps(
    case: str, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients of 8 and 9 examples in batches of 4: the last batch of some has one."""
    loss = nn.CrossEntropyLoss(label_smoothing=0.1 if case == "absent labels" else 0.0)
    is_plain = WORKS[case]["local"].get("absent_labels") is None
    setup = setup_of("cnn", tiny_images(), cross_entropy if is_plain else loss, **WORKS[case])
    actual = updates(native_engine(setup), setup)
    assert calls
    calls.clear()
    step_by_step(monkeypatch)
    expected = updates(native_engine(setup), setup)
    assert not calls
    assert actual.keys() == expected.keys()
    for client, update in expected.items():
        assert actual[client].examples_used == update.examples_used
        assert actual[client].loss == pytest.approx(update.loss, rel=TOLERANCE)
        for name, tensor in update.tensors.items():
            torch.testing.assert_close(
                actual[client].tensors[name], tensor, rtol=TOLERANCE, atol=TOLERANCE
            )


def last_state(setup: Setup) -> State:
    engine, state = native_engine(setup), initial_state(setup)
    costs = CostModel(setup.module, setup.clients.dataset.example)
    for _ in range(3):
        state, _ = step(setup, state, engine, costs)
    return state


def test_momenta_are_kept_over_rounds(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    setup = setup_of("cnn", local={"optimiser_state": "kept"})
    actual = last_state(setup)
    assert calls
    step_by_step(monkeypatch)
    expected = last_state(setup)
    for mine, other in (
        (actual.tensors, expected.tensors),
        (actual.client_slots, expected.client_slots),
    ):
        assert mine.keys() == other.keys()
        for name, tensor in other.items():
            torch.testing.assert_close(mine[name], tensor, rtol=1e-4, atol=1e-5, equal_nan=True)


OTHERS: dict[str, dict[str, Any]] = {
    "another optimiser": {"local": {"optimiser": "adam"}},
    "held near": {"local": {"proximal": 0.1}},
    "pieces": {"local": {"accumulate": 2}},
    "all examples at once": {"local": {"batch_size": 0}},
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_is_not_for_one_call_is_trained_step_by_step(case: str, calls: list[str]) -> None:
    setup = setup_of("cnn", tiny_images(), **OTHERS[case])
    assert len(updates(native_engine(setup), setup)) == 7
    assert not calls


def test_an_update_that_is_not_finite_stays_with_its_client() -> None:
    setup = setup_of("cnn", data={"partition": "iid"})
    expected = updates(native_engine(setup), setup)
    setup.clients.dataset.train.x[setup.clients.indices(3)] = float("nan")
    actual = updates(native_engine(setup), setup)
    for client, update in actual.items():
        for name, tensor in update.tensors.items():
            if client == 3:
                assert not torch.isfinite(tensor).all()
            else:
                assert torch.equal(tensor, expected[client].tensors[name])
