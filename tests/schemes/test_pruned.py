"""Pruning by gradients: choice of the mask, its effect on the model, and its cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from submodel.algorithm.adaptation import squared_gradients
from submodel.algorithm.dispatch import cut_of, knowledge_of
from submodel.algorithm.evaluation import evaluate_capacities, evaluate_model
from submodel.algorithm.execution import ALONE, Engine
from submodel.algorithm.packing import mask_bytes
from submodel.algorithm.round_statistics import RoundReport, RoundStatistics
from submodel.algorithm.rounds import initial_state, plan
from submodel.algorithm.types import Setup, State
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError, DivergedError
from submodel.data import Dataset, dataset
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.serial import SerialEngine
from submodel.model.build import build_module, load
from submodel.model.cost import BACKWARD, CostModel
from submodel.model.cut import WHOLE
from submodel.runs import checkpoint
from submodel.schemes import NOTHING, Adaptation, Draw, Pruned, RunFacts
from submodel.schemes.pruned import choose_weights
from submodel.tasks.loss import MaskedCrossEntropy
from tests.support.common import RULES, tiny_images, tiny_setup
from tests.support.rounds import step_of
from tests.support.runs import whole_and_resumed

# -- the choice ------------------------------------------------------------------------------------


def adaptation(
    capacity: float, round_: int, squares: list[float], weights: list[float], mask: list[int]
) -> Adaptation:
    """Make six weights in a matrix and a bias: seven in all."""
    tensors = {"w": torch.tensor(weights).view(2, 3), "b": torch.tensor([7.0]),
               "count": torch.tensor(1.0)}  # fmt: skip
    squares_by_name = {"w": torch.tensor(squares).view(2, 3), "b": torch.tensor([2.0])}

    def gradients(masks: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        assert masks["w"].tolist() == [[bool(m) for m in mask[i : i + 3]] for i in (0, 3)]
        assert masks["b"].tolist() == [True]
        return squares_by_name

    memory = {"mask": torch.tensor([*mask, 1], dtype=torch.uint8)}  # t_j = 2/2 + 1
    return Adaptation(0, round_, tensors, ["w", "b"], [capacity], memory, gradients,
                      lambda: {"w": 2.0, "b": 2.0})  # fmt: skip


WEIGHTS = [1.0, -2.0, 3.0, 0.5, 0.0, 0.0]
SQUARES = [4.0, 1.0, 1.0, 2.0, 9.0, 0.1]


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        # Half of the four kept may go: 0.5 and 1. Two stay, with Gamma = (2 + 1 + 1) / (6 + 4).
        # The others' g^2 / t: 4.5 (the fifth), 2 (the first), 1 (the fourth), 0.05.
        # Gamma becomes 13/12, then 17/14; a ratio of 1 would lower it.
        (6, [1, 1, 1, 0, 1, 0]),
        (5, [1, 1, 1, 0, 1, 0]),
        (4, [0, 1, 1, 0, 1, 0]),  # the bias takes one of the four
        (3, [0, 1, 1, 0, 0, 0]),
    ],
)
def test_six_weights_by_hand(held: int, expected: list[int]) -> None:
    now = adaptation(held / 7, 5, SQUARES, WEIGHTS, [1, 1, 1, 1, 0, 0])
    tensors, memory = Pruned(prunable=0.5, base_cost=0.5).adapt(now)
    assert memory["mask"].tolist() == [*expected, 1]
    assert memory["mask"].dtype == torch.uint8
    kept = [w * m for w, m in zip(WEIGHTS, expected, strict=True)]
    assert tensors["w"].flatten().tolist() == kept
    assert not torch.signbit(tensors["w"][tensors["w"] == 0]).any()
    assert tensors["b"].tolist() == [7.0]
    assert tensors["count"] is now.tensors["count"]


def test_what_is_cheap_comes_before_what_has_the_larger_gradient() -> None:
    """F = 2 and 18, 6 on average: t = 4/3 and 4, so 3 at the first is worth more than 8."""
    tensors = {"w": torch.ones(2, 3), "v": torch.ones(1, 2)}
    squares = {"w": torch.tensor([[3.0, 0, 0], [0, 0, 0]]), "v": torch.tensor([[0.0, 8.0]])}
    now = Adaptation(0, 0, tensors, ["w", "v"], [1 / 8], Pruned().begin(tensors),
                     lambda _: squares, lambda: {"w": 2.0, "v": 18.0})  # fmt: skip
    assert Pruned().adapt(now)[1]["mask"].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    even = replace(now, flops=lambda: {"w": 2.0, "v": 2.0})
    assert Pruned().adapt(even)[1]["mask"].tolist() == [0, 0, 0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("prunable", "expected"),
    [
        (0.0, [1, 1, 1, 0, 0, 0]),  # capacity leaves three of six: 3, 2 and 1
        (0.4, [0, 1, 1, 0, 1, 0]),  # of which 1 may go, and the best gradient enters
        (1.0, [1, 0, 0, 0, 1, 0]),  # all may go; after two of them Gamma = 1.5 is more than 1
    ],
)
def test_the_first_mask_begins_with_the_largest_magnitudes(
    prunable: float, expected: list[int]
) -> None:
    now = adaptation(4 / 7, 0, SQUARES, WEIGHTS, [1] * 6)
    assert Pruned(prunable=prunable).adapt(now)[1]["mask"].tolist() == [*expected, 1]


def test_a_large_base_cost_keeps_what_capacity_allows_and_a_small_one_prunes_further() -> None:
    def kept(base_cost: float) -> int:
        now = adaptation(6 / 7, 0, SQUARES, WEIGHTS, [1] * 6)
        return int(Pruned(prunable=1.0, base_cost=base_cost).adapt(now)[1]["mask"].sum())

    # with c = 12: Gamma = 2/12, 11/14, 15/16, 17/18 (ratio 1 > 15/16), then 0.5 < 17/18
    assert [kept(c) for c in (0.5, 1.0, 100.0)] == [1 + 2, 1 + 3, 1 + 5]


def test_at_capacity_one_nothing_is_measured_or_pruned() -> None:
    now = replace(adaptation(1.0, 0, SQUARES, WEIGHTS, [1] * 6), squared_gradients=None)  # type: ignore[arg-type]
    assert Pruned().adapt(now) == (now.tensors, now.memory)


values = st.lists(st.floats(0, 9), min_size=7, max_size=7).map(np.array)


@given(
    value=values,
    cost=values.map(lambda c: c + 0.5),
    stays=st.lists(st.booleans(), min_size=7, max_size=7).map(np.array),
    base_value=st.floats(0, 9),
    base_cost=st.floats(0.1, 9),
)
def test_no_other_choice_has_a_larger_ratio(
    value: Any, cost: Any, stays: Any, base_value: float, base_cost: float
) -> None:
    """Proven for PruneFL's greedy choice; compared with all choices here."""

    def gamma(chosen: Any) -> float:
        return float((base_value + value[chosen].sum()) / (base_cost + cost[chosen].sum()))

    chosen = choose_weights(stays, value, cost, base_value, base_cost, most=7)
    assert (chosen >= stays).all()
    all_of_them = (stays | np.array(extra) for extra in product([False, True], repeat=7))
    assert gamma(chosen) == pytest.approx(max(map(gamma, all_of_them)), rel=1e-12)
    for most in range(8):
        few = choose_weights(stays, value, cost, base_value, base_cost, most)
        assert (few <= chosen).all()
        assert few.sum() == max(stays.sum(), min(most, chosen.sum()))


