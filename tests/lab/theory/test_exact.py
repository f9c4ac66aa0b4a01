"""The exact engine against brute force over masks, orders, participants and noise.

Brute force is simple: points with weights, multiplied by every possible round. Noise takes the two
values +-sigma/sqrt(d) in every coordinate, which has the variance of the lab's Gaussian; given the
masks, an iterate is affine in the noise, so the first two moments are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
import pytest

from submodel.schemes import Full, PartitionScheme, Random, Rolling, Scheme, Static
from submodel_lab.theory import (
    Masking,
    TheoryError,
    TrialPlan,
    bernoulli,
    coordinatewise,
    exact_moments,
    mask_list,
    quadratics,
    rolling,
    run_trials,
)
from submodel_lab.theory.problems import FloatArray, Quadratic

CLOSE = 1e-10
Rounds = list[tuple[float, FloatArray]]
"""Possible events of a round: a probability and the masks of all clients."""


def subsets(d: int, sizes: Iterable[int]) -> list[FloatArray]:
    masks = [(np.arange(1 << d)[:, None] >> np.arange(d)) & 1][0].astype(float)
    return [m for m in masks if m.sum() in set(sizes)]


def independent(per_client: list[list[tuple[float, FloatArray]]]) -> Rounds:
    return [
        (math.prod(chance for chance, _ in entry), np.array([m for _, m in entry]))
        for entry in product(*per_client)
    ]


def coins(p: FloatArray) -> list[tuple[float, FloatArray]]:
    every = subsets(len(p), range(len(p) + 1))
    chances = [float(np.prod(np.where(m > 0, p, 1 - p))) for m in every]
    return [(chance, m) for chance, m in zip(chances, every, strict=True) if chance]


def equals(masks: list[FloatArray]) -> list[tuple[float, FloatArray]]:
    return [(1 / len(masks), m) for m in masks]


@dataclass
class Brute:
    """A problem with weighted points after each round."""

    problem: Quadratic
    steps: int
    factors: FloatArray
    participants: int

    def advance(self, w: FloatArray, masks: FloatArray, eta: float) -> FloatArray:
        """Return all points (points x d) after a round with these masks, with equal probability."""
        n, d = self.problem.clients, self.problem.dimension
        size, shape = self.problem.noise / math.sqrt(d), (self.participants, self.steps, d)
        noises = product([-size, size], repeat=math.prod(shape)) if size else [np.zeros(shape)]
        xis = [np.reshape(noise, shape) for noise in noises]
        points = []
        for present in combinations(range(n), self.participants):
            for xi in xis:
                change = np.zeros_like(w)
                for number, i in enumerate(present):
                    local, s = w.copy(), masks[i] * self.factors[i]
                    for k in range(self.steps):
                        gradient = (s * local) @ self.problem.matrices[i]
                        gradient = gradient - self.problem.vectors[i] + xi[number, k]
                        local = local - eta * s * gradient
                    change += local - w
                points.append(w + change / self.participants)
        return np.concatenate(points)

    def output(self, w: FloatArray, masks: FloatArray) -> FloatArray:
        """Take the noiseless output step of all clients."""
        change = np.zeros_like(w)
        for a, b, s in zip(self.problem.matrices, self.problem.vectors, masks * self.factors,
                           strict=True):  # fmt: skip
            change += s * ((s * w) @ a - b)
        largest = max(np.linalg.eigvalsh(a)[-1] for a in self.problem.matrices)
        return np.asarray(w - change / (self.problem.clients * largest))

    def loss(self, w: FloatArray) -> FloatArray:
        a, b = self.problem.matrices.mean(0), self.problem.vectors.mean(0)
        return np.asarray(((w @ a / 2 - b) * w).sum(-1))

    def run(self, courses: list[tuple[float, list[FloatArray]]], etas: list[float], w0: FloatArray,
            target: FloatArray, last: Callable[[FloatArray], list[tuple[float, FloatArray]]]
            ) -> dict[str, Any]:  # fmt: skip
        """Return the moments over all courses of masks (a probability and masks for each round)."""
        rounds, d = len(etas), len(w0)
        means, seconds = np.zeros((rounds + 1, d)), np.zeros((rounds + 1, d, d))
        losses, output_loss, output_distance = np.zeros(rounds + 1), 0.0, 0.0
        ends, weights = [], []
        for chance, course in courses:
            points = w0[None]
            for r in range(rounds + 1):
                if r:
                    points = self.advance(points, course[r - 1], etas[r - 1])
                away = points - target
                means[r] += chance * points.mean(0)
                seconds[r] += chance * away.T @ away / len(points)
                losses[r] += chance * self.loss(points).mean()
            ends.append(points)
            weights.append(np.full(len(points), chance / len(points)))
        weight = np.concatenate(weights)
        for c, after in last(np.concatenate(ends)):
            output_loss += c * float(weight @ self.loss(after))
            output_distance += c * float(weight @ np.square(after - target).sum(1))
        best = np.linalg.solve(self.problem.matrices.mean(0), self.problem.vectors.mean(0))
        return {"means": means, "seconds": seconds, "gaps": losses - self.loss(best),
                "output gap": output_loss - self.loss(best), "output": output_distance}  # fmt: skip


def courses_of(rounds: Rounds, count: int, every: int = 1) -> list[tuple[float, list[FloatArray]]]:
    """List all sequences of independent rounds, with equal masks in groups of ``every``."""
    return [
        (math.prod(chance for chance, _ in course), [m for _, m in course for _ in range(every)])
        for course in product(rounds, repeat=count)
    ]


def compare(
    problem: Quadratic, masking: Masking, steps: int, eta: Any, rounds: int, courses: Any,
    last: Rounds | None, participants: int | None = None, start: Any = None,
) -> None:  # fmt: skip
    """Compare the engine with brute force; ``last``: masks of the output step (None: windows)."""
    plan = TrialPlan(masking, rounds, steps, eta, math.inf, participants=participants, start=start)
    found = exact_moments(problem, plan, keep=range(rounds + 1))
    brute = Brute(problem, steps, masking.factors(problem.dimension),
                  participants or problem.clients)  # fmt: skip

    def last_points(w: FloatArray) -> list[tuple[float, FloatArray]]:
        if last is None:
            windows = masking.list_masks(problem.dimension)[0].swapaxes(0, 1)
            return [(1.0, np.mean([brute.output(w, m) for m in windows], 0))]
        return [(chance, brute.output(w, m)) for chance, m in last]

    etas = list(eta) if isinstance(eta, tuple) else [eta] * rounds
    w0 = np.zeros(problem.dimension) if start is None else start
    expected = brute.run(courses, etas, w0, found.target, last_points)
    np.testing.assert_allclose(found.means, expected["means"], atol=CLOSE)
    np.testing.assert_allclose(found.distances, [np.trace(s) for s in expected["seconds"]],
                               atol=CLOSE)  # fmt: skip
    for r, second in enumerate(expected["seconds"]):
        np.testing.assert_allclose(found.seconds[r], second, atol=CLOSE)
    np.testing.assert_allclose(found.gaps, expected["gaps"], atol=CLOSE)
    assert found.output_gap == pytest.approx(expected["output gap"], abs=CLOSE)
    assert found.output_distance == pytest.approx(expected["output"], abs=CLOSE)
    assert abs(found.distances[-1] - found.distances[0]) > 1e-3


@pytest.fixture(params=["masks", "moments"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute K = 1 by enumeration and by four moments."""
    if request.param == "moments":
        monkeypatch.setattr("submodel_lab.theory.round_maps._FEW_MASKS", 0)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("steps", [1, 3])
