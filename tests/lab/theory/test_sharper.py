"""The theorems of docs/theory/sharper.md, against independent derivations, to 1e-8.

For statements about small step sizes, the stationary moments are solved here (Kronecker products
over all masks) at halving step sizes, and extrapolated to 0 by Richardson's scheme.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise, permutations, product
from typing import Any

import numpy as np
import pytest

from submodel.schemes import PartitionScheme, Random, Rolling
from submodel_lab.theory import (
    Logistic,
    MaskedObjective,
    Masking,
    TheoryError,
    TrialPlan,
    bernoulli,
    exact_moments,
    mask_list,
    quadratics,
    rolling,
    run_trials,
)
from submodel_lab.theory.data import Directions
from submodel_lab.theory.limits import (
    balance,
    distance_bounds,
    exact_residual,
    first_order_shift,
    second_order_bias,
)
from submodel_lab.theory.masking import MOST_LISTED
from submodel_lab.theory.problems import FloatArray, Quadratic
from submodel_lab.theory.theorems import theorem_1

CLOSE = 1e-8
JointMasks = list[tuple[float, FloatArray]]
"""Masks of all clients in a round, with their probability."""


def coin_masks(probabilities: list[float], d: int) -> JointMasks:
    every = [np.array(m) for m in product((0.0, 1.0), repeat=d)]
    joint = []
    for entry in product(every, repeat=len(probabilities)):
        chances = [p ** m.sum() * (1 - p) ** (d - m.sum())
                   for p, m in zip(probabilities, entry, strict=True)]  # fmt: skip
        if math.prod(chances):
            joint.append((math.prod(chances), np.array(entry)))
    return joint


def round_of(problem: Quadratic, masks: FloatArray, steps: int, eta: float
             ) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """Return the affine map of (w, 1) by K single steps, and the covariance of the noise."""
    n, d = problem.clients, problem.dimension
    total, covariance = np.zeros((d + 1, d + 1)), np.zeros((d + 1, d + 1))
    for a, b, m in zip(problem.matrices, problem.vectors, masks, strict=True):
        step = np.eye(d + 1)
        step[:d, :d] -= eta * np.diag(m) @ a @ np.diag(m)
        step[:d, d] = eta * m * b
        whole, noise = np.eye(d + 1), np.zeros((d + 1, d + 1))
        one = np.diag([*(eta**2 * problem.noise**2 / d * m), 0.0])
        for _ in range(steps):
            whole, noise = step @ whole, step @ noise @ step.T + one
        total += whole / n
        covariance += noise / n**2
    return total, covariance


def settle(maps: list[tuple[float, FloatArray, FloatArray]]) -> FloatArray:
    """Return the E[z z'] that is stationary under a random affine map (chance, T, noise)."""
    size = len(maps[0][1])
    operator: Any = sum(chance * np.kron(t, t) for chance, t, _ in maps)
    noise: Any = sum(chance * c for chance, _, c in maps)
    system = np.eye(size**2) - operator
    # the equation of E[1 * 1] = 1 is empty, so it is replaced
    system[-1], right = 0.0, noise.ravel()
    system[-1, -1], right[-1] = 1.0, 1.0
    return np.asarray(np.linalg.solve(system, right).reshape(size, size))


def extrapolate(value: Callable[[float], FloatArray], start: float, count: int = 7) -> FloatArray:
    """Return the limit at 0 of a smooth function of the step size."""
    row = [value(start / 2**k) for k in range(count)]
    for order in range(1, count):
        row = [(2**order * b - a) / (2**order - 1) for a, b in pairwise(row)]
    return row[0]


def settled(problem: Quadratic, target: FloatArray, maps: Callable[[float], Any], eta: float
            ) -> tuple[FloatArray, float]:  # fmt: skip
    """Return E u and E||u||^2, u = w - target."""
    d = problem.dimension
    there, back = np.eye(d + 1), np.eye(d + 1)
    there[:d, d], back[:d, d] = -target, target
    # centred first, so that small moments keep their digits
    moments = settle([(chance, there @ t @ back, c) for chance, t, c in maps(eta)])
    return moments[:d, d], float(np.trace(moments[:d, :d]))


def fresh(problem: Quadratic, joint: JointMasks, steps: int) -> Callable[[float], Any]:
    return lambda eta: [(c, *round_of(problem, m, steps, eta)) for c, m in joint]


FRESH: dict[str, tuple[Masking, JointMasks]] = {
    "equal": (bernoulli(0.5, 2), coin_masks([0.5, 0.5], 3)),
    "unequal": (Masking(Random(), (0.3, 1.0)), coin_masks([0.3, 1.0], 3)),
    "fixed": (
        Masking(Random("fixed"), (1 / 3, 2 / 3)),
        [(1 / 9, np.array([a, 1 - b])) for a in np.eye(3) for b in np.eye(3)],
    ),
    "parts": (
        Masking(PartitionScheme(), (1 / 3, 1 / 3)),
        [(1 / 6, np.eye(3)[list(order[:2])]) for order in permutations(range(3))],
    ),
    "list": (
        mask_list(np.array([[[1, 0, 1], [1, 1, 0]], [[0, 1, 1], [0, 0, 1]]], float), [0.3, 0.7]),
        [(0.3, np.array([[1.0, 0, 1], [1, 1, 0]])), (0.7, np.array([[0.0, 1, 1], [0, 0, 1]]))],
    ),
}


@pytest.mark.parametrize("name", FRESH)
@pytest.mark.parametrize("steps", [1, 3])
def test_where_fresh_masks_settle(name: str, steps: int) -> None:
    """E||u||^2/(eta K) -> tr(H^-1 Q)/2 and E u/eta -> the second-order bias."""
    masking, joint = FRESH[name]
    problem = quadratics(2, 3, 1.0, 3.0, noise=2.0)
    found, bias = balance(problem, masking), second_order_bias(problem, masking, steps)
    maps = fresh(problem, joint, steps)
    error = extrapolate(
        lambda eta: np.array(settled(problem, found.optimum, maps, eta)[1] / (eta * steps)), 0.08
    )
    assert found.settled_error(steps) == pytest.approx(float(error), rel=CLOSE)
    mean = extrapolate(lambda eta: settled(problem, found.optimum, maps, eta)[0] / eta, 0.08)
    np.testing.assert_allclose(bias, mean, atol=CLOSE)
    assert (np.linalg.norm(bias) > 0.005) == (steps > 1)


@pytest.mark.parametrize("order", ["shuffled", "sequential"])
@pytest.mark.parametrize("steps", [1, 2])
def test_where_windows_settle(order: Any, steps: int) -> None:
    """Without noise E||u||^2 is the squared bias, of order eta^2, as masks add no variance."""
    masking = Masking(Rolling(3, order), (1 / 3, 2 / 3))
    windows = [np.array([np.roll([1.0, 0, 0], j), np.roll([1.0, 1, 0], j)]) for j in range(3)]
    orders = list(permutations(range(3))) if order == "shuffled" else [(0, 1, 2)]

    def epochs(problem: Quadratic, eta: float) -> Any:
        rounds = [round_of(problem, m, steps, eta) for m in windows]
        maps = []
        for one in orders:
            whole, noise = np.eye(4), np.zeros((4, 4))
            for j in one:
                t, c = rounds[j]
                whole, noise = t @ whole, t @ noise @ t.T + c
            maps.append((1 / len(orders), whole, noise))
        return maps

    quiet, noisy = (quadratics(2, 3, 1.0, 3.0, noise=noise) for noise in (0.0, 2.0))
    bias, found = second_order_bias(quiet, masking, steps), balance(noisy, masking)
    target = found.optimum
    mean = extrapolate(
        lambda eta: settled(quiet, target, lambda e: epochs(quiet, e), eta)[0] / eta, 0.08
    )
    np.testing.assert_allclose(bias, mean, atol=CLOSE)
    square = extrapolate(
        lambda eta: np.array(settled(quiet, target, lambda e: epochs(quiet, e), eta)[1] / eta**2),
        0.08, 5,
    )  # fmt: skip
    assert float(bias @ bias) == pytest.approx(float(square), rel=1e-6)  # 1e-16 / eta^2 is left
    error = extrapolate(
        lambda eta: np.array(
            settled(noisy, target, lambda e: epochs(noisy, e), eta)[1] / (eta * steps)
        ), 0.08,
    )  # fmt: skip
    assert found.settled_error(steps) == pytest.approx(float(error), rel=CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "limit", "at_20480"), [(0, 0.2700, 0.2699), (10, 7.0035, 7.0017)]
)
def test_the_constant_of_theorem_1s_rate(noise: float, limit: float, at_20480: float) -> None:
    """R E||w_R - w*(p)||^2 / log(KR), d = 10, N = 4, K = 5, p = 1/2, Theorem 1's step."""
    problem = quadratics(4, 10, 1.0, 2.0, noise=noise)
    masking, rounds = bernoulli(0.5, 4), 20480
    h = (problem.matrices.mean(0) + np.diag(np.diag(problem.matrices.mean(0)))) / 4
    best = np.linalg.solve(h, problem.vectors.mean(0) / 2)
    c = np.zeros((10, 10))
    masks = np.array(list(product((0.0, 1.0), repeat=10)))
    for a, b in zip(problem.matrices, problem.vectors, strict=True):
        g = masks * ((masks * best) @ a - b)
        c += np.cov(g.T, bias=True) / 4
    solved = (
        np.trace(np.linalg.solve(h, c)) + 0.5 * noise**2 / 50 * np.trace(np.linalg.inv(h))
    ) / (4 * 0.5)
    found = balance(problem, masking).rate_constant(5, 0.5)
    assert found == pytest.approx(solved, rel=CLOSE)
    assert found == pytest.approx(limit, abs=5e-5)
    eta = theorem_1(problem, 0.5, 5, rounds).eta
    exact = exact_moments(problem, TrialPlan(masking, rounds, 5, eta, math.inf))
    assert rounds * exact.distances[-1] / math.log(5 * rounds) == pytest.approx(at_20480, abs=5e-5)


