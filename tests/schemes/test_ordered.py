"""Ordered dropout: a step at width q equals a step of the small model of width q, bit for bit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from submodel.algorithm.dispatch import Dispatcher
from submodel.algorithm.rounds import initial_state, plan, step
from submodel.algorithm.types import Setup, Task, Update
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError
from submodel.core.randomness import generator
from submodel.data import dataset
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.serial import SerialEngine
from submodel.model.axes import trace
from submodel.model.build import build_module, load, tensors_of
from submodel.model.cost import BACKWARD, CostModel
from submodel.model.cut import UnitCut, gather
from submodel.model.norm import Scaler, set_rate
from submodel.runs.callbacks import RoundCallback
from submodel.runs.loop import RunFolder, run_rounds
from submodel.runs.training import Training
from submodel.schemes import Client, Draw, Static
from submodel.schemes.draw import draw_units
from submodel.schemes.ordered import NestedStep, NestedSteps, narrower, within
from submodel.tasks.loss import MaskedCrossEntropy
from submodel.tasks.training import LocalWork, batches, trainable_parameters
from tests.support.common import tiny_images, tiny_setup
from tests.support.engines import setup_of
from tests.support.nets import Gates, Pixels
from tests.support.rounds import one_round

WIDTHS = (0.25, 0.5, 1.0)


def drawn(setup: Setup, task: Task, number: int) -> float:
    """Return the width of a step, transcribed."""
    where, rule = task.assignment, task.step_rule
    if rule is None:
        return where.capacity
    rng = generator(setup.seed, "width", where.round, where.client, number)
    return rule.widths[int(rng.integers(len(rule.widths)))]


def tasks_of(setup: Setup) -> list[Task]:
    dispatcher = Dispatcher(setup, initial_state(setup), setup.work)
    return [dispatcher.task(a) for a in plan(setup, 0)]


class Tied(nn.Module):
    """A net whose decoder is its encoder transposed, with one norm in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 8)
        self.third = nn.Linear(8, 8)
        self.third.weight = self.second.weight
        self.norm = self.again = nn.LayerNorm(8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(torch.relu(self.first(x)))
        out: Tensor = self.last(self.again(h + self.third(torch.relu(self.second(h)))))
        return out


NETS: dict[str, type[nn.Module]] = {"tied": Tied, "gates": Gates, "pixels": Pixels}


def stepped(
    net: nn.Module, capacity: float, distill: float = 0.0
) -> tuple[nn.Module, UnitCut, NestedStep, Tensor, Tensor]:
    """Make a client of ``capacity`` on six inputs with everything for its step."""
    torch.manual_seed(1)
    x, y = torch.randn(5, 6), torch.tensor([0, 1, 2, 0, 1])
    if next(net.parameters()).dtype == torch.float64:
        x = x.double()
    axes = trace(net, x)
    cut = draw_units(Static(), axes, capacity, Draw(0, 0, 0))
    module = build_module(net, cut).train()
    rule = NestedSteps(tuple(w for w in WIDTHS if w <= capacity), distill)
    client = Client(
        module,
        cut,
        build=lambda inner: build_module(net, inner),
        work=LocalWork(lr=0.1),
        loss=functional.cross_entropy,
        least={},
        key=(0, 0, 0),
    )
    return module, cut, rule.begin(client), x, y


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("capacity", [1.0, 0.5])
def test_a_step_is_that_of_the_small_model_alone(name: str, capacity: float) -> None:
    torch.manual_seed(0)
    net = NETS[name]()
    module, cut, nested, x, y = stepped(net, capacity)
    seen = set()
    for number in range(8):
        width = nested.width(number)
        seen.add(width)
        inner = narrower(cut, width, {})
        alone = build_module(net, inner).train()
        load(alone, gather(within(inner.plan, cut.plan), tensors_of(module)))
        value = functional.cross_entropy(alone(x), y)
        expected = torch.autograd.grad(value, list(alone.parameters()))
        loss, found = nested(number, x, y)
        assert torch.equal(loss, value.detach())
        for (n, like), gradient, own in zip(
            trainable_parameters(module).items(), found, expected, strict=True
        ):
            whole = torch.zeros_like(like)
            within(inner.plan, cut.plan).add(n, whole, own)
            assert gradient is not None
            assert torch.equal(gradient, whole), n
            if width < capacity and like.dim() > 1:
                assert (gradient == 0).any()
        after = gather(within(inner.plan, cut.plan), tensors_of(module))
        for n, buffer in alone.named_buffers():  # running statistics of the small model
            if buffer.is_floating_point():
                assert torch.equal(after[n], buffer), n
            else:
                assert dict(module.named_buffers())[n] == number + 1  # batches
    assert seen == {w for w in WIDTHS if w <= capacity}


def test_positions_inside_a_cut_of_every_second_unit() -> None:
    torch.manual_seed(0)
    axes = trace(Gates(), torch.randn(5, 6))
    (axis,) = axes.cut_by_capacity
    outer = UnitCut(axes, {axis: np.array([1, 3, 5, 7])})
    inner = UnitCut(axes, {axis: np.array([3, 7])})
    whole = tensors_of(Gates())
    twice = gather(within(inner.plan, outer.plan), gather(outer, whole))
    torch.testing.assert_close(twice, gather(inner, whole), rtol=0, atol=0)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_distillation_is_its_formula(name: str, alpha: float) -> None:
    """Differentiated through slices of the client's tensors; float64, sums in another order."""
    torch.manual_seed(0)
    net = NETS[name]().double()
    module, cut, nested, x, y = stepped(net, 0.5, distill=alpha)
    number = next(k for k in range(20) if nested.width(k) == 0.25)
    inner = narrower(cut, 0.25, {})
    small, wide = build_module(net, inner).train(), build_module(net, cut).train()
    leaves = {n: p.detach().clone().requires_grad_() for n, p in module.named_parameters()}
    position = within(inner.plan, cut.plan)
    sliced = {n: position.part(n, t) for n, t in leaves.items()}
    student = torch.func.functional_call(small, sliced, (x,))
    teacher = torch.func.functional_call(wide, leaves, (x,))
    p, q = teacher.detach().softmax(1), student.softmax(1)
    value = functional.cross_entropy(teacher, y) + alpha * (p * (p / q).log()).sum(1).mean()
    value = value + (1 - alpha) * functional.cross_entropy(student, y)
    expected = torch.autograd.grad(value, list(leaves.values()))
    loss, found = nested(number, x, y)
    torch.testing.assert_close(loss, value.detach(), rtol=0, atol=1e-12)
    for gradient, own in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, own, rtol=0, atol=1e-12)
    assert nested.passes == ((0.25, 5), (0.5, 5))