# -- the clients' gradients ------------------------------------------------------------------------


def by_autograd(setup: Setup, state: State) -> dict[str, Tensor]:
    """Return the mean over clients of the squared gradient, one by one, in float64."""
    total: dict[str, Tensor] = {}
    weights = 0.0
    for assignment in plan(setup, state.round):
        module = build_module(setup.module, WHOLE).double()
        load(module, {n: t.double() for n, t in state.tensors.items()})
        own = setup.clients.examples(assignment.client)
        loss: Any = setup.loss
        if setup.absent_labels != "keep":
            labels = torch.from_numpy(setup.clients.labels(assignment.client))
            loss = MaskedCrossEntropy(labels, 10, setup.absent_labels)
        torch.autograd.backward(loss(module.train()(own.x.double()), own.y))
        weight = len(own) if setup.weights == "examples" else 1.0
        weights += weight
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None
            square = weight * parameter.grad.square()
            total[name] = total.get(name, torch.zeros_like(square)) + square
    return {name: t / weights for name, t in total.items()}


def measured(
    setup: Setup, state: State, engine: Engine
) -> tuple[dict[str, Tensor], RoundStatistics]:
    costs = CostModel(setup.module, setup.clients.dataset.example)
    statistics = RoundStatistics(setup.axes, state.tensors, costs)
    found = squared_gradients(setup, state, engine, plan(setup, 0), ALONE, statistics, {})
    return found, statistics


