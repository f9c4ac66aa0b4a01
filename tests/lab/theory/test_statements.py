"""Errors in the paper's statements and proofs: the numbers behind docs/theory/notes.md."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from submodel_lab.theory import (
    Logistic,
    MaskedObjective,
    Quadratic,
    TrialPlan,
    bernoulli,
    quadratics,
    rolling,
    run_trials,
)
from submodel_lab.theory.data import Directions
from submodel_lab.theory.exact import exact_moments
from submodel_lab.theory.limits import balance
from submodel_lab.theory.objective import constants, largest_gradient
from submodel_lab.theory.studies.lemmas import LemmaSettings, recursion_error
from submodel_lab.theory.theorems import (
    BoundFacts,
    residual_term,
    theorem_1,
    theorem_1_bound,
    theorem_3,
    theorem_4_bound,
    theorem_5,
)


def test_rolling_weakens_convexity() -> None:
    """Proposition 2 states that F_m is mu-strongly convex; the mean of the masks is s/d, not 1."""
    problem = Quadratic(np.stack([np.eye(10)] * 2), np.ones((2, 10)))  # mu = L = 1
    _, second = rolling(0.3, 2, 10).moments(10)
    hessian = (problem.matrices * second).mean(0)
    np.testing.assert_allclose(np.linalg.eigvalsh(hessian), 0.3)


def test_masked_gradients_do_not_vanish_at_the_optimum() -> None:
    """Lemma 4's last step bounds E||mean of m (.) grad f||^2 by 2L(F_p(w) - F_p(w*)): 0 at w*."""
    problem = quadratics(clients=4, heterogeneity=0.0)
    masked = MaskedObjective(problem, bernoulli(0.5, 4))
    best = masked.optimum(math.inf)
    # independent masks, equal clients: E||mean||^2 = (1/N) power + (1 - 1/N)||grad F_p||^2
    assert masked.power_at(best) / 4 > 0.01
    assert np.square(masked.gradient(best)).sum() == pytest.approx(0, abs=1e-20)


def test_the_mask_is_not_independent_of_later_local_steps() -> None:
    """Lemma 4 takes E_m[m (.) grad f(m (.) w_k)] = grad f~(w_k); w_k depends on m for k >= 1."""
    matrix = np.array([[2.0, 1.0], [1.0, 2.0]])
    problem = Quadratic(matrix[None], np.array([[1.0, 2.0]]))
    masked = MaskedObjective(problem, bernoulli(0.5, 1))
    w, eta = np.array([0.3, -0.2]), 0.2
    drawn, claimed = np.zeros(2), np.zeros(2)
    for mask in product((0.0, 1.0), repeat=2):
        m = np.array(mask)
        after = w - eta * m * (matrix @ (m * w) - problem.vectors[0])
        drawn += m * (matrix @ (m * after) - problem.vectors[0]) / 4
        claimed += masked.gradient(after) / 4
    assert np.linalg.norm(drawn - claimed) > 0.05


def test_more_masking_is_not_always_less_dissimilarity() -> None:
    """The text states that more masking makes zeta_p^2 (and sigma_*^2) smaller.

    This holds if clients differ much, as masking shrinks their gradients; for similar clients
    masking adds dissimilarity.
    """
    apart = [constants(quadratics(heterogeneity=5.0), bernoulli(p, 4), 3.0) for p in (1.0, 0.5)]
    assert apart[1].zeta2 < apart[0].zeta2
    assert apart[1].sigma2 < apart[0].sigma2
    problem = quadratics(heterogeneity=0.0)
    full, half = (constants(problem, bernoulli(p, 4), 3.0) for p in (1.0, 0.5))
    assert full.zeta2 == pytest.approx(0, abs=1e-9)
    assert full.sigma2 == pytest.approx(0, abs=1e-9)
    assert half.zeta2 > 1
    assert half.sigma2 > 0.05


@pytest.mark.parametrize("p", [0.5, 0.9, 0.975])
def test_the_residual_term_is_vacuous_where_a_quarter_coordinate_is_masked(p: float) -> None:
    """F(w) - F(w*) <= 2 L W^2 anyway; (4/L) 2 W^2 L^2 d(1-p) is at least that if d(1-p) >= 1/4."""
    problem = quadratics()
    radius = 2.0
    term = residual_term(problem, p, largest_gradient(problem, radius), radius)
    assert term > 2 * problem.smoothness * radius**2


def test_the_residual_term_has_the_wrong_unit() -> None:
    """Losses times c: F scales by c, 5L/(2 mu) (2G^2 + ...) by c^2, the proof's 1/mu^2 by c."""
    problem = quadratics()
    small = Quadratic(problem.matrices / 1000, problem.vectors / 1000)

    def first(q: Quadratic, power: int) -> float:
        g = largest_gradient(q, 2.0)
        return 2.5 * q.smoothness / q.convexity**power * (2 * g**2 + 8 * q.smoothness**2)

    assert first(problem, 1) / first(small, 1) == pytest.approx(1e6)
    assert first(problem, 2) / first(small, 2) == pytest.approx(1e3)