@pytest.mark.parametrize("eta_l", [1.0, 0.3, 0.05])
def test_a_round_contracts(eta_l: float) -> None:
    """E||T u||^2 <= (1 - eta K theta lambda)||u||^2, theta = (1 - (1 - eta L)^K)/(eta K L)."""
    problem = quadratics(2, 3, 0.5, 3.0)
    steps, largest = 4, problem.smoothness
    eta = eta_l / largest
    joint = coin_masks([0.4, 0.7], 3)
    square: Any = 0
    for chance, m in joint:
        t = round_of(problem, m, steps, eta)[0][:3, :3]
        square = square + chance * t.T @ t
    h: Any = sum(chance * np.mean([np.diag(x) @ a @ np.diag(x) for a, x in
                                   zip(problem.matrices, m, strict=True)], 0)
                 for chance, m in joint)  # fmt: skip
    theta = (1 - (1 - eta_l) ** steps) / (eta_l * steps)
    least = np.linalg.eigvalsh(h)[0]
    assert np.linalg.eigvalsh(square)[-1] <= 1 - eta * steps * theta * least + 1e-12
    assert least >= 0.5 * 0.55 - 1e-12  # mu times the mean of p


@pytest.mark.parametrize("p", [(0.5, 0.5, 0.5), (1.0, 0.25, 0.25), (0.9, 0.2, 0.7)])
def test_the_residual_in_closed_form(p: tuple[float, ...]) -> None:
    problem = quadratics(3, 4, 1.0, 5.0, heterogeneity=2.0)
    best = np.linalg.solve(problem.matrices.mean(0), problem.vectors.mean(0))
    h, vector, drift = np.zeros((4, 4)), np.zeros(4), np.zeros(4)
    for a, b, q in zip(problem.matrices, problem.vectors, p, strict=True):
        for mask in product((0.0, 1.0), repeat=4):
            m = np.array(mask)
            chance = q ** m.sum() * (1 - q) ** (4 - m.sum()) / 3
            h += chance * np.diag(m) @ a @ np.diag(m)
            vector += chance * m * b
        diagonal = np.diag(np.diag(a))
        drift += q * (a @ best - b + (1 - q) * (diagonal - a) @ best) / 3
    truth = best - np.linalg.solve(h, vector)
    np.testing.assert_allclose(np.linalg.solve(h, drift), truth, atol=CLOSE)
    masking = Masking(Random(), p)
    np.testing.assert_allclose(exact_residual(problem, masking), truth, atol=CLOSE)
    bounds = distance_bounds(problem, masking)
    assert np.linalg.norm(truth) <= bounds.unequal
    assert math.isnan(bounds.by_condition) == (len(set(p)) > 1)


