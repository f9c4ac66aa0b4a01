"""Algorithms 1 and 2 of the paper in plain NumPy, for comparison line by line.

"On the Convergence and Stability of Distributed Sub-model Training" (Deng, Qiao, Mahdavi). The
names are the paper's: N clients, R rounds (or windows), K local steps, T epochs, masks m, step size
eta, smoothness L. The file shares no code with the `submodel` package, whose tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Gradient = Callable[[Vector], Vector]
"""w -> grad f_i(w), the full gradient of one client."""
StochasticGradient = Callable[[Vector, int, int], Vector]
"""(w, r, k) -> grad f_i(w; xi_{r,k}) of one client."""
Project = Callable[[Vector], Vector]


def identity(w: Vector) -> Vector:
    """Return the point itself, the projection if W is the whole space."""
    return w


def ball(radius: float) -> Project:
    """Make the projection onto {w : ||w|| <= radius}."""
    return lambda w: w * min(1.0, radius / max(float(np.linalg.norm(w)), 1e-300))


def fill_in(w_r: Vector, local: Sequence[Vector], masks: Sequence[Vector]) -> Vector:
    """Average like the paper: (1/N) sum_i (w_{r,K}^i + (1 - m_i) (.) w_r)."""
    N = len(local)
    return sum((w_i + (1 - m) * w_r for w_i, m in zip(local, masks, strict=True)), 0 * w_r) / N


def selective(w_r: Vector, local: Sequence[Vector], masks: Sequence[Vector]) -> Vector:
    """Average like HeteroFL and FedRolex, over the holders of each coordinate, if any."""
    held = sum(masks, 0 * w_r)
    total = sum(local, 0 * w_r)
    return np.where(held > 0, total / np.maximum(held, 1), w_r)


def randomly_masked_fedavg(
    stochastic: Sequence[StochasticGradient],
    gradients: Sequence[Gradient],
    masks: Callable[[int, int], Vector],
    d: int,
    R: int,
    K: int,
    eta: float,
    L: float,
    project: Project = identity,
    average: Callable[[Vector, Sequence[Vector], Sequence[Vector]], Vector] = fill_in,
) -> tuple[list[Vector], Vector]:
    """Run Algorithm 1 and return the iterates w_0 .. w_R and the output w^.

    ``masks(i, r)`` is m_i^r ~ Ber(p_i); round R gives the masks of the output step.
    """
    N = len(stochastic)
    w = np.zeros(d)
    iterates = [w]
    for r in range(R):
        m = [masks(i, r) for i in range(N)]
        local = []
        for i in range(N):
            w_i = m[i] * w
            for k in range(K):
                w_i = w_i - eta * m[i] * stochastic[i](m[i] * w_i, r, k)
            local.append(w_i)
        w = project(average(w, local, m))
        iterates.append(w)
    m = [masks(i, R) for i in range(N)]
    step = sum((m[i] * gradients[i](m[i] * w) for i in range(N)), np.zeros(d)) / N
    return iterates, project(w - step / L)


def rolling_masked_fedavg(
    stochastic: Sequence[StochasticGradient],
    gradients: Sequence[Gradient],
    masks: Callable[[int, int], Vector],
    permutations: Callable[[int], Sequence[int]],
    d: int,
    T: int,
    R: int,
    K: int,
    eta: float,
    L: float,
    project: Project = identity,
    average: Callable[[Vector, Sequence[Vector], Sequence[Vector]], Vector] = fill_in,
) -> tuple[list[Vector], Vector]:
    """Run Algorithm 2 and return the iterates, one per round, and the output w^.

    ``masks(i, j)`` is m_i^j, client i's j-th window; ``permutations(e)`` is sigma_e. Windows and
    rounds of an epoch count from 0.
    """
    N = len(stochastic)
    w = np.zeros(d)
    iterates = [w]
    for e in range(T):
        sigma = permutations(e)
        for r in range(R):
            m = [masks(i, sigma[r]) for i in range(N)]
            local = []
            for i in range(N):
                w_i = m[i] * w
                for k in range(K):
                    w_i = w_i - eta * m[i] * stochastic[i](m[i] * w_i, e * R + r, k)
                local.append(w_i)
            w = project(average(w, local, m))
            iterates.append(w)
    step = np.zeros(d)
    for i in range(N):
        for j in range(R):
            m_ij = masks(i, j)
            step += m_ij * gradients[i](m_ij * w) / R
    return iterates, project(w - step / N / L)


def window(d: int, j: int, s: int) -> Vector:
    """Return m^j, with ones at coordinates j .. j + s - 1 modulo d.

    >>> window(5, 3, 3).tolist()
    [1.0, 0.0, 0.0, 1.0, 1.0]
    """
    m = np.zeros(d)
    m[(j + np.arange(s)) % d] = 1
    return m


def main() -> None:
    """Compare random and rolling masks with full models on heterogeneous least squares."""
    N, n, d, K = 8, 40, 12, 5
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(n, d)) for _ in range(N)]
    y = [x @ (1 + 0.3 * rng.normal(size=d)) + 0.1 * rng.normal(size=n) for x in X]
    L = max(float(np.linalg.eigvalsh(x.T @ x / n)[-1]) for x in X)
    gradients = [lambda w, x=x, t=t: x.T @ (x @ w - t) / n for x, t in zip(X, y, strict=True)]
    stochastic = [lambda w, r, k, g=g: g(w) for g in gradients]  # noqa: ARG005 - exact gradients

    def loss(w: Vector) -> float:
        return float(np.mean([np.mean((x @ w - t) ** 2) / 2 for x, t in zip(X, y, strict=True)]))

    def bernoulli(p: float) -> Callable[[int, int], Vector]:
        return lambda i, r: (np.random.default_rng([i, r]).random(d) < p).astype(np.float64)

    def windows(s: int) -> Callable[[int, int], Vector]:
        return lambda _, j: window(d, j, s)

    def shuffle(e: int) -> list[int]:
        order: list[int] = np.random.default_rng(e).permutation(d).tolist()
        return order

    eta = 0.1 / L
    print(f"{'':28}{'F(w^)':>10}")
    for p in (1.0, 0.9, 0.5):
        _, w = randomly_masked_fedavg(stochastic, gradients, bernoulli(p), d, 60, K, eta, L)
        print(f"random masks, p = {p:<10}{loss(w):>10.4f}")
    for s in (12, 9, 6):
        _, w = rolling_masked_fedavg(stochastic, gradients, windows(s), shuffle, d, 5, d, K, eta, L)
        print(f"rolling, {s:2} of {d} coordinates{loss(w):>10.4f}")


if __name__ == "__main__":
    main()