def test_theorem_1_asks_for_a_sixteenth_of_what_its_proof_needs() -> None:
    problem, steps = quadratics(), 5
    rounds = next(r for r in range(2, 10**4)
                  if "log(K^2 R^2)" not in theorem_1(problem, 1.0, steps, r).note)  # fmt: skip
    product_ = theorem_1(problem, 1.0, steps, rounds).eta * problem.smoothness * steps
    assert 1 / 16 < product_ <= 1
    assert product_ == pytest.approx(1, abs=0.02)


def test_theorem_3s_arithmetic() -> None:
    """With T = 512 kappa^2 log T and eta = 4 log(T^2)/(mu T R K), eta R K is 1/(64 kappa L)."""
    kappa, mu = 3.0, 0.7
    t = 512 * kappa**2 * 10
    for _ in range(100):
        t = 512 * kappa**2 * math.log(t)
    eta_rk = 4 * math.log(t**2) / (mu * t)
    assert eta_rk * kappa * (kappa * mu) == pytest.approx(1 / 64)  # the proof states 1/256


def test_theorem_5_lets_the_step_expand() -> None:
    """R >= L~ sqrt(N n) allows eta up to 1/(p L K), beyond the 2/L of a non-expansive step."""
    x, y = Directions(2, 3).draw(1, 64, "x")
    problem, p, steps = Logistic(10 * x, y), 0.1, 1
    rounds = math.ceil(p * problem.smoothness * math.sqrt(2 * 64))
    found = theorem_5(problem, p, 64, steps, rounds)
    assert found.unmet[-1] == "the proof's non-expansive step eta <= 2/L"


def test_a_stable_algorithm_has_a_gap() -> None:
    """Lemma 1 bounds E|L_D - L_S| by the stability; a constant has 0 stability but a gap."""
    x, y = Directions(1, 3).draw(2000, 10, "gap")
    w = np.broadcast_to(np.array([2.0, 0.0, 0.0]), (1, 2000, 3))
    train = Logistic(x, y).losses(w)[0]
    assert np.abs(train - train.mean()).mean() > 0.02
    assert abs((train - train.mean()).mean()) < 1e-12


def test_the_missing_term_is_the_masks_variance_not_sigma() -> None:
    """sigma_*^2/N also counts the clients' mean gradients, which cancel; V* does not."""
    problem, masking = quadratics(clients=4, heterogeneity=2.0), bernoulli(0.5, 4)
    settled = balance(problem, masking)
    variance = float(np.trace(settled.mask_covariance))  # V*/N, of the mean over clients
    sigma2 = MaskedObjective(problem, masking).power_at(settled.optimum)
    assert variance < 0.7 * sigma2 / 4
    full = balance(problem, bernoulli(1.0, 4))
    assert np.trace(full.mask_covariance) == pytest.approx(0, abs=1e-12)
    assert MaskedObjective(problem).power_at(full.optimum) > 1


def test_the_proof_of_theorem_1_fails_and_its_statement_does_not() -> None:
    """At R = 81,920 the exact error is above "point convergence", far below the residual term."""
    problem, p, steps, rounds = quadratics(4, 10, 1.0, 2.0, noise=0.0), 0.5, 5, 81_920
    masking = bernoulli(p, 4)
    objective = MaskedObjective(problem, masking)
    best = objective.optimum(math.inf)
    eta = theorem_1(problem, p, steps, rounds).eta
    assert theorem_1(problem, p, steps, rounds).note == "met"
    exact = exact_moments(problem, TrialPlan(masking, rounds, steps, eta, math.inf))
    facts = BoundFacts(eta, steps, rounds, 4, p * 2.0, p * 1.0, 0.0, objective.power_at(best),
                       float(best @ best))  # fmt: skip
    assert exact.distances[-1] / theorem_1_bound(facts).total == pytest.approx(1.701, abs=0.001)
    assert exact.output_gap < residual_term(problem, p, largest_gradient(problem, 2.0), 2.0) / 100


def test_one_mask_serves_all_local_steps() -> None:
    """The masks' part of a round's variance grows as K^2, the noise's as K (notes.md, 10)."""
    masking, parts = bernoulli(0.5, 4), {}
    for noise in (0.0, 1e4):
        problem = quadratics(noise=noise)
        for steps in (1, 4):
            plan = TrialPlan(masking, 1, steps, 1e-5, math.inf)
            after = exact_moments(problem, plan, keep=[1])
            away = after.means[1] - after.target
            parts[noise, steps] = np.trace(after.seconds[1] - np.outer(away, away))
    assert parts[0.0, 4] / parts[0.0, 1] == pytest.approx(16, rel=1e-3)
    assert parts[1e4, 4] / parts[1e4, 1] == pytest.approx(4, rel=1e-3)


