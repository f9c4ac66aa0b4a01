"""Contract 6, serial = batched within the stated tolerance, for all work and every scheme."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from submodel.algorithm.dispatch import Dispatcher
from submodel.algorithm.execution import Engine
from submodel.algorithm.rounds import initial_state, plan, step
from submodel.algorithm.types import PartitionedClients, Setup, State, Task
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError
from submodel.data import dataset
from submodel.engines.batched import engine as batched
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.batched.forward import UnstackableError, WideForward
from submodel.engines.serial import SerialEngine
from submodel.federation.device import DeviceOptions
from submodel.federation.own_data import OwnData
from submodel.federation.server import over_devices
from submodel.model.cost import CostModel
from submodel.model.norm import StaticBatchNorm
from submodel.runs.loop import run_rounds
from submodel.runs.training import Training
from tests.support.common import WIDTHS, tiny_images
from tests.support.devices import LocalChannel
from tests.support.engines import (
    EXACT_TOLERANCE,
    TOLERANCE,
    assert_equal_updates,
    doubled,
    own_setup,
    setup_of,
    tasks_of,
    updates,
)
from tests.support.schemes import CASES, VARIANTS, Sections, joined, sections_of

MODELS = ("mlp", "cnn", "preresnet18")


@pytest.mark.every(2)
@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("scheme", "granularity"), CASES)
def test_batched_is_serial_for_every_scheme(model: str, scheme: str, granularity: str) -> None:
    sections = sections_of(scheme, granularity, {"local": {"clip": 1.0}})
    setup = setup_of(model, doubled(tiny_images()), **sections)
    setup.module.double()
    assert_equal_updates(setup, EXACT_TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("granularity", ["unit", "coordinate"])
def test_single_precision_agrees_where_batch_norm_is_well_conditioned(
    model: str, granularity: str
) -> None:
    """With a batch of one, batch norm divides differences of rounding errors by its epsilon."""
    parts = {"partition": "iid"}
    scheme = {"granularity": granularity}
    setup = setup_of(model, tiny_images(108), data=parts, scheme=scheme, local={"batch_size": 10})
    assert_equal_updates(setup)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize("absent", ["keep", "zero", "leave_out"])
@pytest.mark.parametrize("granularity", ["unit", "coordinate"])
def test_batched_is_serial_for_absent_labels(model: str, absent: str, granularity: str) -> None:
    local = {"absent_labels": absent}
    assert_equal_updates(setup_of(model, local=local, scheme={"granularity": granularity}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "local",
    [
        {"momentum": 0.0},
        {"weight_decay": 0.1},
        {"clip": 0.1},
        {"clip": 0.5, "weight_decay": 0.1, "epochs": 2},
        {"steps": 5},
        {"steps": 1},
        {"batch_size": 0, "epochs": 2},
        {"batch_size": 1},
    ],
)
def test_batched_is_serial_for_local_work(local: dict[str, Any]) -> None:
    for granularity in ("unit", "coordinate"):
        assert_equal_updates(setup_of("cnn", local=local, scheme={"granularity": granularity}))


class VeryRagged:
    """Clients with 1, 2, 3, ... examples."""

    def size(self, client: int) -> int:
        return client + 1

    def indices(self, client: int) -> Any:
        return np.arange(client + 1) * 5 % 60


@pytest.mark.slow
@pytest.mark.parametrize("local", [{"epochs": 3}, {"steps": 7}, {"batch_size": 0}])
def test_clients_of_very_different_sizes_are_exact(local: dict[str, Any]) -> None:
    setup = setup_of("cnn", clients={"count": 12, "per_round": 12}, local=local)
    ragged = PartitionedClients(setup.clients.dataset, VeryRagged())
    assert_equal_updates(replace(setup, clients=ragged))


def test_the_batched_engine_repeats_itself_bit_for_bit() -> None:
    setup = setup_of("preresnet18")
    first = updates(BatchedEngine(setup), setup)
    engine = BatchedEngine(setup)
    for again in (updates(engine, setup), updates(engine, setup)):
        for client, update in first.items():
            torch.testing.assert_close(again[client].tensors, update.tensors, rtol=0, atol=0)


def test_results_do_not_depend_on_how_many_tasks_are_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = setup_of("cnn")
    expected = updates(BatchedEngine(setup), setup)
    monkeypatch.setattr(batched, "COLLECTED_VALUES", 1)
    for client, update in updates(BatchedEngine(setup), setup).items():
        torch.testing.assert_close(
            expected[client].tensors, update.tensors, rtol=TOLERANCE, atol=TOLERANCE
        )


def test_tasks_are_pulled_only_as_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = setup_of("cnn", clients={"capacities": [1.0]})
    one = sum(t.numel() for t in next(tasks_of(setup)).tensors.values())
    monkeypatch.setattr(batched, "COLLECTED_VALUES", 2 * one)
    pulled, most = 0, 0

    def counted() -> Iterator[Task]:
        nonlocal pulled
        for task in tasks_of(setup):
            pulled += 1
            yield task

    for done, _ in enumerate(BatchedEngine(setup).run(counted())):
        most = max(most, pulled - done)
    assert (pulled, most) == (7, 2)


def test_stacks_are_bounded_by_their_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = setup_of("cnn", clients={"capacities": [1.0]})
    seen: list[int] = []
    call = WideForward.__call__

    def spy(self: WideForward, wide: Any, clients: int, x: Tensor) -> Tensor:
        seen.append(clients)
        return call(self, wide, clients, x)

    monkeypatch.setattr(WideForward, "__call__", spy)
    values = 4 * 8 * 8 * 8  # batch x channels x image
    monkeypatch.setattr(batched, "STACKED_BYTES", 3 * 4 * values)
    updates(BatchedEngine(setup), setup)
    assert max(seen) == 3
    seen.clear()
    updates(BatchedEngine(setup, always=True), setup)
    assert max(seen) == 7


class Residual(nn.Module):
    """Layers of torch with a skip, a strided 1 x 1 filter and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.skip = nn.Conv2d(4, 6, 1, stride=2, bias=False)
        self.second = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)
        self.last = nn.Linear(6, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.first(x)))
        x = self.second(x) + self.skip(x)
        logits: Tensor = self.last(torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1))
        return logits


