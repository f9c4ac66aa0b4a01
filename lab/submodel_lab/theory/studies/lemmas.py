"""Study of Propositions 1 and 2, the deviation lemmas and the epoch recursion."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np

from submodel.core import generator
from submodel_lab.theory.drawing import Panel, PlotLine
from submodel_lab.theory.limits import balance
from submodel_lab.theory.masking import Masking, bernoulli, rolling
from submodel_lab.theory.measures import Measure, Statement, exact_measure
from submodel_lab.theory.objective import MaskedObjective, largest_gradient
from submodel_lab.theory.problems import FloatArray, Quadratic, TheoryError, quadratics
from submodel_lab.theory.results import OnProgress, ResultRow, Study, report_nothing
from submodel_lab.theory.studies.sweeps import mean_share
from submodel_lab.theory.trials import MaskDraws

_LOG_FAILURE = 0.05  # nu


@dataclass(frozen=True)
class LemmaSettings:
    """Settings with quadratics, and local steps from points between w_0 and beyond the optimum."""

    capacities: tuple[float, ...] = (1.0, 0.7, 0.5, 0.3)
    steps: tuple[int, ...] = (2, 5, 10)  # K
    clients: int = 4
    dimension: int = 10
    mu: float = 1.0
    smoothness: float = 2.0
    heterogeneity: float = 1.0
    noise: float = 3.0
    relative_step: float = 0.0625  # eta K L, as in Theorem 1's proof
    problems: int = 20
    trials: int = 2000
    seed: int = 0

    def problem(self, noise: float = 0.0, number: int = 0) -> Quadratic:
        """Make a problem by its number."""
        return quadratics(self.clients, self.dimension, self.mu, self.smoothness,
                          self.heterogeneity, noise, self.seed + number)  # fmt: skip


def study_lemmas(s: LemmaSettings, on_progress: OnProgress = report_nothing) -> Study:
    """Run the study."""
    if min(s.steps) < 2:
        raise TheoryError("K = 1: the deviation lemmas divide by K - 1")
    rows: list[ResultRow] = []
    statements = _proposition_statements(s)
    deviations: dict[tuple[str, int], Measure] = {}
    for number, steps in enumerate(s.steps):
        for name, ratio, facts in _deviations(s, steps):
            deviations[name, steps] = ratio
            rows.append(ResultRow(
                {"statement": name, "K": steps, "p": min(s.capacities), "N": s.clients,
                 "d": s.dimension, "noise": s.noise, "seed": s.seed}, {"ratio": ratio}, facts,
            ))  # fmt: skip
            statements.append(Statement.of(name, "K", f"K={steps}", "left side over right side",
                                           ratio, "<=", 1.0))  # fmt: skip
        on_progress(number + 1, len(s.steps))
    statements += [_vanishing_statement(s, p) for p in s.capacities]
    statements += _recursion_statements(s)
    names = list(dict.fromkeys(name for name, _ in deviations))
    lines = [
        PlotLine.of_measures(name, s.steps, [deviations[name, k] for k in s.steps])
        for name in names
    ]
    panel = Panel("the deviation lemmas: left side over right side", "K", "ratio", lines,
                  levels={"the lemma": 1.0})  # fmt: skip
    return Study("lemmas", "Propositions, deviation lemmas and the epoch recursion, quadratics",
                 asdict(s), rows, [panel], statements)  # fmt: skip


def _proposition_statements(s: LemmaSettings) -> list[Statement]:
    """Judge the curvature of F_p and F_m by the propositions: p mu to p L, and mu to L."""
    statements = []
    for p in s.capacities:
        for source, masking in (
            ("Proposition 1", bernoulli(p, s.clients)),
            ("Proposition 2", rolling(p, s.clients, s.dimension)),
        ):
            factor = p if source == "Proposition 1" else 1.0
            lows, highs = [], []
            for number in range(s.problems):
                second = masking.moments(s.dimension)[1]
                matrices = s.problem(number=number).matrices
                eigenvalues = np.linalg.eigvalsh((matrices * second).mean(0))
                lows.append(factor * s.mu / float(eigenvalues[0]))
                highs.append(float(eigenvalues[-1]) / (factor * s.smoothness))
            share = mean_share(masking, s.dimension)
            for what, ratios in (("stated mu over true mu", lows), ("true L over stated L", highs)):
                statements.append(Statement.of(
                    source, "p", f"share {share:g}, {s.problems} problems", f"{what}, largest",
                    exact_measure(max(ratios)), "<=", 1.0))  # fmt: skip
    return statements


def _vanishing_statement(s: LemmaSettings, p: float) -> Statement:
    """Judge Lemma 4's last step: E||mean of m (.) grad f||^2 <= 2 L (F_p(w) - F_p(w*)), 0 at w*."""
    exact = balance(s.problem(), bernoulli(p, s.clients))
    quantity = "E||mean of m (.) grad f_i(m (.) w*)||^2 at w*(p)"
    power = exact_measure(float(np.trace(exact.mask_covariance)))
    return Statement.of("Lemma 4", "p", f"p={p:g}", quantity, power, "<=", 0.0)