def test_theorem_4_loses_rk_and_a_unit() -> None:
    """eta R K delta^2/N at its eta is R K times the stated delta^2/(N L sqrt(RKT)).

    Scaling the losses by c scales ||grad||^2 by c^2, the stated zeta^2/L^2 not at all.
    """
    facts = BoundFacts(0.0, 3, 8, 4, 2.0, 0.0, 5.0, 7.0, 1.0, epochs=50)
    eta = 1 / (2.0 * math.sqrt(8 * 3 * 50))
    assert eta * 8 * 3 * 5.0 / 4 / theorem_4_bound(facts).terms["noise"] == pytest.approx(8 * 3)
    c = 10.0
    large = replace(facts, smoothness=2.0 * c, noise2=5.0 * c**2, spread2=7.0 * c**2, start=c)
    terms, large_terms = theorem_4_bound(facts).terms, theorem_4_bound(large).terms
    ratios = {name: large_terms[name] / terms[name] for name in terms}
    assert ratios == pytest.approx({"start": c**2, "drift": 1.0, "noise": c})


def test_theorem_3s_residual_is_at_most_a_quarter_of_its_lemmas() -> None:
    """(L/mu + 1/L)(G^2 + W^2L^2) in the theorem, (2L/mu + 4/L)(2G^2 + 2W^2L^2) in Lemma 8."""
    for ell, mu in ((2.0, 1.0), (0.1, 0.05), (50.0, 1e-3)):
        assert 4 <= (2 * ell / mu + 4 / ell) * 2 / (ell / mu + 1 / ell) <= 8


def test_the_epoch_recursion_knows_no_projection() -> None:
    """Lemma 10 is an identity, but not with the projection after every round of Algorithm 2."""
    assert recursion_error(LemmaSettings(), math.inf) < 1e-12
    assert recursion_error(LemmaSettings(), 0.03) > 0.1


def test_masks_differ_where_distributions_do_not() -> None:
    """zeta_max <= G D_max: equal clients have D_max = 0, and their masks a variance."""
    facts = constants(quadratics(heterogeneity=0.0), bernoulli(0.5, 4), 3.0)
    assert facts.D_max == 0
    assert facts.zeta2 > 1


def test_theorem_5s_rounds_are_16_over_p_too_few() -> None:
    """Its proof needs eta <= 1/(16 L K), that is R >= 16 L sqrt(Nn); it states p L sqrt(Nn)."""
    x, y = Directions(2, 3).draw(1, 50, "x")
    problem, p = Logistic(x, y), 0.5
    root = math.sqrt(2 * 50) * problem.smoothness
    stated, enough = math.ceil(p * root), math.ceil(16 * root)
    assert "1/(16 L K)" in theorem_5(problem, p, 50, 1, stated).note
    assert theorem_5(problem, p, 50, 1, enough).note == "met"
    assert 16 * root / (p * root) == 16 / p


@pytest.mark.slow
def test_mask_variance_slows_the_rate_without_gradient_noise() -> None:
    """Theorem 1 with delta = 0 states 1/R^2; fresh masks add a term of order V*/(N R)."""
    problem = quadratics(clients=4, mu=1.0, smoothness=2.0, noise=0.0)
    errors = {}
    for p in (1.0, 0.5):
        masking = bernoulli(p, 4)
        target = MaskedObjective(problem, masking).optimum(math.inf)
        for rounds in (160, 640):
            eta = theorem_1(problem, p, 5, rounds).eta
            found = run_trials(problem, TrialPlan(masking, rounds, 5, eta, 10.0, 50), [rounds])
            errors[p, rounds] = np.square(found.iterates[rounds] - target).sum(1).mean()
    log2 = (math.log(5 * 640) / math.log(5 * 160)) ** 2
    assert errors[1.0, 160] / errors[1.0, 640] == pytest.approx(16 / log2, rel=0.02)  # 1/R^2
    assert errors[0.5, 160] / errors[0.5, 640] < 4  # at most 1/R


@pytest.mark.slow
def test_theorem_3s_noise_term_lacks_the_local_steps() -> None:
    """Its delta^2/(mu^2 T N) does not fall with K; the measured error does, about as 1/K."""
    problem = quadratics(clients=4, mu=1.0, smoothness=2.0, noise=10.0)
    masking = rolling(0.5, 4, 10)
    target = MaskedObjective(problem, masking).optimum(math.inf)
    errors = []
    for steps in (1, 4):
        eta = theorem_3(problem, steps, 10, 40).eta
        found = run_trials(problem, TrialPlan(masking, 400, steps, eta, 100.0, 100), [400])
        errors.append(np.square(found.iterates[400] - target).sum(1).mean())
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.25)  # 100 trials, and the start's part