def test_a_step_at_the_widest_is_plain_whatever_the_distillation() -> None:
    torch.manual_seed(0)
    net = Tied()
    module, _, nested, x, y = stepped(net, 0.5, distill=0.3)
    number = next(k for k in range(20) if nested.width(k) == 0.5)
    expected = torch.autograd.grad(
        functional.cross_entropy(module(x), y), list(module.parameters())
    )
    for gradient, own in zip(nested(number, x, y)[1], expected, strict=True):
        assert gradient is not None
        assert torch.equal(gradient, own)


@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize("distill", [0.0, 1.0])
def test_one_width_is_static_bit_for_bit(model: str, distill: float) -> None:
    for capacity in (1.0, 0.5):
        common: dict[str, Any] = {"clients": {"capacities": [capacity]}, "local": {"steps": 2}}
        expected = one_round(tiny_setup(model, scheme={"name": "static"}, **common))
        choice = {"name": "ordered", "widths": [capacity], "distill": distill}
        assert one_round(tiny_setup(model, scheme=choice, **common)) == expected


def ordered(model: str = "mlp", **sections: Any) -> Setup:
    """Make seven clients with 8 to 9 examples of three labels each, in batches of 4."""
    sections["scheme"] = {"name": "ordered"} | sections.get("scheme", {})
    sections["clients"] = {"capacities": [1, 0.5, 0.25]} | sections.get("clients", {})
    return setup_of(model, **sections)


