"""Contract 6 for every scheme: kinds of model, merge rules, skewed data; devices to the bit."""

from __future__ import annotations

import pytest
import torch

from submodel.algorithm.execution import Engine
from submodel.algorithm.rounds import initial_state, step
from submodel.algorithm.types import Setup, State
from submodel.config import parse
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.serial import SerialEngine
from submodel.errors import ConfigError
from submodel.federation.device import Means
from submodel.federation.own_data import OwnData
from submodel.federation.server import over_devices
from submodel.model.cost import CostModel
from submodel.prepare.setup import prepare
from submodel.runs.training import Training
from tests.support.common import WIDTHS, tiny_images
from tests.support.devices import Neighbours
from tests.support.engines import EXACT_TOLERANCE, doubled
from tests.support.schemes import VARIANTS, Sections, joined

ROUNDS = 2
LOCAL_CASES = [
    *((name, model, "selective", "iid") for name in VARIANTS for model in ("mlp", "preresnet18")),
    *((name, "cnn", "fill_in", "dirichlet") for name in VARIANTS if "masked-sgd" not in name),
]


def trained(setup: Setup, engine: Engine) -> State:
    state, costs = initial_state(setup), CostModel(setup.module, setup.clients.dataset.example)
    for _ in range(ROUNDS):
        state, report = step(setup, state, engine, costs)
        assert not report.refusals
    return state


@pytest.mark.parametrize(("name", "model", "rule", "partition"), LOCAL_CASES)
def test_local_engines_agree_on_every_scheme(
    name: str, model: str, rule: str, partition: str
) -> None:
    sections: Sections = {
        "model": {"name": model, "width": 2 if model == "preresnet18" else WIDTHS[model]},
        "data": {"partition": partition, **({"alpha": 2.0} if partition == "dirichlet" else {})},
        "clients": {"count": 5, "per_round": 4, "capacities": [1, 0.5]},
        "local": {"lr": 0.02, "batch_size": 6, "absent_labels": "keep", "clip": 1.0},
        "merge": {"rule": rule},
        "train": {"rounds": ROUNDS},
    }
    choice = joined(sections, VARIANTS[name], {"data": sections["data"]})
    setup = prepare(parse(choice), data=doubled(tiny_images()))
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


@pytest.mark.parametrize("name", VARIANTS)
def test_devices_give_the_bytes_of_this_process_for_every_scheme(name: str) -> None:
    values = joined(
        {
            "model": {"name": "mlp", "width": 8},
            "data": {"examples": 60, "test_examples": 20},
            "clients": {"count": 4, "per_round": 3, "capacities": [1, 0.5]},
            "train": {"rounds": ROUNDS},
            "engine": {"name": "flower", "device": "cpu"},
            "devices": {"least": 4, "deadline": 0.5},
        },
        VARIANTS[name],
    )
    config = parse(values)
    nodes = {17 * part + 5: Means(OwnData(part=part)) for part in range(4)}
    if "masked-sgd" in name:
        with pytest.raises(ConfigError, match="single machine"):
            over_devices(Training(config, prepare(config)), Neighbours(nodes))
        return
    expected = trained(setup := prepare(config), SerialEngine(setup))
    devices = over_devices(Training(config, prepare(config)), Neighbours(nodes))
    assert devices.engine is not None
    found = trained(devices.setup, devices.engine)
    for here, there in ((expected.tensors, found.tensors), (expected.memory, found.memory)):
        assert here.keys() == there.keys()
        assert all(torch.equal(tensor, there[tensor_name]) for tensor_name, tensor in here.items())
