"""Unbiased sub-models: E[S] = I by enumeration, steps against a transcription and the lab."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from submodel.algorithm.dispatch import Dispatcher, cut_of, scale_model, setup_factors
from submodel.algorithm.evaluation import EVALUATOR, evaluate_capacities, evaluate_model
from submodel.algorithm.rounds import initial_state, plan
from submodel.algorithm.types import Assignment, Setup, Task
from submodel.api import train
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.data import Dataset, dataset
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.serial import SerialEngine
from submodel.model.build import build_module, load
from submodel.model.cut import CoordinateCut, UnitCut, gather
from submodel.runs.loop import RunFolder, run_rounds
from submodel.runs.open import Run
from submodel.runs.training import Training
from submodel.schemes.unbiased import factors_of_cut
from submodel.tasks.training import batches
from tests.support.common import RULES, tiny_setup
from tests.support.engines import doubled, setup_of
from tests.support.nets import Gates, Joined, Pixels, six
from tests.support.rounds import one_round

EXACT = 1e-12  # float64 sums of some hundred terms


def three() -> Dataset:
    """Make three numbers and two labels."""
    x = six().train.x[:, :3]
    return dataset(*[(x, torch.arange(len(x)) % 2)] * 2)


def made(net: nn.Module, capacity: float, data: Dataset | None = None, **sections: Any) -> Setup:
    config: dict[str, Any] = {
        "data": {"partition": "iid"},
        "clients": {"count": 4, "per_round": 4, "capacities": [capacity]},
        "scheme": {"name": "unbiased"} | sections.pop("scheme", {}),
        "local": {"absent_labels": "keep", "steps": 3, "batch_size": 4, "lr": 0.05},
    }
    for name, section in sections.items():
        config[name] = config.get(name, {}) | section
    return prepare(parse(config), net.double(), data or six())


def subsets(size: int, share: float, sampling: str) -> Iterator[tuple[float, np.ndarray]]:
    """List every draw of an axis with its probability; if it is empty, any one unit stays."""
    held = int(np.ceil(share * size))
    for count in range(size + 1):
        for chosen in combinations(range(size), count):
            kept = np.array(chosen, dtype=np.int64)
            if sampling == "fixed":
                if count == held:
                    yield 1 / len(list(combinations(range(size), held))), kept
            elif count:
                yield share**count * (1 - share) ** (size - count), kept
            else:
                for unit in range(size):
                    yield (1 - share) ** size / size, np.array([unit])


class Square(nn.Module):
    """One axis on both dimensions of a weight, and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(6, 4), nn.Linear(4, 4), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = h + self.inner(torch.relu(h))
        out: Tensor = self.last(torch.stack([h, 2 * h], 2).flatten(1))
        return out


@pytest.mark.parametrize("net", [Joined, Square])
@pytest.mark.parametrize("sampling", ["bernoulli", "fixed"])
@pytest.mark.parametrize("share", [0.5, 0.3])
def test_the_mean_over_all_masks_of_the_scaled_weights_is_the_weights(
    net: type[nn.Module], sampling: str, share: float
) -> None:
    torch.manual_seed(0)
    setup = made(net(), share, scheme={"sampling": sampling})
    whole = initial_state(setup).tensors
    factors = setup_factors(setup, share)
    mean = {n: torch.zeros_like(t) for n, t in whole.items()}
    sizes = setup.axes.cut_by_capacity
    total = 0.0
    for draw in product(*(subsets(size, share, sampling) for size in sizes.values())):
        chance = float(np.prod([p for p, _ in draw]))
        units = {a: kept for a, (_, kept) in zip(sizes, draw, strict=True)}
        cut = UnitCut(setup.axes, units)
        part, held = gather(cut, whole), factors_of_cut(cut, factors)
        for name, values in part.items():
            cut.add(name, mean[name], chance * values * held.get(name, torch.ones(())))
        total += chance
    assert total == pytest.approx(1, abs=EXACT)
    torch.testing.assert_close(mean, whole, rtol=0, atol=EXACT)


