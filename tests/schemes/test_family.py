"""Every scheme of the family: kinds of model, merge rules, skewed data, both local engines."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from submodel.algorithm.rounds import initial_state, step
from submodel.algorithm.types import Engine, Setup, State
from submodel.config import parse
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.serial import SerialEngine
from submodel.model.cost import CostModel
from submodel.prepare.setup import prepare
from tests.support.common import WIDTHS, tiny_images
from tests.support.engines import EXACT_TOLERANCE, doubled

ROUNDS = 2
Sections = dict[str, dict[str, Any]]
ONE: dict[str, Any] = {"count": 1, "per_round": 1, "capacities": [0.5]}
FAMILY: dict[str, Sections] = {
    "dropout": {"scheme": {"name": "dropout"}},
    "ordered": {"scheme": {"name": "ordered"}},
    "distilled": {"scheme": {"name": "ordered", "distill": 1.0}},
    "partition": {
        "scheme": {"name": "partition"},
        "clients": {"per_round": 2, "capacities": [0.5]},
    },
    "importance": {"scheme": {"name": "importance"}},
    "importance of all": {"scheme": {"name": "importance", "scope": "global"}},
    "important weights": {"scheme": {"name": "importance", "granularity": "coordinate"}},
    "pruned": {
        "scheme": {"name": "pruned", "granularity": "coordinate", "every": 1},
        "clients": {"capacities": [0.5]},
    },
    "hierarchical": {
        "scheme": {"name": "hierarchical", "cells": 2, "every": 2},
        "clients": {"capacities": [0.5]},
    },
    "unbiased": {"scheme": {"name": "unbiased"}},
    "masked-sgd": {"scheme": {"name": "masked-sgd", "sequence": "rolling"}, "clients": ONE},
}
CASES = [
    *((name, model, "selective", "iid") for name in FAMILY for model in ("mlp", "preresnet18")),
    *((name, "cnn", "fill_in", "dirichlet") for name in FAMILY if name != "masked-sgd"),
]


def trained(setup: Setup, engine: Engine) -> State:
    state, costs = initial_state(setup), CostModel(setup.module, setup.federation.dataset.example)
    for _ in range(ROUNDS):
        state, report = step(setup, state, engine, costs)
        assert not report.refused
    return state


@pytest.mark.parametrize(("name", "model", "rule", "partition"), CASES)
def test_engines_agree_on_every_scheme(name: str, model: str, rule: str, partition: str) -> None:
    sections: Sections = {
        "model": {"name": model, "width": WIDTHS[model]},
        "data": {"partition": partition, **({"alpha": 2.0} if partition == "dirichlet" else {})},
        "clients": {"count": 5, "per_round": 4, "capacities": [1, 0.5]},
        "local": {"lr": 0.02, "batch_size": 6, "absent_labels": "keep", "clip": 1.0},
        "merge": {"rule": rule},
        "train": {"rounds": ROUNDS},
    }
    for section, values in FAMILY[name].items():
        sections[section] = {**sections.get(section, {}), **values}
    setup = prepare(parse(sections), data=doubled(tiny_images()))
    setup.module.double()
    began = initial_state(setup)
    serial, batched = (trained(setup, make(setup)) for make in (SerialEngine, BatchedEngine))
    assert any(not torch.equal(t, began.tensors[n]) for n, t in serial.tensors.items())
    assert serial.memory.keys() == batched.memory.keys() == began.memory.keys()
    for expected, found in ((serial.tensors, batched.tensors), (serial.memory, batched.memory)):
        for tensor in expected:
            torch.testing.assert_close(
                found[tensor], expected[tensor], rtol=EXACT_TOLERANCE, atol=EXACT_TOLERANCE
            )