def test_bernoulli_masks_of_unequal_p(steps: int) -> None:
    problem = quadratics(2, 2, noise=0.0)
    rounds = independent([coins(np.full(2, p)) for p in (0.3, 0.8)])
    masking = Masking(Random(), (0.3, 0.8))
    compare(problem, masking, steps, 0.2, 2, courses_of(rounds, 2), rounds)


@pytest.mark.usefixtures("_way")
def test_noise() -> None:
    problem = quadratics(1, 2, noise=1.5)
    rounds = independent([coins(np.full(2, 0.6))])
    for steps in (1, 2):
        compare(problem, bernoulli(0.6, 1), steps, 0.2, 2, courses_of(rounds, 2), rounds)


@pytest.mark.usefixtures("_way")
def test_one_round_of_more_coordinates_from_a_start_of_ones_own() -> None:
    p = np.array([[0.2, 0.5, 0.9, 0.8, 0.4], [1.0, 0.3, 1.0, 1.0, 1.0]])
    problem = quadratics(2, 5, noise=0.0)
    start = np.array([1.0, -2.0, 0.5, 3.0, -1.0])
    rounds = independent([coins(row) for row in p])
    compare(problem, coordinatewise(p), 1, 0.1, 1, courses_of(rounds, 1), rounds, start=start)
    masking = coordinatewise(p, unbiased=True)
    compare(problem, masking, 1, 0.05, 1, courses_of(rounds, 1), rounds, start=start)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("steps", [1, 2])