def test_torch_layers_and_running_statistics_are_stacked_by_channels() -> None:
    setup = own_setup(Residual())
    assert BatchedEngine(setup)._wide is not None
    assert_equal_updates(setup)


def test_an_own_loss_and_targets_that_are_no_labels() -> None:
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    pairs = dataset((x, x[:, :2].sin()), (x, x[:, :2]))
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    scheme, partition = {"granularity": "coordinate"}, {"partition": "iid"}
    assert_equal_updates(setup_of(net, pairs, functional.mse_loss, scheme=scheme, data=partition))


class LayerNormed(nn.Module):
    """A net that reads each image as eight tokens; no layer has a wide form, so vmap is used."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(8, 6), nn.LayerNorm(6)
        self.scale = nn.Parameter(torch.ones(()))
        self.last = nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(functional.gelu(self.inner(x.squeeze(1)))) * self.scale
        logits: Tensor = self.last(x.mean(1))
        return logits


def test_what_has_no_wide_form_goes_through_vmap() -> None:
    setup = own_setup(LayerNormed(), local={"clip": 0.5})
    engine = BatchedEngine(setup)
    assert engine._wide is None
    assert_equal_updates(setup)
    updates(engine, setup)
    assert engine._refusal is None


class Shifted(nn.Module):
    """A net with a buffer that is cut with the units but never exchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(64, 6), nn.Linear(6, 10)
        self.register_buffer("shift", torch.arange(6).float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(torch.tanh(self.layer(x.flatten(1)) + self.shift))
        return logits


def test_every_client_has_its_own_part_of_a_buffer_that_is_cut_but_not_exchanged() -> None:
    setup = setup_of(Shifted(), scheme={"name": "dropout"})
    assert {len(t.cut.part("shift", torch.arange(6))) for t in tasks_of(setup)} == {3, 6}
    engine = BatchedEngine(setup)
    updates(engine, setup)
    assert engine._wide is None
    assert engine._refusal is None
    assert_equal_updates(setup)


@pytest.mark.parametrize("kind", ["dropout", "control flow", "recurrent"])
def test_what_cannot_be_stacked_is_trained_one_by_one_and_said_so(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    kinds: dict[str, Callable[[], nn.Module]] = {
        "dropout": dropped,
        "control flow": Branching,
        "recurrent": Recurrent,
    }
    setup = own_setup(kinds[kind]())
    with caplog.at_level(logging.WARNING):
        found = updates(BatchedEngine(setup), setup)
    assert len(caplog.messages) == 1
    assert "one client after another" in caplog.messages[0]
    for client, update in updates(SerialEngine(setup), setup).items():
        torch.testing.assert_close(found[client].tensors, update.tensors, rtol=0, atol=0)


def dropped() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, 10))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.flatten(1))
        return out if float(out.sum().detach()) > 0 else 2 * out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.last = nn.GRU(8, 6, batch_first=True), nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.cells(x.squeeze(1))[0][:, -1])
        return logits