def test_the_mean_output_of_a_linear_model_is_the_full_models() -> None:
    """Exactly, over all 2^6 masks of its weights; deeper nets are not linear in them."""
    torch.manual_seed(0)
    share = 0.3
    net = nn.Linear(3, 2, bias=False)
    setup = made(net, share, three(), scheme={"granularity": "coordinate"})
    whole, x = initial_state(setup).tensors["weight"], setup.clients.dataset.train.x
    (factor,) = setup_factors(setup, share).values()
    mean = torch.zeros(len(x), 2, dtype=torch.float64)
    for bits in product((0.0, 1.0), repeat=6):
        cut = CoordinateCut({"weight": torch.tensor(bits).view(2, 3) > 0})
        chance = share ** sum(bits) * (1 - share) ** (6 - sum(bits))
        mean += chance * (x @ (factor * gather(cut, {"weight": whole})["weight"]).T)
    torch.testing.assert_close(mean, x @ whole.T, rtol=0, atol=EXACT)


def tasks_of(setup: Setup) -> list[Task]:
    dispatcher = Dispatcher(setup, initial_state(setup), setup.work)
    return [dispatcher.task(a) for a in plan(setup, 0)]


@pytest.mark.parametrize("granularity", ["unit", "coordinate"])
@pytest.mark.parametrize("net", [Joined, Gates, Square])
def test_a_client_takes_the_steps_of_the_definition(net: type[nn.Module], granularity: str) -> None:
    """The full net with S w by functional_call; w moves by torch's SGD."""
    torch.manual_seed(0)
    local = {"momentum": 0.9, "weight_decay": 0.01}
    setup = made(net(), 0.5, scheme={"granularity": granularity}, local=local)
    whole = initial_state(setup).tensors
    for task in tasks_of(setup):
        factors, own = setup_factors(setup, 0.5), setup.clients.examples(task.assignment.client)
        masks = {n: torch.zeros_like(t) for n, t in whole.items()}
        for name, mask in masks.items():
            task.cut.add(name, mask, 1.0)
        w = {n: t.clone().requires_grad_() for n, t in whole.items()}
        optimiser = torch.optim.SGD(w.values(), lr=0.05, momentum=0.9, weight_decay=0.01)
        order = batches(len(own), task.work, setup.seed, 0, task.assignment.client)
        for rows in order:
            index = torch.from_numpy(rows)
            used = {n: masks[n] * factors.get(n, torch.ones(())) * t for n, t in w.items()}
            z = torch.func.functional_call(setup.module, used, (own.x[index],))
            optimiser.zero_grad()
            value = functional.cross_entropy(z, own.y[index])
            value.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        (update,) = SerialEngine(setup).run([task])
        for name, tensor in update.tensors.items():
            expected = task.cut.part(name, w[name].detach())
            torch.testing.assert_close(tensor, expected, rtol=0, atol=EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize("rule", RULES)
def test_at_capacity_one_it_is_fedavg_bit_for_bit(model: str, rule: str) -> None:
    common: dict[str, Any] = {
        "clients": {"capacities": [1.0]}, "merge": {"rule": rule}, "local": {"steps": 2},
    }  # fmt: skip
    expected = one_round(tiny_setup(model, scheme={"name": "full"}, **common))
    for granularity in ("unit", "coordinate"):
        for sampling in ("bernoulli", "fixed"):
            choice = {"name": "unbiased", "granularity": granularity, "sampling": sampling}
            setup = tiny_setup(model, scheme=choice, **common)
            assert not setup_factors(setup, 1.0)
            assert one_round(setup) == expected


@pytest.mark.parametrize("model", ["cnn", Pixels, Joined, Square])
@pytest.mark.parametrize("granularity", ["unit", "coordinate"])
def test_both_engines_agree(model: str | type[nn.Module], granularity: str) -> None:
    """Stacks scale their tensors before the forward pass; float64, sums in another order."""
    torch.manual_seed(0)
    choice = {"name": "unbiased", "sampling": "fixed", "granularity": granularity}
    if isinstance(model, str):
        images = doubled(setup_of("mlp").clients.dataset)
        setup = setup_of(model, images, scheme=choice)
    else:
        setup = made(model(), 0.5, scheme=choice)
    tasks = [task for task in tasks_of(setup) if task.scales]
    assert len(tasks) > 1
    alone = {u.assignment.client: u for u in SerialEngine(setup).run(tasks)}
    for update in BatchedEngine(setup, always=True).run(tasks):
        torch.testing.assert_close(
            update.tensors, alone[update.assignment.client].tensors, rtol=0, atol=1e-10
        )


def test_capacities_are_evaluated_and_handed_out_scaled() -> None:
    torch.manual_seed(0)
    setup = made(Joined(), 0.5, scheme={"sampling": "fixed"})
    state = initial_state(setup)
    found = evaluate_capacities(setup, state, evaluate_model(setup, state))[0.5]
    cut = cut_of(setup, Assignment(0, EVALUATOR, 0.5))
    small = build_module(setup.module, cut)
    held = factors_of_cut(cut, setup_factors(setup, 0.5))
    load(small, {n: t * held.get(n, torch.ones(())) for n, t in gather(cut, state.tensors).items()})
    test = setup.clients.dataset.test
    by_hand = functional.cross_entropy(small(test.x), test.y).detach()
    assert found.loss == pytest.approx(float(by_hand), abs=EXACT)
    assert evaluate_model(setup, state, cut).loss != found.loss
    config: dict[str, Any] = {
        "data": {"partition": "iid"}, "train": {"rounds": 1}, "engine": {"name": "local"},
        "clients": {"count": 4, "per_round": 4, "capacities": [0.5]},
        "scheme": {"name": "unbiased", "sampling": "fixed"}, "local": {"absent_labels": "keep"},
    }  # fmt: skip
    result = train(Joined().double(), six(), config)
    net = result.submodel(0.5)
    state = result.state
    factors = setup_factors(result.setup, 0.5)
    assert float(factors["left.weight"]) == pytest.approx(3 / 2)  # two of three units
    assert factors["last.weight"].shape == (3, 7)
    for name, parameter in net.named_parameters():
        whole = state.tensors[name] * factors.get(name, torch.ones(()))
        assert set(parameter.detach().view(-1).tolist()) <= set(whole.view(-1).tolist())


def test_scaled_is_the_same_tensors_for_other_schemes() -> None:
    setup = tiny_setup("mlp", scheme={"name": "random"})
    tensors = initial_state(setup).tensors
    assert all(scale_model(setup, tensors, 0.5)[n] is t for n, t in tensors.items())


@pytest.mark.slow
def test_exports_are_scaled(tmp_path: Path) -> None:
    config = parse(
        {"model": {"name": "mlp", "width": 8}, "data": {"examples": 100, "test_examples": 50},
         "clients": {"count": 2, "per_round": 2, "capacities": [0.5]},
         "scheme": {"name": "unbiased", "sampling": "fixed"}, "engine": {"name": "local"},
         "local": {"steps": 1}, "train": {"rounds": 1}}
    )  # fmt: skip
    setup, folder = prepare(config), RunFolder(tmp_path / "run")
    folder.create(config)
    state, history = run_rounds(Training(config, setup), folder)
    path, score = Run(folder.path).export(0.5, "safetensors", tmp_path / "out")
    weights = load_file(path)["1.weight"]
    assert {float(v) for v in weights.view(-1)} <= {
        float(v) for v in (2 * state.tensors["1.weight"]).view(-1)
    }
    assert score is not None
    assert score.accuracy == history[-1]["capacity_accuracy"]["0.5"]