def test_the_bounds_hold_and_are_close() -> None:
    """(1 - rho)(kappa_F - 1)||w*|| over problems and p; fixed sizes are like Bernoulli with rho."""
    ratios = []
    for seed in range(20):
        problem = quadratics(4, 10, 1.0, 2.0, seed=seed)
        for p in (0.1, 0.5, 0.9):
            masking = bernoulli(p, 4)
            distance = float(np.linalg.norm(exact_residual(problem, masking)))
            bounds = distance_bounds(problem, masking)
            assert distance <= bounds.by_condition <= bounds.unequal
            assert distance <= bounds.smooth
            ratios.append(bounds.by_condition / distance)
        sizes = Masking(Random("fixed"), (0.5,) * 4)
        same = bernoulli(4 / 9, 4)  # (s - 1)/(d - 1)
        np.testing.assert_allclose(
            exact_residual(problem, sizes), exact_residual(problem, same), atol=CLOSE
        )
        assert distance_bounds(problem, sizes).by_condition == pytest.approx(
            distance_bounds(problem, same).by_condition
        )
        # any masks, equal for all clients and uniform over coordinates: without the factor 1 - rho
        windows = float(np.linalg.norm(exact_residual(problem, rolling(0.3, 4, 10))))
        assert windows <= distance_bounds(problem, same).by_condition / (1 - 4 / 9)
    assert min(ratios) > 2
    assert max(ratios) < 28


