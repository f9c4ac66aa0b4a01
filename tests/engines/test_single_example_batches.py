"""Batches of one example: reported before they fail, left out on request, on every engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from submodel.algorithm.dispatch import Dispatcher
from submodel.algorithm.execution import Engine
from submodel.algorithm.rounds import initial_state, output_step, step
from submodel.algorithm.types import Assignment, PartitionedClients, Setup
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError, DataError
from submodel.data import Dataset, dataset
from submodel.data.partitions import Dirichlet, Draws
from submodel.engines import single_examples
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.estimate import Estimate
from submodel.engines.serial import SerialEngine
from submodel.federation.device import Device, DeviceOptions
from submodel.federation.facts import Facts, run_head
from submodel.federation.own_data import OwnData
from submodel.federation.server import over_devices
from submodel.federation.wire import task_message
from submodel.model.axes import Dimension
from submodel.model.build import build_module
from submodel.model.cost import BACKWARD, CostModel
from submodel.model.cut import WHOLE
from submodel.runs.training import Training
from submodel.tasks.training import LocalWork, batches
from tests.support.devices import LocalChannel
from tests.support.rounds import step_of

INPUTS, CLASSES = 6, 3


def normed(width: int = 8) -> nn.Module:
    """Make a norm with one value per channel and example."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(INPUTS, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, CLASSES),
    )