class Mixing(nn.Module):
    """A net that seems stackable but mixes channels."""

    def __init__(self, mix: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.mix, self.last = nn.Conv2d(1, 4, 3), mix, nn.LazyLinear(10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.mix(self.layer(x)).flatten(1))
        return logits


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x.softmax(1),
        lambda x: x - x.mean(1, keepdim=True),
        lambda x: x - x.mean(-3, keepdim=True),
        lambda x: x.mean(),
        lambda x: torch.cat([x, x.relu()], 1),
        lambda x: x.flip(1),
        lambda x: x[:, :2],
        lambda x: x + x.mean((2, 3)).sum(),
        lambda x: x.transpose(1, 2),
    ],
)
def test_operators_that_may_mix_clients_are_refused(mix: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(2, 1, 8, 8)
    module = Mixing(lambda x: x)
    module(x)
    module.mix = mix
    with pytest.raises(UnstackableError):
        WideForward(module, x)


def test_one_client_with_a_strided_point_filter_of_few_channels_is_safe() -> None:
    """In channels-last order, oneDNN's gradient would write out of bounds."""
    alone = {"count": 1, "per_round": 1}
    setup = setup_of("preresnet18", clients=alone, data={"partition": "iid"}, local={"steps": 40})
    (update,) = updates(BatchedEngine(setup), setup).values()
    assert all(bool(torch.isfinite(tensor).all()) for tensor in update.tensors.values())


@pytest.mark.slow
@pytest.mark.parametrize("batching", ["auto", "always", "never"])
def test_a_run_takes_the_engine_that_its_configuration_names(batching: str) -> None:
    config = parse(
        {
            "model": {"name": "mlp", "width": 8},
            "clients": {"count": 6, "per_round": 6, "capacities": [1, 0.5]},
            "train": {"rounds": 2},
            "engine": {"batching": batching},
        }
    )
    state, history = run_rounds(Training(config, prepare(config)))
    never = config.engine.model_copy(update={"batching": "never"})
    reference, _ = run_rounds(
        Training(config.model_copy(update={"engine": never}), prepare(config))
    )
    assert len(history) == 2
    torch.testing.assert_close(state.tensors, reference.tensors, rtol=TOLERANCE, atol=TOLERANCE)


def test_static_norm_alone_is_stacked() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), StaticBatchNorm(6), nn.Linear(6, 10))
    assert_equal_updates(own_setup(net))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_mixed_precision_is_the_same_training_with_shorter_numbers(model: str) -> None:
    exact, mixed = (setup_of(model, local={"precision": p}) for p in ("float32", "bfloat16"))
    expected = updates(SerialEngine(exact), exact)
    for engine in (SerialEngine(mixed), BatchedEngine(mixed)):
        for client, update in updates(engine, mixed).items():
            assert update.loss != expected[client].loss
            assert update.loss == pytest.approx(expected[client].loss, rel=0.05)
            assert all(t.dtype == torch.float32 for t in update.tensors.values())


@pytest.mark.slow
def test_stacks_hold_every_client_once_and_the_costliest_work_costs_most() -> None:
    setup = setup_of("preresnet18", clients={"count": 7, "per_round": 7, "capacities": [1, 0.25]})
    assignments = plan(setup, 0)
    for engine in (SerialEngine(setup), BatchedEngine(setup)):
        bundles = engine.bundles(assignments)
        together = [a for bundle in bundles for a in bundle.assignments]
        assert sorted(a.client for a in together) == sorted(a.client for a in assignments)
        each = {b.assignments[0].capacity: b.work / len(b.assignments) for b in bundles}
        assert each[1] > 3 * each[0.25]  # up to 16 times the arithmetic, 4 times the bytes
        for bundle in bundles:
            assert len({a.capacity for a in bundle.assignments}) == 1


def test_a_round_trained_bundle_by_bundle_is_the_round_trained_at_once() -> None:
    setup = setup_of("cnn")
    engine, dispatcher = BatchedEngine(setup), Dispatcher(setup, initial_state(setup), setup.work)
    expected = updates(engine, setup)
    for bundle in engine.bundles(plan(setup, 0)):
        before = dispatcher.task(bundle.assignments[0])
        kept = {n: t.clone() for n, t in before.tensors.items()}
        for update in engine.run([dispatcher.task(a) for a in bundle.assignments]):
            torch.testing.assert_close(
                update.tensors, expected[update.assignment.client].tensors, rtol=1e-5, atol=1e-5
            )
        assert all(torch.equal(before.tensors[n], t) for n, t in kept.items())


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


@pytest.mark.every(2)
@pytest.mark.slow
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


@pytest.mark.slow
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
    nodes = {17 * part + 5: DeviceOptions(OwnData(part=part)) for part in range(4)}
    if "masked-sgd" in name:
        with pytest.raises(ConfigError, match="single machine"):
            over_devices(Training(config, prepare(config)), LocalChannel(nodes))
        return
    expected = trained(setup := prepare(config), SerialEngine(setup))
    devices = over_devices(Training(config, prepare(config)), LocalChannel(nodes))
    assert devices.engine is not None
    found = trained(devices.setup, devices.engine)
    for here, there in ((expected.tensors, found.tensors), (expected.memory, found.memory)):
        assert here.keys() == there.keys()
        assert all(torch.equal(tensor, there[tensor_name]) for tensor_name, tensor in here.items())