def _deviations(s: LemmaSettings, steps: int) -> list[tuple[str, Measure, dict[str, float | str]]]:
    """Measure both sides of the deviation lemmas, at the worst of several starting points."""
    p = min(s.capacities)
    problem = s.problem(s.noise)
    eta = s.relative_step / (steps * problem.smoothness)
    masking = bernoulli(p, s.clients)
    objective = MaskedObjective(problem, masking)
    best = objective.optimum(math.inf)
    spread2 = objective.power_at(best)
    noise2, scale = p * s.noise**2, 5 * (eta * steps) ** 2
    least = objective.value(best)
    sides_by_name: dict[str, list[tuple[Measure, float]]] = {}
    for factor in (0.0, 0.5, 1.0, 2.0):
        w = factor * best
        deviation = local_deviation(problem, masking, w, steps, eta, s.trials, s.seed)
        mean, client = Measure.of(deviation.mean(0)), int(deviation.mean(1).argmax())
        slope2 = float(np.square(objective.gradient(w)).sum())
        zeta2 = objective.spread_at(w)  # the lemma states the maximum, but needs this value
        gap = objective.value(w) - least
        worst_zeta2 = _client_spread(problem, masking, objective, w, client)
        sides = {
            "Lemma 5": (mean, scale * (8 * problem.smoothness * gap + 4 * spread2 + noise2)),
            "Lemma 6": (mean, scale * (4 * slope2 + 4 * zeta2 + noise2)),
            "Lemma 12": (Measure.of(deviation[client]),
                         scale * (4 * slope2 + 4 * worst_zeta2 + noise2)),
        }  # fmt: skip
        for name, side in sides.items():
            sides_by_name.setdefault(name, []).append(side)
    result: list[tuple[str, Measure, dict[str, float | str]]] = []
    for name, sides_of in sides_by_name.items():
        left_side, right = max(sides_of, key=lambda side: side[0].mean / side[1])
        result.append((name, left_side.times(1 / right), {"right side": right}))
    result.append(_epoch_deviation(s, problem, p, steps, eta / s.dimension))
    return result


def local_deviation(
    problem: Quadratic, masking: Masking, w: FloatArray, steps: int, eta: float, trials: int,
    seed: int, masks: FloatArray | None = None,
) -> FloatArray:  # fmt: skip
    """Return ||w_{r,k} - w_r||^2 at the worst k < K, of every client and trial."""
    if masks is None:
        masks = MaskDraws(masking, problem.dimension, trials, seed)(0)
    xi = problem.draw(seed, 0, steps, trials)
    local = np.broadcast_to(w, masks.shape)
    worst = np.zeros(masks.shape[:2])
    for k in range(steps - 1):
        local = local - eta * masks * problem.stochastic_gradients(masks * local, xi[k])
        movement = np.square(local - w).sum(-1)
        worst = movement if movement.mean() > worst.mean() else worst
    return np.asarray(worst)


def _client_spread(
    problem: Quadratic, masking: Masking, objective: MaskedObjective, w: FloatArray, client: int
) -> float:
    masks, chances = masking.list_masks(problem.dimension)
    gradients = masks[client] * problem.gradients(masks * w)[client]
    return float(chances[client] @ np.square(gradients - objective.gradient(w)).sum(1))


