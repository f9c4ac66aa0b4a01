"""Numbers of docs/theory/sharper.md: theorems sharper than those of the paper.

The file runs as a script, or as a notebook in any editor that supports ``# %%`` cells. With a path
ending in .png, it also draws the figure of the section.
"""

# %% [markdown]
# The rate: exact R E||w_R - w*(p)||^2 / log(KR) with Theorem 1's step, and its limit.

# %%
import math
import sys
from pathlib import Path

import numpy as np

from submodel.schemes import PartitionScheme, Random
from submodel_lab.theory import (
    Logistic,
    MaskedObjective,
    Masking,
    TrialPlan,
    bernoulli,
    exact_moments,
    quadratics,
    rolling,
    run_trials,
)
from submodel_lab.theory.data import Directions
from submodel_lab.theory.drawing import Panel, PlotLine, draw_panels
from submodel_lab.theory.limits import (
    balance,
    distance_bounds,
    exact_residual,
    first_order_shift,
    second_order_bias,
)
from submodel_lab.theory.objective import largest_gradient
from submodel_lab.theory.problems import FloatArray
from submodel_lab.theory.theorems import lemma_bound

STEPS, ROUNDS = 5, (80, 320, 1280, 5120, 20480)
MASKS = {  # masks, mu~ / mu, d
    "Bernoulli, p = 1/2": (bernoulli(0.5, 4), 0.5, 10),
    "unequal p: 1, 1/4, 1, 1/4": (Masking(Random(), (1.0, 0.25, 1.0, 0.25)), 0.25, 10),
    "fixed size, 5 of 10": (Masking(Random("fixed"), (0.5,) * 4), 0.5, 10),
    "partition, 2 of 8 each": (Masking(PartitionScheme(), (0.25,) * 4), 0.25, 8),
    "windows, shuffled, 5 of 10": (rolling(0.5, 4, 10), 0.5, 10),
    "windows, sequential": (rolling(0.5, 4, 10, sequential=True), 0.5, 10),
}
curves, limits = {}, {}
print("R E||w_R - w*||^2 / log(KR) at R =", *ROUNDS, "and its limit")
for noise in (0.0, 10.0):
    for name, (masking, share, d) in MASKS.items():
        problem, line, errors = quadratics(4, d, 1.0, 2.0, noise=noise), [], []
        for rounds in ROUNDS:
            eta = 2 * math.log(STEPS * rounds) / (share * STEPS * rounds)
            plan = TrialPlan(masking, rounds, STEPS, eta, math.inf)
            error = exact_moments(problem, plan).distances[-1]
            errors.append(error)
            line.append(f"{rounds * error / math.log(STEPS * rounds):.4f}")
        limit = balance(problem, masking).rate_constant(STEPS, share)
        curves[name, noise], limits[name, noise] = np.array(errors), limit
        print(f"noise {noise:g}, {name}:", *line, f"-> {limit:.4f}")

# %% [markdown]
# The bias: exact ||E w - w*|| / eta in the stationary state, and its limit.

# %%
print("\n||E w - w*|| / eta at eta = 0.01, 0.001, and its limit")
quiet = quadratics(4, 10, 1.0, 2.0, noise=0.0)
for name in ("Bernoulli, p = 1/2", "fixed size, 5 of 10", "windows, shuffled, 5 of 10",
             "windows, sequential"):  # fmt: skip
    masking = MASKS[name][0]
    for steps in (1, 5):
        line = []
        for eta in (0.01, 0.001):
            rounds = 10 * math.ceil(6 / (eta * steps))
            found = exact_moments(quiet, TrialPlan(masking, rounds, steps, eta, math.inf))
            line.append(f"{np.linalg.norm(found.means[-1] - found.target) / eta:.5f}")
        bias = second_order_bias(quiet, masking, steps)
        print(f"{name}, K = {steps}:", *line, f"-> {np.linalg.norm(bias):.5f}")

