"""The theory lab, cell by cell: pose a problem, choose masks, measure a theorem.

The file runs as a script, or as a notebook in any editor that supports ``# %%`` cells.
"""

# %% [markdown]
# A problem with known constants: four clients, ten coordinates, eigenvalues from 1 to 2.

# %%
import math

import numpy as np

from submodel_lab.theory import (
    MaskedObjective,
    TrialPlan,
    bernoulli,
    constants,
    quadratics,
    rolling,
    run_trials,
)
from submodel_lab.theory.measures import slope
from submodel_lab.theory.theorems import theorem_1

problem = quadratics(clients=4, dimension=10, mu=1.0, smoothness=2.0, noise=10.0)
print(f"L = {problem.smoothness:g}, mu = {problem.convexity:g}")

# %% [markdown]
# Masking changes the objective: F_p has its own optimum w*(p), where F has a residual.

# %%
for p in (1.0, 0.75, 0.5, 0.25):
    facts = constants(problem, bernoulli(p, 4), radius=3.0)
    print(
        f"p = {p:<5} ||w*(1) - w*(p)|| = {facts.distance:.4f}  F(w*(p)) - F* = {facts.residual:.5f}"
        f"  sigma*^2 = {facts.sigma2:.3f}  zeta^2 = {facts.zeta2:.2f}  delta^2 = {facts.delta2:g}"
    )

# %% [markdown]
# Algorithm 1 with Theorem 1's step size, in a hundred trials at once. The error to w*(p) falls like
# log(KR)/R.

# %%
p, K = 0.5, 5
target = MaskedObjective(problem, bernoulli(p, 4)).optimum(radius=3.0)
rounds, errors = [50, 100, 200, 400], []
for R in rounds:
    step = theorem_1(problem, p, K, R)
    plan = TrialPlan(bernoulli(p, 4), R, K, step.eta, radius=3.0, trials=100)
    w = run_trials(problem, plan, keep=[R]).iterates[R]
    errors.append(float(np.square(w - target).sum(1).mean()) / math.log(K * R))
    print(f"R = {R:<4} eta = {step.eta:.4f}  error / log(KR) = {errors[-1]:.5f}  ({step.note})")
print(f"slope {slope(rounds, errors):.2f}, Theorem 1 states -1")

# %% [markdown]
# Rolling windows of the same size have another masked objective, the mean over all windows.

# %%
windows = rolling(p, 4, problem.dimension)
original, windowed_objective = MaskedObjective(problem), MaskedObjective(problem, windows)
gap = original.value(windowed_objective.optimum(3.0)) - original.value(original.optimum(3.0))
print(f"rolling: F(w*(m)) - F* = {gap:.5f}")

# %% [markdown]
# Unbiased masks scale held coordinates by 1/p. Linear terms become unbiased, but the diagonal of
# the quadratic term is scaled by 1/p, and the optimum shrinks.

# %%
for name, masking in {"m": bernoulli(p, 4), "m/p": bernoulli(p, 4, unbiased=True)}.items():
    w = MaskedObjective(problem, masking).optimum(3.0)
    print(
        f"{name:>4}: F(w*) - F* = {original.value(w) - original.value(original.optimum(3.0)):.5f}"
    )