@pytest.mark.slow
@pytest.mark.parametrize("labels", ["keep", "leave_out", "zero"])
@pytest.mark.parametrize("model", ["cnn", "preresnet18"])
def test_one_step_of_a_client_is_that_of_a_static_client_of_the_drawn_width(
    model: str, labels: str
) -> None:
    """The rest of its part stays unchanged."""
    sections: dict[str, Any] = {"local": {"steps": 1, "absent_labels": labels}}
    setup = ordered(model, **sections)
    seen = Counter(drawn(setup, task, 0) < task.assignment.capacity for task in tasks_of(setup))
    assert seen[True]
    for task in tasks_of(setup):
        width = drawn(setup, task, 0)
        capacities = {"clients": {"capacities": [width]}}
        static = ordered(model, **sections, scheme={"name": "static"}, **capacities)
        (like,) = [t for t in tasks_of(static) if t.assignment.client == task.assignment.client]
        (update,) = SerialEngine(setup).run([task])
        (alone,) = SerialEngine(static).run([like])
        assert isinstance(task.cut, UnitCut)
        assert isinstance(like.cut, UnitCut)
        position = within(like.cut.plan, task.cut.plan)
        for name, before in task.tensors.items():
            expected = before.clone()
            position.add(name, expected, -like.tensors[name])
            position.add(name, expected, alone.tensors[name])
            assert torch.equal(update.tensors[name], expected), name
        assert update.loss == alone.loss


def test_the_scaler_divides_by_the_width_of_the_step() -> None:
    net = nn.Sequential(nn.Linear(6, 8, bias=False), Scaler(), nn.ReLU(), nn.Linear(8, 3))
    module, cut, nested, x, y = stepped(net, 1.0)
    number = next(k for k in range(20) if nested.width(k) == 0.25)
    small = build_module(net, narrower(cut, 0.25, {})).train()
    set_rate(small, 0.25)
    expected = functional.cross_entropy(small(x), y).detach()
    set_rate(module, 1.0)
    assert torch.equal(nested(number, x, y)[0], expected)
    set_rate(small, 1.0)
    assert not torch.equal(functional.cross_entropy(small(x), y).detach(), expected)


@pytest.mark.parametrize("distill", [0.0, 0.5])
def test_flops_are_those_of_the_widths_drawn(distill: float) -> None:
    setup = ordered(scheme={"distill": distill}, local={"epochs": 2})
    costs = CostModel(setup.module, setup.clients.dataset.example)
    expected = 0
    for task in tasks_of(setup):
        where = task.assignment
        total = setup.clients.size(where.client)
        order = batches(total, setup.work, setup.seed, 0, where.client)
        for number, batch in enumerate(order):
            taken = [drawn(setup, task, number)]
            if distill and taken != [where.capacity]:
                taken.append(where.capacity)
            for width in taken:
                forward = costs.forward_flops(narrower(task.cut, width, {}))
                expected += BACKWARD * forward * len(batch)
    assert step(setup, initial_state(setup), SerialEngine(setup), costs)[1].flops == expected
    static = ordered(scheme={"name": "static"}, local={"epochs": 2})
    more = step(static, initial_state(static), SerialEngine(static), costs)[1].flops
    assert expected < more if not distill else expected != more


def by_client(updates: list[Update]) -> dict[int, Update]:
    return {update.assignment.client: update for update in updates}