# %% [markdown]
# Windows without noise: R^2 E||w_R - w*||^2 / log(KR)^2 also has a limit.

# %%
print("\nR^2 E||w_R - w*(m)||^2 / log(KR)^2 without noise, and its limit")
for name in ("windows, shuffled, 5 of 10", "windows, sequential"):
    masking = MASKS[name][0]
    line = []
    for rounds in ROUNDS:
        eta = 2 * math.log(STEPS * rounds) / (0.5 * STEPS * rounds)
        error = exact_moments(quiet, TrialPlan(masking, rounds, STEPS, eta, math.inf)).distances[-1]
        line.append(f"{rounds**2 * error / math.log(STEPS * rounds) ** 2:.5f}")
    limit = float(np.square(second_order_bias(quiet, masking, STEPS)).sum())
    print(f"{name}:", *line, f"-> {limit * (2 / (0.5 * STEPS)) ** 2:.5f}")

# %% [markdown]
# The residual: exact distances, our bounds, and the paper's bound.

# %%
print("\n||w*(1) - w*(p)||: bound / distance, least and most over 50 problems")
ratios = {}
for p in (0.1, 0.5, 0.9, 0.99, 0.999):
    ours, smooth, theirs, distances = [], [], [], []
    for seed in range(50):
        problem, masking = quadratics(4, 10, 1.0, 2.0, seed=seed), bernoulli(p, 4)
        distance = float(np.linalg.norm(exact_residual(problem, masking)))
        bounds = distance_bounds(problem, masking)
        optima = (MaskedObjective(problem, m).optimum(math.inf) for m in (None, masking))
        radius = max(float(np.linalg.norm(w)) for w in optima)
        paper = lemma_bound(problem, p, largest_gradient(problem, radius), radius)
        distances.append(distance)
        ours.append(bounds.by_condition / distance)
        smooth.append(bounds.smooth / distance)
        theirs.append(paper / distance)
    ratios[p] = [float(np.multiply(r, distances).mean()) for r in ([1] * 50, ours, theirs)]
    print(f"p = {p:g}: distance {np.mean(distances):.5f}; (1-p)(kappa_F-1)||w*||: "
          f"{min(ours):.1f} to {max(ours):.1f}; kappa sqrt((1-p)/p)||w*||: {min(smooth):.0f} to "
          f"{max(smooth):.0f}; the lemma: {min(theirs):.0f} to {max(theirs):.0f}")  # fmt: skip
ours, theirs = [], []
for kappa, d, p in ((k, d, p) for k in (2, 5, 20) for d in (5, 20, 40) for p in (0.1, 0.5, 0.999)):
    problem, masking = quadratics(4, d, 1.0, kappa), bernoulli(p, 4)
    distance = float(np.linalg.norm(exact_residual(problem, masking)))
    radius = float(np.linalg.norm(MaskedObjective(problem).optimum(math.inf)))
    ours.append(distance_bounds(problem, masking).by_condition / distance)
    theirs.append(lemma_bound(problem, p, largest_gradient(problem, radius), radius) / distance)
print(f"kappa 2 to 20, d 5 to 40: {min(ours):.1f} to {max(ours):.1f}; "
      f"the lemma {min(theirs):.0f} to {max(theirs):.0f}")  # fmt: skip
problem = quadratics(4, 10, 1.0, 2.0, noise=10.0)
original = MaskedObjective(problem)
best = original.optimum(math.inf)
for name, masking in {
    "equal 1/2": bernoulli(0.5, 4), "1, 1/4, 1, 1/4": Masking(Random(), (1.0, 0.25, 1.0, 0.25)),
    "fixed size 5": Masking(Random("fixed"), (0.5,) * 4), "windows of 5": rolling(0.5, 4, 10),
}.items():  # fmt: skip
    shift = exact_residual(problem, masking)
    print(f"{name}: ||w*(1) - w*(p)|| = {np.linalg.norm(shift):.4f}, "
          f"F(w*(p)) - F* = {original.value(best - shift) - original.value(best):.5f}")  # fmt: skip

