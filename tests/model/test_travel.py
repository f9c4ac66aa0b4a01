"""Untrained parts are not sent back, and untrained uncut parts are sent once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import submodel
from submodel.algorithm.execution import Engine
from submodel.algorithm.round_statistics import RoundReport
from submodel.algorithm.rounds import initial_state, output_step, step
from submodel.algorithm.types import Setup, State
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.serial import SerialEngine
from submodel.federation.device import DeviceOptions
from submodel.federation.own_data import OwnData
from submodel.federation.server import over_devices
from submodel.federation.wire import Message
from submodel.model.cost import CostModel
from submodel.report.tables import cost_rows
from submodel.runs.training import Training
from tests.support.common import tiny_images
from tests.support.devices import LocalChannel
from tests.support.schemes import VARIANTS

WIDTH = 16
STEM, HIDDEN, HEAD = 64 * WIDTH + WIDTH, WIDTH * 12 + 12, 12 * 10 + 10
FROZEN = ("1.weight", "1.bias")
"""The first of three layers: 64 pixels to 16 units to 12 to 10 classes."""


def half_frozen() -> nn.Module:
    """Make a net whose first layer is not trained."""
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 12), nn.Linear(12, 10)
    layers[1].requires_grad_(False)
    return nn.Sequential(*layers)


def setup_of(whole: bool = True, **sections: Any) -> Setup:
    """Make four clients; with ``whole``, the axis of the frozen layer is not cut."""
    values: dict[str, Any] = {
        "model": {"name": "own"},
        "data": {"name": "own", "partition": "iid"},
        "clients": {"count": 4, "per_round": 4, "capacities": [0.5]},
        "scheme": {"name": "static"},
        "local": {"lr": 0.05, "absent_labels": "keep"},
        "axes": {"whole": ["1"]} if whole else {},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return prepare(parse(values), half_frozen(), tiny_images())


def rounds(setup: Setup, engine: Engine, count: int = 2) -> tuple[State, RoundReport]:
    costs = CostModel(setup.module, setup.clients.dataset.example)
    state = initial_state(setup)
    for _ in range(count):
        state, report = step(setup, state, engine, costs)
    return state, report


def test_a_frozen_layer_that_is_never_cut_is_sent_once() -> None:
    setup = setup_of()
    start, (state, report) = initial_state(setup), rounds(setup, SerialEngine(setup))
    held = 4 * (WIDTH * 6 + 6 + 6 * 10 + 10)  # float32; half of the 12 units
    assert report.bytes_down == report.bytes_up == 4 * held
    assert report.bytes_once == 4 * STEM
    assert report.weights_covered == held / 4 / (HIDDEN + HEAD)  # of the trained part
    for name, tensor in start.tensors.items():
        assert torch.equal(tensor, state.tensors[name]) == (name in FROZEN), name
    (full, half) = cost_rows(setup)
    assert (full["bytes"], half["bytes"]) == (8 * (HIDDEN + HEAD), 2 * held)


def test_of_a_frozen_layer_that_is_cut_a_part_goes_out_every_round_and_none_comes_back() -> None:
    setup = setup_of(whole=False)
    assert setup.travel.untrained_names == set(FROZEN)
    assert not setup.travel.base_names
    _, report = rounds(setup, SerialEngine(setup))
    trained = 8 * 6 + 6 + 6 * 10 + 10
    assert report.bytes_up == 4 * 4 * trained
    assert report.bytes_down == 4 * 4 * (trained + 64 * 8 + 8)
    assert report.bytes_once == 0


def test_masks_of_single_weights_leave_no_tensor_whole() -> None:
    setup = setup_of(whole=False, scheme={"name": "random", "granularity": "coordinate"})
    assert not setup.travel.base_names
    state, _ = rounds(setup, SerialEngine(setup))
    before = initial_state(setup).tensors
    assert all(torch.equal(before[name], state.tensors[name]) for name in FROZEN)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_scheme_trains_around_what_is_frozen_alike_on_both_engines(variant: str) -> None:
    sections = VARIANTS[variant]
    single = sections["scheme"].get("granularity") == "coordinate"
    setup = setup_of(whole=not single, **sections)
    (one, report), (two, _) = (
        rounds(setup, SerialEngine(setup)),
        rounds(setup, BatchedEngine(setup, always=True)),
    )
    before = initial_state(setup).tensors
    for name, tensor in one.tensors.items():
        torch.testing.assert_close(tensor, two.tensors[name], rtol=1e-5, atol=1e-6)
        assert name not in FROZEN or single or torch.equal(before[name], tensor)
    assert report.bytes_up < report.bytes_down + report.bytes_once
    assert any(not torch.equal(before[n], one.tensors[n]) for n in before)


@pytest.mark.parametrize(
    "sections",
    [
        {"merge": {"projection": "ball", "radius": 0.1}},
        {"merge": {"projection": "box", "radius": 0.001}},
        {"server": {"name": "adam"}},
    ],
    ids=["ball", "box", "adam"],
)
def test_what_follows_the_merge_leaves_frozen_values_alone(sections: dict[str, Any]) -> None:
    setup = setup_of(**sections)
    state, _ = rounds(setup, SerialEngine(setup), 1)
    before = initial_state(setup)
    assert all(torch.equal(before.tensors[n], state.tensors[n]) for n in FROZEN)
    assert not any(n.endswith(FROZEN) for n in state.memory)
    costs = CostModel(setup.module, setup.clients.dataset.example)
    last = output_step(setup, state, SerialEngine(setup), costs, smoothness=10.0)
    assert all(torch.equal(before.tensors[n], last.tensors[n]) for n in FROZEN)
    assert last.tensors.keys() == state.tensors.keys()


@pytest.mark.slow
def test_a_run_tells_what_is_sent_once_and_resumes_to_the_same_bytes(tmp_path: Any) -> None:
    config = {
        "data": {"partition": "iid"},
        "clients": {"count": 4, "per_round": 4, "capacities": [1, 0.5]},
        "axes": {"whole": ["1"]},
        "local": {"absent_labels": "keep"},
        "train": {"rounds": 3, "checkpoint_every": 1},
    }
    data = tiny_images()
    whole = submodel.train(half_frozen(), data, config=config, out=tmp_path / "whole")
    assert whole.history[0]["bytes_once"] == 4 * STEM
    first = {**config, "train": {"rounds": 1, "checkpoint_every": 1}}
    submodel.train(half_frozen(), data, config=first, out=tmp_path / "parts")
    last = submodel.train(half_frozen(), data, config=config, out=tmp_path / "parts", resume=True)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, last.model.state_dict()[name]), name


class TestDevices:
    """The base in messages to devices."""

    @staticmethod
    def training(**sections: Any) -> Training:
        values: dict[str, Any] = {
            "model": {"name": "tests.model.test_travel:half_frozen"},
            "data": {"examples": 120, "test_examples": 40},
            "clients": {"count": 2, "per_round": 2, "capacities": [1, 0.5]},
            "axes": {"whole": ["1"]},
            "engine": {"name": "flower", "device": "cpu"},
            "devices": {"least": 2, "deadline": 5},
            **sections,
        }
        config = parse(values)
        return Training(config, prepare(config))

    @staticmethod
    def carried(channel: LocalChannel) -> list[bool]:
        """Return for every sent task whether it had the base."""
        messages = [
            Message.from_bytes(payload) for _, kind, payload in channel.sent if kind == "train"
        ]
        return [any(name.startswith("base/") for name in p.tensors) for p in messages]

    def test_a_device_gets_the_base_once_and_the_result_is_that_of_one_process(self) -> None:
        training = self.training()
        channel = LocalChannel({node: DeviceOptions(OwnData(part=node)) for node in range(2)})
        devices = over_devices(training, channel)
        assert devices.engine is not None
        state, report = rounds(devices.setup, devices.engine, 3)
        expected, _ = rounds(training.setup, SerialEngine(training.setup), 3)
        assert all(torch.equal(t, state.tensors[n]) for n, t in expected.tensors.items())
        assert self.carried(channel) == [True, True, False, False, False, False]
        assert not report.missing
        # a restarted server asks for present devices, and learns which have the base
        again = over_devices(training, channel)
        assert again.engine is not None
        rounds(again.setup, again.engine, 1)
        assert self.carried(channel)[6:] == [False, False]

    def test_whoever_lost_the_base_misses_a_round_and_gets_it_again(self) -> None:
        channel = LocalChannel({node: DeviceOptions(OwnData(part=node)) for node in range(2)})
        devices = over_devices(self.training(), channel)
        setup, engine = devices.setup, devices.engine
        assert engine is not None
        costs = CostModel(setup.module, setup.clients.dataset.example)
        state, _ = step(setup, initial_state(setup), engine, costs)
        del channel.bases[0]
        state, report = step(setup, state, engine, costs)
        assert "must be sent again" in report.missing["0"]
        state, report = step(setup, state, engine, costs)
        assert not report.missing
        assert self.carried(channel) == [True, True, False, False, True, False]

    def test_half_precision_is_for_what_travels_every_round(self) -> None:
        training = self.training(devices={"least": 2, "deadline": 5, "transport": "half"})
        channel = LocalChannel({node: DeviceOptions(OwnData(part=node)) for node in range(2)})
        devices = over_devices(training, channel)
        assert devices.engine is not None
        rounds(devices.setup, devices.engine, 1)
        base = training.setup.travel.of_base(initial_state(training.setup).tensors)
        assert all(torch.equal(base[n], t) for n, t in channel.bases[1].tensors.items())

    def test_another_base_than_the_task_is_for_is_not_trained_on(self) -> None:
        channel = LocalChannel({node: DeviceOptions(OwnData(part=node)) for node in range(2)})
        devices = over_devices(self.training(), channel)
        setup, engine = devices.setup, devices.engine
        assert engine is not None
        costs = CostModel(setup.module, setup.clients.dataset.example)
        state, _ = step(setup, initial_state(setup), engine, costs)
        channel.bases[1] = replace(channel.bases[1], digest="0" * 64)
        _, report = step(setup, state, engine, costs)
        assert "differs" in report.missing["1"]