def pixels(side: int) -> nn.Module:
    """Make a norm over images with a number of pixels per side."""
    return nn.Sequential(
        nn.Linear(INPUTS, 4 * side * side),
        nn.Unflatten(1, (4, side, side)),
        nn.Conv2d(4, 8, 1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )


class Grouped(nn.Module):
    """A net with two channels per group, of which a sub-model of half the channels has one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        groups = 4
        hidden = nn.functional.group_norm(hidden, groups)
        out: Tensor = self.head(hidden)
        return out


class ByHand(nn.Module):
    """A hand-written norm that returns NaN for a single example."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        out: Tensor = self.head((hidden - hidden.mean(0)) / hidden.std(0))
        return out


def some_data(total: int, kind: torch.dtype = torch.float64) -> Dataset:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(total, INPUTS, generator=draw, dtype=kind)
    y = torch.randint(0, CLASSES, (total,), generator=draw)
    return dataset((x, y), (x, y))


TABLE: dict[str, tuple[Dimension, ...]] = {
    "first.weight": ("hidden", None),
    "first.bias": ("hidden",),
    "head.weight": (None, "hidden"),
}
"""Axes of `Grouped` unlike those of a trace: the number of groups is the same in every sub-model.
"""


def make_setup(
    module: nn.Module,
    total: int = 52,
    axes: Mapping[str, tuple[Dimension, ...]] | None = None,
    **sections: Any,
) -> Setup:
    """Make five clients with 11, 11, 10, 10 and 10 examples, in batches of 5."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "data": {"partition": "iid"},
        "clients": {"count": 5, "per_round": 5, "capacities": [1, 0.5]},
        "local": {"batch_size": 5, "lr": 0.05, "absent_labels": "keep"},
        "scheme": {"name": "static"},
    }
    for name, values in sections.items():
        settings[name] = settings.get(name, {}) | values
    return prepare(parse(settings), module.double(), some_data(total), axes)


def test_drop_last_leaves_out_what_is_smaller_but_never_all() -> None:
    work = LocalWork(lr=1, epochs=2, batch_size=4, drop_last=True)
    assert [len(b) for b in batches(10, work, 0, 0, 0)] == [4, 4] * 2
    assert [len(b) for b in batches(8, work, 0, 0, 0)] == [4, 4] * 2
    assert [len(b) for b in batches(3, work, 0, 0, 0)] == [3] * 2
    assert [len(b) for b in batches(10, replace(work, batch_size=None), 0, 0, 0)] == [10] * 2
    steps = replace(work, epochs=None, steps=5)
    found = list(batches(10, steps, 0, 0, 0))
    assert [len(b) for b in found] == [4] * 5
    kept = list(batches(10, replace(steps, drop_last=False, steps=6), 0, 0, 0))
    for mine, theirs in zip(found[:4], [*kept[:2], *kept[3:5]], strict=True):
        assert np.array_equal(mine, theirs)  # the same examples in later passes as well


@pytest.mark.slow
@pytest.mark.parametrize("local", [{"epochs": 2}, {"steps": 5}, {"batch_size": 20}])
def test_engines_agree_on_what_is_left_out_and_book_it(local: dict[str, Any]) -> None:
    setup = make_setup(normed(), local={"drop_last": True, **local})
    costs = CostModel(setup.module, setup.clients.dataset.example)
    results = [
        step(setup, initial_state(setup), engine, costs)
        for engine in (SerialEngine(setup), BatchedEngine(setup, always=True))
    ]
    (one, of_one), (many, of_many) = results
    torch.testing.assert_close(many.tensors, one.tensors, rtol=0, atol=1e-10)
    assert not of_one.refusals
    assert of_one.flops == of_many.flops
    assert abs(of_one.train_loss - of_many.train_loss) < 1e-10
    estimate, expected = Estimate(setup), 0
    for client in range(5):
        sizes = [len(b) for b in batches(setup.clients.size(client), setup.work, 0, 0, client)]
        assert estimate.steps(client) == len(sizes)
        cut = estimate.cut(setup.population.capacity(client, 0))
        expected += BACKWARD * costs.forward_flops(cut) * sum(sizes)
    assert of_one.flops == expected
    assert not set(sizes) & {1}


def test_a_last_batch_of_one_is_told_before_the_first_round() -> None:
    reason = r"^local\.batch_size: 5 .*clients 0, 1,.*2 \(BatchNorm1d\).*local\.drop_last = true"
    with pytest.raises(ConfigError, match=reason) as caught:
        make_setup(normed())
    assert len(caught.value.problems) == 1
    make_setup(normed(), local={"drop_last": True})
    make_setup(normed(), local={"batch_size": 4})
    make_setup(normed(), local={"batch_size": 0})
    make_setup(normed(), local={"steps": 2})  # the third batch of a pass is never reached
    with pytest.raises(ConfigError, match=reason):
        make_setup(normed(), local={"steps": 3})


def test_other_batches_of_one_are_told_with_what_helps() -> None:
    with pytest.raises(ConfigError, match=r"^local\.batch_size: 1 "):
        make_setup(normed(), local={"batch_size": 1, "drop_last": True})
    for drop_last in (False, True):
        with pytest.raises(ConfigError, match=r"example .*client 4, ") as caught:
            make_setup(normed(), total=9, local={"drop_last": drop_last})
        assert "drop_last" not in str(caught.value)


@pytest.mark.parametrize("side", [1, 2])
def test_only_a_norm_that_really_fails_is_told(side: int) -> None:
    if side == 1:
        with pytest.raises(ConfigError, match=r"3 \(BatchNorm2d\)"):
            make_setup(pixels(side))
        return
    setup = make_setup(pixels(side))
    for engine in (SerialEngine(setup), BatchedEngine(setup, always=True)):
        assert run_round(setup, engine).clients == 5


def run_round(setup: Setup, engine: Engine) -> Any:
    return step_of(setup, engine=engine)[1]


def test_only_clients_whose_sub_model_fails_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        make_setup(Grouped(), 55, TABLE)  # all five have 11 examples
    (problem,) = caught.value.problems
    whole = make_setup(Grouped(), 55, TABLE, clients={"capacities": [1]})  # fails at no client
    population = replace(whole.population, capacities=[1.0, 0.5], proportions=[1.0, 1.0])
    small = [c for c in range(5) if population.capacity(c, 0) == 0.5]
    assert 0 < len(small) < 5
    assert f" clients {', '.join(map(str, small))}, " in problem
    with pytest.raises(ConfigError, match=" clients 0, 1, 2, 3, 4, "):
        make_setup(Grouped(), 55, TABLE, clients={"capacity_mode": "dynamic"})


def test_widths_below_the_own_are_looked_at_too() -> None:
    widths = {"name": "ordered", "widths": [1.0, 0.5]}
    with pytest.raises(ConfigError, match=" clients 0, 1, 2, 3, 4, "):
        make_setup(Grouped(), 55, TABLE, clients={"capacities": [1]}, scheme=widths)


def test_a_norm_by_hand_that_yields_no_number_is_told() -> None:
    with pytest.raises(ConfigError, match="not finite"):
        make_setup(ByHand())
    make_setup(ByHand(), local={"drop_last": True})


def test_nothing_is_changed_by_looking() -> None:
    module = pixels(2)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    single_examples.refusal(build_module(module, WHOLE), torch.zeros(2, INPUTS))
    assert torch.equal(torch.rand(3), expected)
    setup = make_setup(module)
    for name, value in setup.module.state_dict().items():
        assert torch.equal(value, before[name].to(value)), name
    assert setup.module.training == module.training
    assert not any(layer._forward_hooks for layer in setup.module.modules())


class Counting:
    """A partition that counts its calls."""

    def __init__(self, sizes: Callable[[int], int]) -> None:
        self.sizes, self.asked = sizes, 0

    def size(self, client: int) -> int:
        self.asked += 1
        return self.sizes(client)

    def indices(self, client: int) -> NDArray[np.int64]:
        return np.arange(self.sizes(client))


def test_of_a_million_clients_only_those_who_will_train_are_asked() -> None:
    setup = make_setup(normed(), local={"drop_last": True})
    setup = replace(setup, work=replace(setup.work, drop_last=False))
    many = replace(setup.population, count=10**6, per_round=4)
    partition = Counting(lambda client: 10 + (client == chosen))
    chosen = many.sample(2)[1]
    setup = replace(
        setup, population=many, clients=PartitionedClients(setup.clients.dataset, partition)
    )
    (problem,) = single_examples.problems(setup, rounds=3)
    assert f" client {chosen}, " in problem
    assert partition.asked <= 3 * 4 + 5
    assert single_examples.problems(setup, rounds=2) == []  # it does not train


def test_sizes_are_known_without_drawing_the_examples() -> None:
    labels = np.arange(300) % 3
    for split in (
        Draws(labels, 300, 25, 2, seed=0),
        Draws(labels, 300, 250, 2, seed=0),  # more than there are of two labels
        Dirichlet(labels, 12, 0.5, seed=1),
    ):
        assert [split.size(c) for c in range(12)] == [len(split.indices(c)) for c in range(12)]


@pytest.mark.parametrize("batching", ["serial", "stacks", "one output step"])
def test_a_batch_of_one_that_comes_later_is_told_by_the_client(batching: str) -> None:
    setup = make_setup(normed(), local={"drop_last": True})
    setup = replace(setup, work=replace(setup.work, drop_last=False))
    costs = CostModel(setup.module, setup.clients.dataset.example)
    if batching == "one output step":
        partition = Counting(lambda client: 10 - 9 * (client == 3))
        setup = replace(setup, clients=PartitionedClients(setup.clients.dataset, partition))
        with pytest.raises(DataError, match=r"^client 3: .*batch"):
            output_step(setup, initial_state(setup), SerialEngine(setup), costs, 10.0)
        return
    engine = SerialEngine(setup) if batching == "serial" else BatchedEngine(setup, always=True)
    with pytest.raises(DataError, match=r"^clients? [01].*: .*batch") as caught:
        step(setup, initial_state(setup), engine, costs)
    assert "local.drop_last = true" in str(caught.value)


def test_other_failures_are_not_taken_for_it() -> None:
    class Breaking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(INPUTS, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            if self.training and torch.is_grad_enabled() and len(x) != 2:  # the trial has two
                raise RuntimeError("out of something")
            out: Tensor = self.head(x)
            return out

    setup = make_setup(Breaking(), clients={"capacities": [1]})
    with pytest.raises(RuntimeError, match="out of something"):
        run_round(setup, SerialEngine(setup))


def device_config(drop_last: bool) -> dict[str, Any]:
    return {
        "model": {"name": "tests.engines.test_single_example_batches:normed_digits"},
        "data": {"examples": 92, "test_examples": 20, "partition": "iid"},
        "clients": {"count": 3, "per_round": 3, "capacities": [1, 0.5]},
        "local": {"drop_last": drop_last, "absent_labels": "keep"},
        "engine": {"name": "flower", "device": "cpu"},
        "devices": {"least": 1, "deadline": 0.5},
    }  # 31, 31 and 30 examples


def normed_digits() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10)
    )


@pytest.mark.slow
def test_a_device_with_a_batch_of_one_takes_no_part_and_is_told_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SUBMODEL_DATA", str(tmp_path / "cache"))
    means = {100 + part: DeviceOptions(OwnData(part=part)) for part in range(3)}
    for drop_last, clients in ((False, 1), (True, 3)):
        config = parse(device_config(drop_last))
        training = over_devices(Training(config, prepare(config)), LocalChannel(means))
        setup, engine = training.setup, training.engine
        assert engine is not None
        state, report = step_of(setup, engine=engine)
        assert report.clients == clients
        assert not report.missing
        assert all(bool(torch.isfinite(t).all()) for t in state.tensors.values())
    caught = [r.message for r in caplog.records if "BatchNorm1d" in r.message]
    assert len(caught) == 2
    assert "31 examples" in caught[0]
    assert "2 (BatchNorm1d)" in caught[0]
    assert "local.drop_last = true" in caught[0]


def test_a_device_that_is_asked_all_the_same_answers_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUBMODEL_DATA", str(tmp_path / "cache"))
    config = parse(device_config(False))
    setup = prepare(config)
    task = Dispatcher(setup, initial_state(setup), setup.work).task(Assignment(0, 0, 0.5))
    message = task_message(task, setup.module, False, "exact")
    head = {**run_head(config, Facts.of(setup.clients.dataset)), **message.head}
    device = Device(head, DeviceOptions(OwnData(part=0)))
    answer = device.answer("train", replace(message, head=head))
    assert "client 0: a batch of one example occurred" in answer.head["problem"]
    assert "2 (BatchNorm1d)" in answer.head["problem"]