# %% [markdown]
# Other convex losses: logistic regression, four clients with twelve examples, six features.

# %%
x, y = Directions(4, 6).draw(1, 12, "sharper")
logistic = Logistic(3 * x, y, 0.1)
shift, best = first_order_shift(logistic, 50.0), MaskedObjective(logistic).optimum(50.0)
print(f"\nlogistic: ||w*(1) - w*(p)|| / (1 - p), and its limit {np.linalg.norm(shift):.4f}")
for p in (0.5, 0.9, 0.99, 0.999):
    target = MaskedObjective(logistic, bernoulli(p, 4)).optimum(50.0)
    distance = float(np.linalg.norm(best - target))
    bound = distance_bounds(logistic, bernoulli(p, 4)).smooth
    print(f"p = {p:g}: {distance / (1 - p):.4f}; the bound is {bound / distance:.0f} times it")
LOGISTIC_MASKS = {"Bernoulli 1/2": bernoulli(0.5, 4), "windows 1/2": rolling(0.5, 4, 6)}
for name, masking in LOGISTIC_MASKS.items():
    settling = balance(logistic, masking, 50.0)
    least = float(np.linalg.eigvalsh(settling.hessian)[0])
    for eta in (0.1, 0.025):
        rounds = 6 * math.ceil(8 / (eta * STEPS * 6 * least))
        plan = TrialPlan(masking, rounds, STEPS, eta, math.inf, trials=2000)
        away = run_trials(logistic, plan, [rounds]).iterates[rounds] - settling.optimum
        errors = np.square(away).sum(1) / (eta * STEPS)
        half = 1.96 * errors.std() / math.sqrt(len(errors))
        print(f"{name}, eta = {eta:g}: E||w - w*||^2 / (eta K) = {errors.mean():.4f} "
              f"(half of the 95 % interval: {half:.4f}), "
              f"limit {settling.settled_error(STEPS):.4f}")  # fmt: skip

# %% [markdown]
# The figure: the constant of the rate, rates without noise, and the residual with its bounds.

# %%
if len(sys.argv) > 1 and sys.argv[1].endswith(".png"):
    x = np.array(ROUNDS)
    logs = np.log(STEPS * x)
    shares, quiet_errors = [], []

    def over_rounds(name: str, values: FloatArray, style: str = "-o") -> PlotLine:
        """Make a line over rounds."""
        return PlotLine(name, ROUNDS, list(values), style=style)

    for (name, noise), exact_errors in curves.items():
        if name.startswith(("Bernoulli", "unequal", "fixed", "windows, sh")) and (
            noise or not name.startswith("windows")
        ):
            share = x * exact_errors / logs / limits[name, noise]
            shares.append(over_rounds(f"{name}, noise {noise:g}", share))
        if not noise and name.startswith(("Bernoulli", "windows")):
            quiet_errors.append(over_rounds(name, exact_errors))
    quiet_errors += [
        over_rounds("0.2700 log(KR)/R", 0.27 * logs / x, "k--"),
        over_rounds("0.00424 (log(KR)/R)²", 0.00424 * (logs / x) ** 2, "k--"),
    ]
    residuals = [
        PlotLine(name, [1 - p for p in ratios], [r[k] for r in ratios.values()])
        for k, name in enumerate(("exact", "(1-p)(kappa_F-1)||w*||", "the paper's lemma"))
    ]
    panels = [
        Panel("the constant of the rate", "rounds R", "R E||w_R - w*||² / log(KR),\nover its limit",
              shares, levels={"1": 1.0}, log=(True, False)),
        Panel("no noise: 1/R with fresh masks, 1/R² with windows", "rounds R", "E||w_R - w*||²",
              quiet_errors),
        Panel("the residual and its bounds", "1 - p", "||w*(1) - w*(p)||", residuals),
    ]  # fmt: skip
    draw_panels(panels, "", Path(sys.argv[1]))