def test_masks_of_a_fixed_size(steps: int) -> None:
    problem = quadratics(2, 4, noise=0.0)
    masking = Masking(Random("fixed"), (0.5, 1.0))  # 2 and all of 4
    rounds = independent([equals(subsets(4, [2])), equals(subsets(4, [4]))])
    compare(problem, masking, steps, 0.1, 2, courses_of(rounds, 2), rounds)
    # four distinct coordinates are held together only in sets of four and more
    problem = quadratics(2, 5, noise=0.0)
    rounds = independent([equals(subsets(5, [4])), equals(subsets(5, [3]))])
    compare(problem, Masking(Random("fixed"), (0.8, 0.6)), steps, 0.1, 1, courses_of(rounds, 1),
            rounds, start=np.array([1.0, -2.0, 0.5, 3.0, -1.0]))  # fmt: skip


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_some_clients_take_part(noise: float) -> None:
    problem = quadratics(3, 2, noise=noise)
    masking = coordinatewise(np.array([[0.5, 0.3], [1.0, 0.6], [0.7, 1.0]]))
    rounds = independent([coins(np.array(p)) for p in ([0.5, 0.3], [1.0, 0.6], [0.7, 1.0])])
    for participants in (1,) if noise else (1, 2):
        compare(problem, masking, 1, 0.2, 1, courses_of(rounds, 1), rounds, participants,
                start=np.array([1.0, 2.0]))  # fmt: skip
    windows = [np.array([[1.0, 0], [1, 0], [1, 0]]), np.array([[0.0, 1], [0, 1], [0, 1]])]
    orders: Any = [(0.5, list(order)) for order in permutations(windows)]
    compare(problem, rolling(0.5, 3, 2), 1, 0.2, 2, orders, None, 2 if noise == 0 else 1)