@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize("absent", ["keep", "zero", "leave_out"])
@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_squared_gradients_are_those_of_autograd(model: str, absent: str, weights: str) -> None:
    setup = tiny_setup(
        model,
        images=tiny_images(50),  # 13, 13, 12 and 12 examples
        clients={"capacities": [0.5]},
        scheme={"name": "pruned", "granularity": "coordinate"},
        local={"absent_labels": absent, "batch_size": 3, "momentum": 0.9, "lr": 0.1},
        merge={"weights": weights},
    )
    state = initial_state(setup)
    expected = by_autograd(setup, state)
    for engine in (SerialEngine(setup), BatchedEngine(setup, always=True)):
        found, _ = measured(setup, state, engine)
        assert found.keys() == expected.keys()
        for name, square in expected.items():
            largest = float(square.max())  # float32 sums over a batch: relative to the largest
            np.testing.assert_allclose(found[name], square, rtol=1e-3, atol=1e-5 * largest)


def test_small_gradients_of_large_weights_are_not_rounded_away() -> None:
    x = torch.full((8, 4), 2.0**-10)
    data = dataset(*[(x, torch.zeros(8))] * 2)
    net = nn.Linear(4, 1, bias=False)
    nn.init.constant_(net.weight, 1000.0)
    config = parse(
        {
            "data": {"partition": "iid"},
            "clients": {"count": 2, "per_round": 2, "capacities": [0.5]},
            "scheme": {"name": "pruned", "granularity": "coordinate"},
            "local": {"absent_labels": "keep"},
        }
    )
    setup = prepare(config, net, data, loss=lambda out, _: out.mean() * 2.0**-10)
    found, _ = measured(setup, initial_state(setup), SerialEngine(setup))
    assert found["weight"].tolist() == [[2.0**-40] * 4]  # a step of size 1 leaves 1000 as it is


def test_a_gradient_that_is_not_finite_is_refused_by_name() -> None:
    setup = tiny_setup(
        "mlp", clients={"capacities": [0.5]}, scheme={"name": "pruned", "granularity": "coordinate"}
    )
    state = initial_state(setup)
    broken = replace(state, tensors={n: t * torch.nan for n, t in state.tensors.items()})
    with pytest.raises(DivergedError, match=r"^round 1: .*gradient"):
        measured(setup, broken, SerialEngine(setup))


# -- rounds ----------------------------------------------------------------------------------------


def pruned_setup(model: str = "cnn", data: Dataset | None = None, **sections: Any) -> Setup:
    scheme = {"name": "pruned", "granularity": "coordinate", "every": 2, "base_cost": 100.0}
    defaults = {"clients": {"capacities": [0.2]}, "local": {"absent_labels": "leave_out"}}
    return tiny_setup(model, data, **{**defaults, "scheme": scheme, **sections})