@pytest.mark.parametrize("distill", [0.0, 0.5])
def test_both_engines_are_the_same_to_the_bit(distill: float) -> None:
    setup = ordered(scheme={"distill": distill})
    tasks = [task for task in tasks_of(setup) if task.step_rule is not None]
    assert len(tasks) > 2
    engine = BatchedEngine(setup, always=True)
    sizes = [len(b.assignments) for b in engine.bundles([t.assignment for t in tasks])]
    assert set(sizes) == {1}
    alone, together = (by_client(list(e.run(tasks))) for e in (SerialEngine(setup), engine))
    for client, update in alone.items():
        assert update.passes == together[client].passes
        torch.testing.assert_close(update.tensors, together[client].tensors, rtol=0, atol=0)


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_bytes(tmp_path: Path) -> None:
    config = parse(
        {"model": {"name": "mlp", "width": 8}, "data": {"partition": "iid"},
         "clients": {"count": 4, "per_round": 2, "capacities": [1, 0.5]},
         "scheme": {"name": "ordered", "widths": [1, 0.5, 0.25], "distill": 1.0},
         "local": {"steps": 2}, "engine": {"name": "local"},
         "train": {"rounds": 4, "checkpoint_every": 2, "evaluate_every": 4}}
    )  # fmt: skip
    setup = prepare(config, data=tiny_images())
    whole, _ = run_rounds(Training(config, setup))
    folder = RunFolder(tmp_path / "run")
    folder.create(config)

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 3:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        run_rounds(Training(config, setup), folder, [RoundCallback(stop)])
    resumed, _ = run_rounds(Training(config, setup), folder, resume=True)
    torch.testing.assert_close(whole.tensors, resumed.tensors, rtol=0, atol=0)


def test_widths_below_every_capacity_are_cut_too() -> None:
    setup = ordered(clients={"capacities": [1.0]}, scheme={"widths": ["1/4", 1]})
    assert setup.axes.cut_by_capacity
    assert {task.step_rule for task in tasks_of(setup)} == {NestedSteps((0.25, 1.0))}


def test_every_width_is_drawn_equally_often_and_from_its_key_alone() -> None:
    _, _, nested, _, _ = stepped(Tied(), 1.0)
    counts = Counter(nested.width(k) for k in range(3000))
    assert all(abs(counts[w] / 3000 - 1 / 3) < 5 * np.sqrt(2 / 9 / 3000) for w in WIDTHS)
    assert [nested.width(k) for k in range(9)] == [
        WIDTHS[int(generator(0, "width", 0, 0, k).integers(3))] for k in range(9)
    ]


def test_distillation_among_the_labels_that_a_client_has() -> None:
    loss = MaskedCrossEntropy(torch.tensor([1, 3]), 5, "zero")
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]])
    assert loss.logits(logits).tolist() == [[2.0, 4.0, 0.0, 0.0, 0.0]]
    assert loss.logits(logits[:, [1, 3]]).tolist() == [[2.0, 4.0, 0.0, 0.0, 0.0]]


@pytest.mark.slow
def test_what_is_not_defined_is_refused() -> None:
    for sections, words in (
        ({"scheme": {"granularity": "coordinate"}}, "^scheme.granularity: "),
        ({"scheme": {"widths": [0.5, 1.0]}}, "^scheme.widths: .*0.25"),
        ({"scheme": {"alignment": "independent"}}, "^scheme.alignment: 'ordered' "),
        ({"train": {"output_step": 2.0}}, "^train.output_step: "),
        ({"scheme": {"distill": 1.5}}, "^scheme.distill: "),
    ):
        with pytest.raises(ConfigError, match=words):
            ordered(**sections)
    x, y = torch.randn(12, 3), torch.randn(12, 1)
    config: dict[str, Any] = {
        "clients": {"count": 2, "per_round": 2}, "data": {"partition": "iid"},
        "local": {"absent_labels": "keep"}, "scheme": {"name": "ordered", "distill": 1.0},
    }  # fmt: skip
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    with pytest.raises(ConfigError, match=r"^scheme\.distill: .*class labels"):
        prepare(parse(config), net, dataset((x, y), (x, y)), loss=functional.mse_loss)
