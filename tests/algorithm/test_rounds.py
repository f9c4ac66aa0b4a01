"""A round: FedAvg and a plain loop, Algorithms 1 and 2 and their plain NumPy transcription.

FedAvg on digits has the same numbers to 1e-6, the algorithms the same iterates to 1e-12 in float64.
Tasks are made on request of the engine, and seconds are reported by phase.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from examples.paper_algorithms import (
    Vector,
    ball,
    fill_in,
    identity,
    randomly_masked_fedavg,
    rolling_masked_fedavg,
    selective,
    window,
)
from torch import Tensor, nn
from torch.nn import functional

from submodel.algorithm.rounds import initial_state, output_step, step
from submodel.algorithm.types import Outcome, Setup, Task
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.randomness import generator
from submodel.data import dataset
from submodel.engines.serial import SerialEngine
from submodel.model.cost import CostModel
from submodel.schemes import Draw, Mask, Static
from submodel.tasks.training import LocalWork, batches
from tests.support.common import tiny_setup
from tests.support.rounds import step_of


class Watching(SerialEngine):
    """Record the number of tasks that were made before each update."""

    def __init__(self, setup: Setup, made: list[int]) -> None:
        super().__init__(setup)
        self.made, self.seen = made, list[int]()

    def bundles(self, assignments: Any) -> Any:
        """Bundle all clients."""
        first, *others = super().bundles(assignments)
        every = [a for bundle in (first, *others) for a in bundle.assignments]
        return [type(first)(every)]

    def run(self, tasks: Iterable[Task]) -> Iterator[Outcome]:  # type: ignore[override]
        for outcome in super().run(tasks):
            self.seen.append(len(self.made))
            yield outcome


class Noting(Static):
    """Record the clients of its draws."""

    def __init__(self, drawn: list[int]) -> None:
        object.__setattr__(self, "drawn", drawn)

    drawn: list[int]

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        if draw.client not in self.drawn[-1:]:
            self.drawn.append(draw.client)
        return super().select(axis, size, capacity, draw)


def test_a_task_is_made_when_the_engine_asks_for_it() -> None:
    drawn: list[int] = []
    setup = tiny_setup("mlp", scheme={"name": "static"}, local={"steps": 1})
    setup = replace(setup, scheme=Noting(drawn))
    costs = CostModel(setup.module, setup.clients.dataset.example)
    engine = Watching(setup, drawn)
    state, _ = step(setup, initial_state(setup), engine, costs)
    assert engine.seen == [1, 2, 3, 4]
    drawn.clear()
    output_step(setup, state, engine, costs, 10.0)
    assert engine.seen == [1, 2, 3, 4] * 2


ALWAYS = {"plan", "gather", "train", "merge", "reduce"}
PHASES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "plain": ({"name": "rolling"}, ALWAYS),
    "adapting": ({"name": "pruned", "granularity": "coordinate"}, {*ALWAYS, "adapt"}),
    "observing": ({"name": "masked-sgd"}, {*ALWAYS, "observe"}),
    "both": (
        {"name": "masked-sgd", "sequence": "pruned", "granularity": "coordinate"},
        {*ALWAYS, "adapt", "observe"},
    ),
}


@pytest.mark.parametrize("case", PHASES)
def test_seconds_are_told_by_phase(case: str) -> None:
    scheme, phases = PHASES[case]
    alone = {"count": 1, "per_round": 1, "capacities": [0.5]}
    setup = tiny_setup("mlp", scheme=scheme, clients=alone, local={"steps": 1})
    _, report = step_of(setup)
    assert report.seconds.keys() == phases
    assert all(seconds >= 0 for seconds in report.seconds.values())


ROUNDS = 3


@pytest.mark.slow
def test_fedavg_equals_a_plain_loop() -> None:
    config = parse(
        {
            "model": {"name": "mlp", "width": 32},
            "clients": {"count": 12, "per_round": 4, "capacities": [1]},
            "scheme": {"name": "full"},
            "merge": {"weights": "examples"},
            "local": {"epochs": 2, "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3, "clip": 1.0,
                      "absent_labels": "keep"},
        }
    )  # fmt: skip
    setup = prepare(config)
    model = copy.deepcopy(setup.module)
    for r in range(ROUNDS):
        total = 0
        average = [torch.zeros_like(p) for p in model.parameters()]
        for client in setup.population.sample(r):
            data = setup.clients.examples(client)
            local = copy.deepcopy(model)
            optimizer = torch.optim.SGD(
                local.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3
            )
            for xi in batches(len(data), setup.work, setup.seed, r, client):
                optimizer.zero_grad()
                loss = functional.cross_entropy(local(data.x[xi]), data.y[xi])
                torch.autograd.backward(loss)
                torch.nn.utils.clip_grad_norm_(local.parameters(), 1.0)
                optimizer.step()
            for mean, trained in zip(average, local.parameters(), strict=True):
                mean += len(data) * trained.detach()
            total += len(data)
        with torch.no_grad():
            for parameter, mean in zip(model.parameters(), average, strict=True):
                parameter.copy_(mean / total)

    state = initial_state(setup)
    engine, costs = SerialEngine(setup), CostModel(setup.module, setup.clients.dataset.example)
    for _ in range(ROUNDS):
        state, _ = step(setup, state, engine, costs)
    for name, parameter in model.named_parameters():
        # averages of float32 weights, ours in float64
        torch.testing.assert_close(state.tensors[name], parameter.detach(), rtol=0, atol=1e-6)


N, EXAMPLES, D, K, BATCH = 4, 12, 6, 3, 4
ETA, L = 0.1, 2.0
CAPACITIES = [1.0, 0.5, 1 / 3]


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets).square().mean() / 2


def logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.softplus(-targets * outputs[:, 0]).mean()


def residual_squared(z: Vector, t: Vector) -> Vector:
    return z - t


def residual_logistic(z: Vector, t: Vector) -> Vector:
    slope: Vector = -t / (1 + np.exp(t * z))
    return slope


PROBLEMS: dict[str, tuple[Any, Callable[[Vector, Vector], Vector]]] = {
    "quadratic": (squared_error, residual_squared),
    "logistic": (logistic, residual_logistic),
}


def make_setup(
    problem: str,
    scheme: dict[str, Any],
    rule: str,
    radius: float | None,
    local: dict[str, Any] = {},  # noqa: B006 - read only
    weights: str = "uniform",
    total: int = N * EXAMPLES,
    kind: torch.dtype = torch.float64,
) -> Setup:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(total, D))
    y = np.sign(x @ rng.normal(size=D) + 0.3 * rng.normal(size=len(x)))
    data = dataset(*[(torch.from_numpy(x).to(kind), torch.from_numpy(y).to(kind))] * 2)
    model = nn.Linear(D, 1, bias=False).to(kind)
    nn.init.zeros_(model.weight)
    projection = {} if radius is None else {"projection": "ball", "radius": radius}
    config = parse(
        {
            "seed": 3,
            "data": {"partition": "iid"},
            "clients": {"count": N, "per_round": N, "capacities": CAPACITIES},
            "scheme": {**scheme, "granularity": "coordinate"},
            "merge": {"rule": rule, "weights": weights, **projection},
            "local": {"steps": K, "batch_size": BATCH, "lr": ETA, "momentum": 0,
                      "absent_labels": "keep", **local},
        }
    )  # fmt: skip
    return prepare(config, model, data, loss=PROBLEMS[problem][0])


def transcribed_gradients(
    setup: Setup, problem: str, decay: float = 0.0
) -> tuple[list[Any], list[Any]]:
    """Return the gradients of f_i(w) + decay / 2 ||w||^2."""
    residual = PROBLEMS[problem][1]
    work = LocalWork(lr=ETA, epochs=None, steps=K, batch_size=BATCH)
    full, stochastic = [], []
    for i in range(N):
        own = setup.clients.examples(i)
        x, y = own.x.numpy(), own.y.numpy()

        def gradient(w: Vector, x: Vector = x, y: Vector = y) -> Vector:
            return x.T @ residual(x @ w, y) / len(x) + decay * w

        def sampled(w: Vector, r: int, k: int, i: int = i, x: Vector = x, y: Vector = y) -> Vector:
            xi = list(batches(len(x), work, setup.seed, r, i))[k]
            return x[xi].T @ residual(x[xi] @ w, y[xi]) / len(xi) + decay * w

        full.append(gradient)
        stochastic.append(sampled)
    return stochastic, full


def iterate(setup: Setup, rounds: int) -> tuple[list[Vector], Vector]:
    engine, costs = SerialEngine(setup), CostModel(setup.module, setup.clients.dataset.example)
    state = initial_state(setup)
    iterates = [state.tensors["weight"].numpy().ravel()]
    for _ in range(rounds):
        state, _ = step(setup, state, engine, costs)
        iterates.append(state.tensors["weight"].numpy().ravel())
    return iterates, output_step(setup, state, engine, costs, L).tensors["weight"].numpy().ravel()


def assert_same(ours: tuple[list[Vector], Vector], theirs: tuple[list[Vector], Vector]) -> None:
    for r, (mine, written) in enumerate(zip(ours[0], theirs[0], strict=True)):
        np.testing.assert_allclose(mine, written, rtol=0, atol=1e-12, err_msg=f"round {r}")
    np.testing.assert_allclose(ours[1], theirs[1], rtol=0, atol=1e-12, err_msg="output")
    assert np.abs(ours[0][-1]).max() > 0.05  # the weights changed


@pytest.mark.every(2)
@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("average", [fill_in, selective])
@pytest.mark.parametrize("radius", [None, 0.4])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_algorithm_1(problem: str, average: Any, radius: float | None, decay: float) -> None:
    setup = make_setup(
        problem, {"name": "random"}, average.__name__, radius, {"weight_decay": decay}
    )
    stochastic, full = transcribed_gradients(setup, problem, decay)

    def masks(i: int, r: int) -> Vector:
        p = setup.population.capacity(i, r)
        rng = generator(setup.seed, "mask", r, i, "coordinates")
        return (rng.random(D) < p).astype(np.float64)

    rounds = 12
    project = identity if radius is None else ball(radius)
    theirs = randomly_masked_fedavg(stochastic, full, masks, D, rounds, K, ETA, L, project, average)
    assert_same(iterate(setup, rounds), theirs)
    if radius is not None and not decay:
        # the projection was active
        assert max(float(np.linalg.norm(w)) for w in theirs[0]) > radius - 1e-9


@pytest.mark.every(2)
@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("average", [fill_in, selective])
@pytest.mark.parametrize("radius", [None, 0.4])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_algorithm_2(problem: str, average: Any, radius: float | None, decay: float) -> None:
    setup = make_setup(
        problem, {"name": "rolling"}, average.__name__, radius, {"weight_decay": decay}
    )
    stochastic, full = transcribed_gradients(setup, problem, decay)
    sizes = {1.0: 6, 0.5: 3, 1 / 3: 2}

    def masks(i: int, j: int) -> Vector:
        return window(D, j, sizes[setup.population.capacity(i, 0)])

    def permutations(e: int) -> Sequence[int]:
        order: list[int] = generator(setup.seed, "permutation", e).permutation(D).tolist()
        return order

    epochs = 3
    project = identity if radius is None else ball(radius)
    theirs = rolling_masked_fedavg(
        stochastic, full, masks, permutations, D, epochs, D, K, ETA, L, project, average
    )
    assert_same(iterate(setup, epochs * D), theirs)


def test_the_masks_of_the_clients_really_differ() -> None:
    setup = make_setup("quadratic", {"name": "random"}, "fill_in", None)
    assert len({setup.population.capacity(i, 0) for i in range(N)}) == 3


def only_output_step(setup: Setup) -> Vector:
    engine, costs = SerialEngine(setup), CostModel(setup.module, setup.clients.dataset.example)
    new = output_step(setup, initial_state(setup), engine, costs, L)
    return new.tensors["weight"].numpy().ravel()


def test_the_output_step_clips_and_weighs_clients_as_the_rounds_do() -> None:
    """From w = 0, at capacity 1: w^ = -(1/L) sum_i a_i clip(grad f_i(0)), a_i as in the merge."""
    clip, total = 0.2, N * EXAMPLES - 6  # 11, 11, 10 and 10 examples
    for weights in ("uniform", "examples"):
        setup = make_setup(
            "quadratic", {"name": "full"}, "selective", None, {"clip": clip}, weights, total
        )
        sizes = np.array([setup.clients.size(i) for i in range(N)])
        assert len(set(sizes)) > 1
        share = sizes / sizes.sum() if weights == "examples" else np.full(N, 1 / N)
        expected = np.zeros(D)
        for i, gradient in enumerate(transcribed_gradients(setup, "quadratic")[1]):
            g = gradient(np.zeros(D))
            norm = float(np.linalg.norm(g))
            assert norm > clip
            expected -= share[i] * g * clip / (norm + 1e-6) / L  # torch's clip_grad_norm_
        np.testing.assert_allclose(only_output_step(setup), expected, rtol=0, atol=1e-12)


def test_the_output_step_computes_in_the_precision_of_the_rounds() -> None:
    exact, mixed = (
        only_output_step(
            make_setup(
                "quadratic",
                {"name": "full"},
                "selective",
                None,
                {"precision": precision},
                kind=torch.float32,
            )
        )
        for precision in ("float32", "bfloat16")
    )
    assert 0 < np.abs(exact - mixed).max() < 0.02