def test_other_convex_losses() -> None:
    """Logistic: the shift for p near 1, the bound without d, and stationary trials."""
    x, y = Directions(4, 6).draw(1, 12, "sharper")
    problem = Logistic(3 * x, y, 0.1)
    best = MaskedObjective(problem).optimum(50.0)
    shift = first_order_shift(problem, 50.0)
    for p in (0.5, 0.9, 0.999):
        masking = bernoulli(p, 4)
        away = best - MaskedObjective(problem, masking).optimum(50.0)
        assert np.linalg.norm(away) <= distance_bounds(problem, masking).smooth
        if p > 0.99:
            np.testing.assert_allclose(
                away / (1 - p), shift, atol=2e-3 * float(np.linalg.norm(shift))
            )
    found = balance(problem, bernoulli(0.5, 4), 50.0)
    plan = TrialPlan(bernoulli(0.5, 4), 100, 5, 0.1, math.inf, trials=1000)
    values = np.square(run_trials(problem, plan, [100]).iterates[100] - found.optimum).sum(1) / 0.5
    error = values.std() / math.sqrt(len(values))
    # the next order is about eta K lambda = 0.1 of it
    assert values.mean() == pytest.approx(found.settled_error(5), rel=0.1, abs=4 * error)


def test_the_shift_of_quadratics() -> None:
    problem = quadratics(3, 5)
    a = problem.matrices.mean(0)
    best = np.linalg.solve(a, problem.vectors.mean(0))
    expected = np.linalg.solve(a, (np.diag(np.diag(a)) - a) @ best)
    np.testing.assert_allclose(first_order_shift(problem, 50.0), expected, atol=CLOSE)


def test_many_coordinates_by_moments() -> None:
    """With more masks than are listed, the covariance follows from four moments."""
    for d, masking in ((11, bernoulli(0.4, 2)), (13, Masking(Random("fixed"), (0.5, 0.4)))):
        problem = quadratics(2, d)
        found, law = balance(problem, masking), masking.law(d)
        assert law.count(0) > MOST_LISTED
        covariance = np.zeros((d, d))
        for i in (0, 1):
            masks, chances = law.list_client(i)
            g = masks * ((masks * found.optimum) @ problem.matrices[i] - problem.vectors[i])
            covariance += np.cov(g.T, aweights=chances, bias=True) / 4
        np.testing.assert_allclose(found.mask_covariance, covariance, atol=CLOSE)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: balance(quadratics(), bernoulli(0.5, 4)).rate_constant(5, 0.9), "mu~ = 0.9 "),
        (lambda: balance(quadratics(2), Masking(PartitionScheme(2), (0.5, 0.5))), "rounds"),
        (lambda: second_order_bias(quadratics(4, 12), bernoulli(0.5, 4), 2), "d = 12: "),
        (lambda: distance_bounds(quadratics(mu=0.0), bernoulli(0.5, 4)), "mu = 0 "),
        (lambda: distance_bounds(quadratics(), rolling(0.5, 4, 10)), "Bernoulli"),
        (lambda: distance_bounds(quadratics(), bernoulli(0.5, 4, unbiased=True)), "plain"),
    ],
)
def test_statements_that_do_not_apply(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(TheoryError) as raised:
        make()
    assert words in str(raised.value)