def run(setup: Setup, rounds: int, engine: Engine | None = None) -> list[tuple[State, RoundReport]]:
    states, state = [], initial_state(setup)
    for _ in range(rounds):
        state, report = step_of(setup, state, engine or SerialEngine(setup))
        states.append((state, report))
    return states


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_all_clients_share_one_mask_and_the_global_model_is_the_pruned_one(rule: str) -> None:
    setup = pruned_setup(merge={"rule": rule}, local={"absent_labels": "keep"})
    names = [n for n, _ in setup.module.named_parameters()]
    total = sum(p.numel() for p in setup.module.parameters())
    before: Tensor | None = None
    masks = []
    for state, report in run(setup, 6):
        mask = state.memory["scheme/mask"].bool()
        masks.append(mask)
        flat = torch.cat([state.tensors[n].flatten() for n in names])
        assert int(mask.sum()) == -(-total // 5)  # with so large a base cost, capacity alone binds
        assert not flat[~mask].any()
        assert not torch.signbit(flat[~mask]).any()
        assert report.weights_covered == int(mask.sum()) / total
        for assignment in plan(setup, state.round):
            cut = cut_of(setup, assignment, knowledge=knowledge_of(setup, state))
            held = [cut.mask(n) for n in names]
            assert torch.equal(torch.cat([m.flatten() for m in held if m is not None]), mask)
        sizes = [state.tensors[n].numel() for n in names]
        for name, part in zip(names, torch.split(mask, sizes), strict=True):
            assert part.all() or state.tensors[name].dim() > 1
        if before is not None and torch.equal(mask, masks[-2]):
            assert (flat[mask] != before[mask]).any()
        before = flat
    same = [torch.equal(a, b) for a, b in pairwise(masks)]
    assert same == [True, False, True, False, True]  # adapted before rounds 0, 2, 4


def test_weights_that_enter_the_mask_begin_at_zero() -> None:
    setup = pruned_setup()
    ((state, _),) = run(setup, 1)
    state = replace(state, round=2)
    still = replace(setup, work=replace(setup.work, lr=0.0))
    new, _ = step_of(still, state, SerialEngine(setup))
    entered = new.memory["scheme/mask"].bool() & ~state.memory["scheme/mask"].bool()
    left = ~new.memory["scheme/mask"].bool() & state.memory["scheme/mask"].bool()
    assert entered.any()
    assert left.any()
    names = [n for n, _ in setup.module.named_parameters()]
    old, flat = (torch.cat([s.tensors[n].flatten() for n in names]) for s in (state, new))
    assert not flat[entered].any()
    assert torch.equal(flat[~left], old[~left])


def test_six_weights_come_back_as_they_left_if_they_are_kept() -> None:
    """The mask is that of `test_six_weights_by_hand`; only values differ."""
    now = adaptation(5 / 7, 5, SQUARES, WEIGHTS, [1, 1, 1, 1, 0, 0])
    kept = torch.tensor([0.0, 0.0, 0.0, 0.0, -8.0, 9.0, 0.0])
    scheme = Pruned(prunable=0.5, base_cost=0.5, reentry="kept")
    tensors, memory = scheme.adapt(replace(now, memory={**now.memory, "kept": kept}))
    assert memory["mask"].tolist() == [1, 1, 1, 0, 1, 0, 1]
    assert tensors["w"].flatten().tolist() == [1.0, -2.0, 3.0, 0.0, -8.0, 0.0]
    assert tensors["b"].tolist() == [7.0]
    assert memory["kept"].tolist() == [0.0, 0.0, 0.0, 0.5, 0.0, 9.0, 0.0]


def test_weights_come_back_with_the_value_that_they_left_with() -> None:
    """Like PruneFL's server, whose model keeps masked weights."""
    scheme = {"name": "pruned", "granularity": "coordinate", "every": 1, "reentry": "kept"}
    setup = pruned_setup("mlp", scheme={**scheme, "base_cost": 100.0})
    still = replace(setup, work=replace(setup.work, lr=0.0))  # the initial model of a round stays
    names = [n for n, _ in setup.module.named_parameters()]

    def flat(state: State) -> Tensor:
        return torch.cat([state.tensors[n].flatten() for n in names])

    state = initial_state(setup)
    last, back = flat(state), 0  # the last held value of every weight
    for _ in range(4):
        before = state.memory["scheme/mask"].bool()
        begun, _ = step_of(still, state, SerialEngine(setup))
        mask = begun.memory["scheme/mask"].bool()
        assert torch.equal(flat(begun), torch.where(mask, last, 0.0))
        assert torch.equal(begun.memory["scheme/kept"], torch.where(mask, 0.0, last))
        entered = mask & ~before
        back += int(last[entered].count_nonzero())
        state, _ = step_of(setup, state)
        assert torch.equal(state.memory["scheme/mask"].bool(), mask)
        assert not flat(state)[~mask].any()
        last = torch.where(mask, flat(state), last)
    assert back > 20


@pytest.mark.parametrize("rule", RULES)
def test_at_capacity_one_it_is_fedavg_bit_for_bit(rule: str) -> None:
    full_capacity: dict[str, Any] = {"clients": {"capacities": [1]}, "merge": {"rule": rule}}
    scheme = {"name": "pruned", "granularity": "coordinate", "every": 1}
    pruned = run(tiny_setup("cnn", scheme=scheme, **full_capacity), 3)
    full = run(tiny_setup("cnn", scheme={"name": "full"}, **full_capacity), 3)
    for (state, report), (expected, full_report) in zip(pruned, full, strict=True):
        assert all(torch.equal(state.tensors[n], t) for n, t in expected.tensors.items())
        assert (report.bytes_down, report.bytes_up, report.flops) == (
            full_report.bytes_down, full_report.bytes_up, full_report.flops
        )  # fmt: skip


def test_an_adaptation_is_in_the_rounds_books() -> None:
    setup = pruned_setup(clients={"capacities": [0.2], "count": 5, "per_round": 3},
                         local={"absent_labels": "keep", "epochs": 1})  # fmt: skip
    costs = CostModel(setup.module, setup.clients.dataset.example)
    pass_of = BACKWARD * costs.forward_flops(WHOLE)
    start = initial_state(setup)
    total = sum(t.numel() for t in start.tensors.values())
    shapes = {n: t.shape for n, t in start.tensors.items()}
    mask_before = total  # nothing is pruned before round 0, and no mask is sent
    bits_before = 0
    for r, (state, report) in enumerate(run(setup, 3)):
        cut = cut_of(setup, plan(setup, r)[0], knowledge=knowledge_of(setup, state))
        held, bits = int(state.memory["scheme/mask"].sum()), mask_bytes(cut, shapes)
        large = [p.numel() for p in setup.module.parameters() if p.dim() > 1]
        assert bits == sum(-(-n // 8) for n in large)
        examples = sum(setup.clients.size(a.client) for a in plan(setup, r))
        adapting = r % 2 == 0
        down = 4 * held + bits + adapting * (4 * mask_before + bits_before)
        assert report.bytes_down == 3 * down
        assert report.bytes_up == 3 * (4 * held + adapting * 4 * total)
        assert report.flops == pass_of * examples * (1 + adapting)
        assert ("adapt" in report.seconds) is adapting
        mask_before, bits_before = held, bits


def test_the_pruned_model_scores_the_same_at_its_capacity() -> None:
    setup = pruned_setup(local={"absent_labels": "keep"})
    state, _ = run(setup, 2)[-1]
    whole = evaluate_model(setup, state)
    assert evaluate_capacities(setup, state, whole) == {0.2: whole}


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_its_mask(tmp_path: Path) -> None:
    config = parse(
        {
            "model": {"name": "mlp", "width": 8},
            "clients": {"count": 6, "per_round": 3, "capacities": ["1/2"]},
            "scheme": {"name": "pruned", "granularity": "coordinate", "every": 2},
            "train": {"rounds": 5, "evaluate_every": 5},
        }
    )
    (_, state, history), (_, end, lines) = whole_and_resumed(tmp_path, config, {1, 2})
    assert checkpoint.model_sha256(end.tensors) == checkpoint.model_sha256(state.tensors)
    assert torch.equal(end.memory["scheme/mask"], state.memory["scheme/mask"])
    assert [line["bytes_down"] for line in lines] == [line["bytes_down"] for line in history]


# -- refusals
# ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_is_not_defined_is_refused() -> None:
    shapes = {"w": (2, 3), "b": (1,)}
    run = RunFacts(sizes={"coordinates": 7}, capacities=[0.5], clients=4, per_round=4,
                  granularity="coordinate", shapes=shapes)  # fmt: skip
    assert Pruned().problems(run) == []
    (few,) = Pruned().problems(replace(run, capacities=[1 / 7]))
    assert few.startswith("clients.capacities: 0.142857 holds 1 of 7 ")
    (unit,) = Pruned().problems(replace(run, granularity="unit"))
    assert unit.startswith("scheme.granularity: 'unit' ")
    (several,) = Pruned().problems(replace(run, capacities=[1.0, 0.5]))
    assert several.startswith("clients.capacities: 1, 0.5: 'pruned' ")
    with pytest.raises(LookupError, match="mask of 'pruned'"):
        Pruned().select("coordinates", 7, 0.5, Draw(0, 0, 0, knowledge=NOTHING))
    with pytest.raises(ConfigError, match=r"^clients\.capacities: 1, 0\.5, 0\.25: 'pruned' "):
        tiny_setup("mlp", scheme={"name": "pruned", "granularity": "coordinate"})