def _epoch_deviation(
    s: LemmaSettings, problem: Quadratic, p: float, steps: int, eta: float
) -> tuple[str, Measure, dict[str, float | str]]:
    """Measure Lemma 11: the sum of deviations over an epoch of rolling masks, from w_e = 0."""
    masking = rolling(p, s.clients, s.dimension)
    objective = MaskedObjective(problem, masking)
    trials, d = min(s.trials, 200), s.dimension
    draw = MaskDraws(masking, d, trials, s.seed)
    w = np.zeros((trials, d))
    total = np.zeros(trials)
    for r in range(d):
        masks, xi = draw(r), problem.draw(s.seed, r, steps, trials)
        local = np.broadcast_to(w, masks.shape)
        for k in range(steps):
            local = local - eta * masks * problem.stochastic_gradients(masks * local, xi[k])
            total += np.square(local - w).sum(-1).mean(0)
        w = local.mean(0)
    start = np.zeros(d)
    k, ell, n2 = steps, problem.smoothness, mean_share(masking, d) * s.noise**2
    slope2 = float(np.square(objective.gradient(start)).sum())
    gradient = largest_gradient(problem, float(np.linalg.norm(w, axis=1).max()))
    log = math.log(2 * d * k / _LOG_FAILURE)
    right = (
        48 * eta**2 * d * k**3 * (objective.spread_at(start) + slope2)
        + 72 * d**3 * eta**4 * k**5 * ell**2 * slope2
        + 576 * d**2 * eta**4 * k**5 * ell**2 * gradient**2 * log
        + 6 * eta**2 * d * k**3 * n2
    )
    return "Lemma 11", Measure.of(total / right), {"right side": right}


def _recursion_statements(s: LemmaSettings) -> list[Statement]:
    """Judge the epoch recursion, an identity without projection but not with it."""
    return [
        Statement.of("Lemma 10", "epoch", case, "||left - right|| / ||left||",
                     exact_measure(recursion_error(s, radius)), "<=", 0.0)
        for case, radius in (("no projection", math.inf), ("projected, as Algorithm 2 does", 0.03))
    ]  # fmt: skip


def recursion_error(s: LemmaSettings, radius: float) -> float:
    """Return the relative error of the epoch recursion (Lemma 10) without noise."""
    d, n, steps = s.dimension, s.clients, max(s.steps)
    problem = s.problem()
    masking = rolling(min(s.capacities), n, d)
    windows = masking.list_masks(d)[0]
    order = generator(s.seed, "recursion").permutation(d)
    eta = 0.5 / (steps * d * s.smoothness)
    start = np.zeros(d)
    w, pulls, curvatures, rests = start, [], [], []
    for window in order:
        masks = windows[:, window]
        curvature = masks[:, :, None] * problem.matrices * masks[:, None]

        def gradients(point: FloatArray, masks: FloatArray = masks) -> FloatArray:
            pull = np.einsum("iab,ib->ia", problem.matrices, masks * point) - problem.vectors
            return np.asarray(masks * pull)

        local, rest = np.broadcast_to(w, (n, d)), np.zeros(d)
        for _ in range(steps):
            rest = rest + np.einsum("iab,ib->a", curvature, local - w) / n
            local = local - eta * gradients(local)
        pulls.append(gradients(np.broadcast_to(start, (n, d))).mean(0))
        curvatures.append(curvature.mean(0))
        rests.append(eta * rest)
        w = local.mean(0)
        w = w * min(1.0, radius / max(float(np.linalg.norm(w)), 1e-300))
    return _distance_to_recursion(w - start, pulls, curvatures, rests, eta * steps)


def _distance_to_recursion(
    movement: FloatArray, pulls: list[FloatArray], curvatures: list[FloatArray],
    rests: list[FloatArray], step: float,
) -> float:  # fmt: skip
    rounds, d = len(pulls), len(movement)
    products = [np.eye(d)]  # A_{R-1}, then A_{R-2}, ...
    for r in range(rounds - 1, 0, -1):
        products.append(products[-1] @ (np.eye(d) - step * curvatures[r]))
    right = -step * np.sum(pulls, 0) - sum(
        products[rounds - 1 - r] @ rests[r] for r in range(rounds)
    )
    for r in range(rounds - 1):
        right = right + step**2 * products[rounds - 2 - r] @ curvatures[r + 1] @ np.sum(
            pulls[: r + 1], 0
        )
    return float(np.linalg.norm(movement - right) / np.linalg.norm(movement))