def window_courses(windows: list[FloatArray], rounds: int) -> Any:
    """List every order in every epoch."""
    epochs = -(-rounds // len(windows))
    all_orders = list(permutations(windows))
    return [
        (len(all_orders) ** -epochs, [m for order in course for m in order][:rounds])
        for course in product(all_orders, repeat=epochs)
    ]


@pytest.mark.parametrize("rounds", [6, 5, 2])
def test_shuffled_windows(rounds: int) -> None:
    """All orders of two epochs, of which one may be partial."""
    problem = quadratics(2, 3, noise=0.0)
    masking = Masking(Rolling(3), (1 / 3, 2 / 3))
    windows = [np.array([np.roll([1.0, 0, 0], j), np.roll([1.0, 1, 0], j)]) for j in range(3)]
    courses = window_courses(windows, rounds)
    compare(problem, masking, 2, 0.2, rounds, courses, None)


def test_sequential_windows() -> None:
    problem = quadratics(2, 4, noise=0.0)
    windows = [np.array([np.roll([1.0, 1, 0, 0], j)] * 2) for j in range(4)]
    compare(problem, rolling(0.5, 2, 4, sequential=True), 3, 0.1, 7,
            [(1.0, (windows * 2)[:7])], None)  # fmt: skip


@pytest.mark.parametrize("scheme", [Full(), Static()])
def test_masks_that_never_change(scheme: Scheme) -> None:
    """The static scheme never trains the last coordinate: its F_m has no unique optimum."""
    problem = quadratics(2, 3, noise=0.0)
    capacities = (1.0, 1.0) if isinstance(scheme, Full) else (1 / 3, 2 / 3)
    if isinstance(scheme, Static):
        with pytest.raises(TheoryError, match="singular"):
            exact_moments(problem, TrialPlan(Masking(scheme, capacities), 3, 2, 0.1, math.inf))
        return
    masks = np.ones((2, 3))
    compare(problem, Masking(scheme, capacities), 2, 0.1, 3, [(1.0, [masks] * 3)], [(1.0, masks)])


@pytest.mark.parametrize("every", [1, 2])
def test_parts_that_clients_do_not_share(every: int) -> None:
    problem = quadratics(2, 4, noise=0.0)
    masking = Masking(PartitionScheme(every), (0.5, 0.5))
    rounds = [(1 / 6, np.array([m, 1 - m])) for m in subsets(4, [2])]
    compare(problem, masking, 2, 0.1, 2 * every, courses_of(rounds, 2, every), rounds)


@pytest.mark.parametrize("together", [True, False])
def test_lists_of_masks(together: bool) -> None:
    table = np.array([[[1, 0, 1], [0, 1, 1]], [[0, 1, 0], [1, 1, 1]]], float)
    chances = [0.25, 0.75]
    rounds: Any = list(zip(chances, table, strict=True))
    if not together:
        rounds = independent([list(zip(chances, table[:, i], strict=True)) for i in (0, 1)])
    problem = quadratics(2, 3, noise=0.0)
    compare(problem, mask_list(table, chances, together), 2, 0.2, 3, courses_of(rounds, 3), rounds)


def test_step_sizes_that_fall() -> None:
    """A few step sizes, and so many that rounds between the nodes are interpolated."""
    problem = quadratics(1, 2, noise=0.0)
    rounds = independent([coins(np.full(2, 0.6))])
    for steps in (1, 2):  # 4 step sizes; from 2 K + 2 on they are interpolated
        etas = tuple(0.3 / (1 + r) for r in range(4))
        compare(problem, bernoulli(0.6, 1), steps, etas, 4, courses_of(rounds, 4), rounds)
    windows = [np.array([[1.0, 0]]), np.array([[0.0, 1]])]
    compare(problem, rolling(0.5, 1, 2), 2, (0.3, 0.2, 0.1, 0.05), 4, window_courses(windows, 4),
            None)  # fmt: skip


def test_trials_agree() -> None:
    """Within four standard errors of 300 trials."""
    problem = quadratics(3, 8, noise=1.0)
    for masking in (bernoulli(0.5, 3), rolling(0.5, 3, 8)):
        plan = TrialPlan(masking, 16, 2, 0.05, math.inf, trials=300)
        found, exact = run_trials(problem, plan, [16]), exact_moments(problem, plan)
        values = np.square(found.iterates[16] - exact.target).sum(1)
        error = values.std() / math.sqrt(len(values))
        assert values.mean() == pytest.approx(exact.distances[-1], abs=4 * error)
        assert found.projections == 0


def test_many_coordinates_need_no_list() -> None:
    """d = 40: by moments, and a round is applied without its matrix."""
    problem = quadratics(2, 40, noise=1.0)
    for masking in (bernoulli(0.5, 2), Masking(Random("fixed"), (0.5, 0.25))):
        plan = TrialPlan(masking, 10, 1, 0.1, math.inf, trials=200)
        found, exact = run_trials(problem, plan, [10]), exact_moments(problem, plan)
        values = np.square(found.iterates[10] - exact.target).sum(1)
        error = values.std() / math.sqrt(len(values))
        assert values.mean() == pytest.approx(exact.distances[-1], abs=4 * error)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"radius": 3.0}, "projection"),
        ({"masking": bernoulli(0.5, 2), "steps": 2}, "K = 2 "),
        ({"masking": rolling(0.5, 2, 15)}, "15 "),
        ({"eta": 9.0, "rounds": 400}, "diverge"),
        ({"eta": (0.1,)}, "for 4"),
        ({"start": np.zeros(3)}, "(3,)"),
        ({"masking": Masking(PartitionScheme(3), (0.2, 0.2))}, "4 rounds"),
        ({"masking": Masking(PartitionScheme(), (0.4, 0.4))}, "parts"),
    ],
)
def test_what_is_not_exact_is_refused(change: Any, words: str) -> None:
    problem = quadratics(2, 5 if "PartitionScheme(every=3" in repr(change) else 15)
    plan = TrialPlan(bernoulli(1.0, 2), 4, 1, 0.1, math.inf)
    with pytest.raises(TheoryError) as raised, np.errstate(all="ignore"):
        exact_moments(problem, replace(plan, **change))
    assert words in str(raised.value)
