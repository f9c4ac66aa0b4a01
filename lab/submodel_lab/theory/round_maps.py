"""A round for quadratics as a linear map of E[z z'], z = (w - c, 1), by masks or moments.

With S = F M (mask times factors), A~ = F A F, b~ = F b and B = I - eta M A~ M, a client's change is
x_K - w = -eta (I + B + ... + B^(K-1)) M (A~ M w - b~), and its noise has the covariance
eta^2 (sigma^2/d) sum_k B^k S^2 B^k'. With z = (w - c, 1), c a centre, the change is D z.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from submodel_lab.theory.masking import BernoulliLaw, FixedSizeLaw, ListLaw, MaskLaw
from submodel_lab.theory.problems import FloatArray, Quadratic, TheoryError

MOST_MASKS = 1 << 14
"""Largest number of enumerated masks of a client; with more, moments are used if K = 1."""
_FEW_MASKS = 1 << 10  # with more masks, moments are faster, if they suffice
_CHUNK = 1 << 12


@dataclass(frozen=True, eq=False)
class ClientWork:
    """A client's loss with the factors of its masks, and its local training."""

    matrix: FloatArray  # F A F
    vector: FloatArray  # F b
    noise: FloatArray  # variance of every coordinate times the square of the factor
    steps: int
    eta: float
    centre: FloatArray

    def change_maps(self, masks: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return D (masks x d x (d+1)) and the covariance of noise (masks x d x d) of each mask."""
        count, d = masks.shape
        rows = masks[:, :, None]
        curvature = rows * self.matrix * masks[:, None]
        step = np.eye(d) - self.eta * curvature
        power_sum = np.zeros((count, d, d))
        covariance = np.zeros((count, d, d))
        diagonal = np.zeros((count, d, d))
        diagonal[:, range(d), range(d)] = self.eta**2 * masks * self.noise
        for _ in range(self.steps):
            power_sum = np.eye(d) + step @ power_sum
            covariance = step @ covariance @ step + diagonal
        pull = masks * ((masks * self.centre) @ self.matrix - self.vector)
        gradient = np.concatenate([curvature, pull[:, :, None]], 2)
        return -self.eta * power_sum @ gradient, covariance


def list_work(
    problem: Quadratic, factors: FloatArray, steps: int, eta: float, centre: FloatArray
) -> list[ClientWork]:
    """Make the work of each client in a round."""
    variance = problem.noise**2 / problem.dimension
    return [
        ClientWork(f[:, None] * a * f, f * b, variance * f**2, steps, eta, centre)
        for a, b, f in zip(problem.matrices, problem.vectors, factors, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class FourMoments:
    """Moments t and q_1 ... q_4 of one client's masks."""

    weights: FloatArray
    orders: FloatArray

    def gradient_square(
        self, matrix: FloatArray, vector: FloatArray, centre: FloatArray, moments: FloatArray
    ) -> FloatArray:
        """Return E[g g'] for E[z z'] = ``moments`` (... x (d+1) x (d+1)), z = (w - centre, 1).

        Write g_a = m_a (sum_b A_ab m_b w_b + h_a), b != a, with h_a = A_aa w_a - b_a. In g_a g_e
        let y_a be the part of the sum with b != e, and k_a = h_a + A_ae w_e the rest, so that the
        masks in y_a k_e are of three different coordinates, and of three or four in y_a y_e.
        """
        t, (q1, q2, q3, q4) = self.weights, self.orders
        d = len(t)
        across = matrix - np.diag(np.diag(matrix))
        point = np.concatenate([np.eye(d), centre[:, None]], 1)  # w = point z
        sums = across * t @ point
        rest = np.diag(matrix)[:, None] * point
        rest[:, -1] -= vector
        yy, yw, yh = (sums @ moments @ other.T for other in (sums, point, rest))
        hh, hw, ww = (
            rest @ moments @ rest.T, rest @ moments @ point.T, point @ moments @ point.T,
        )  # fmt: skip
        powers = np.diagonal(ww, axis1=-2, axis2=-1)[..., None, :]
        once, twice = (across * (weight * powers) @ across for weight in (t, t**2))
        yw_a, hw_a = (np.diagonal(m, axis1=-2, axis2=-1)[..., None] for m in (yw, hw))
        yw_e, hw_e = (np.swapaxes(m, -1, -2) for m in (yw_a, hw_a))
        t_a, t_e, both = t[:, None], t[None], across**2 * ww
        y_y = yy - across * (t_a * yw_a + t_e * yw_e) + t_a * t_e * both
        y_k = yh + across * (yw_a - t_e * hw_e) - t_e * both
        k_k = hh + across * (hw_a + hw_e) + both
        y_k = y_k + np.swapaxes(y_k, -1, -2)
        square = t_a * t_e * (q4 * (y_y - twice) + q3 * (once + y_k) + q2 * k_k)
        on = range(d)
        square[..., on, on] = t * (
            q3 * (yy - twice) + q2 * (once + 2 * yh) + q1 * hh
        )[..., on, on]  # fmt: skip
        return np.asarray(square)


def four_moments(law: MaskLaw) -> list[FourMoments] | None:
    """Return the moments of every client; None for lists and dependent clients."""
    if isinstance(law, BernoulliLaw):
        return [FourMoments(p, np.ones(4)) for p in law.probabilities]
    if isinstance(law, FixedSizeLaw) and law.independent:
        return [FourMoments(np.ones(law.dimension), q) for q in law.orders]
    return None


Square = Callable[[FloatArray], FloatArray]
"""E[(sum of changes)(sum of changes)'] as a function of E[z z'], for any number at once."""


@dataclass(frozen=True, eq=False)
class RoundMap:
    """Map of E[z z'] to E[z z'] after a round."""

    drift: FloatArray  # E[w+ - w] = drift z
    square: Square
    noise: FloatArray  # d x d

    def __call__(self, moments: FloatArray) -> FloatArray:
        """Return the moments after the round, for any number at once (... x (d+1) x (d+1))."""
        after = moments.copy()
        change = self.drift @ moments
        after[..., :-1, :] += change
        after[..., :, :-1] += np.swapaxes(change, -1, -2)
        certain = moments[..., -1:, -1:]  # 1, except for elements of a basis
        after[..., :-1, :-1] += self.square(moments) + certain * self.noise
        return after


@dataclass(frozen=True)
class PairWeights:
    """Weights of a client and of a pair of clients, with n of N present in a round."""

    alone: float
    pair: float

    @classmethod
    def of(cls, clients: int, participants: int | None) -> PairWeights:
        """Compute the weights of averages over the present clients."""
        n = participants or clients
        pair = (n - 1) / (n * clients * (clients - 1)) if clients > 1 else 0.0
        return cls(1 / (n * clients), pair)


def round_map(work: list[ClientWork], law: MaskLaw, participants: int | None = None) -> RoundMap:
    """Make the map of a round with fresh masks."""
    weights = PairWeights.of(len(work), participants)
    if isinstance(law, ListLaw) and not law.independent:
        return _joint_map(work, law.masks, law.chances, weights)
    most, steps = max(law.count(i) for i in range(len(work))), work[0].steps
    by_moments = four_moments(law) if steps == 1 and most > _FEW_MASKS else None
    if by_moments is not None:
        return _map_by_moments(work, law, by_moments, weights)
    if not law.independent:
        raise TheoryError("these clients' parts have too many divisions to list: fewer coordinates")
    if most > MOST_MASKS:
        raise TheoryError(
            f"{most} masks of a client and K = {steps} local steps: at most {MOST_MASKS} masks are "
            "enumerated; with K = 1 the masks' moments suffice for any d"
        )
    means, gram, noise = [], np.zeros(1), np.zeros(1)
    for i, client in enumerate(work):
        mean, client_gram, client_noise = _sum_over_masks(client, *law.list_client(i))
        means.append(mean)
        gram, noise = gram + client_gram, noise + client_noise
    return _independent_map(means, _apply_gram(gram, len(work[0].centre)), noise, weights)


def _map_by_moments(
    work: list[ClientWork], law: MaskLaw, by_moments: list[FourMoments], weights: PairWeights
) -> RoundMap:
    first, second = law.moments
    means = [_mean_change(client, p, pp) for client, p, pp in zip(work, first, second, strict=True)]
    noise = np.sum([c.eta**2 * np.diag(c.noise * p) for c, p in zip(work, first, strict=True)], 0)

    def squares(z: FloatArray) -> FloatArray:
        total = np.zeros((*z.shape[:-2], *noise.shape))
        for c, moments in zip(work, by_moments, strict=True):
            total += c.eta**2 * moments.gradient_square(c.matrix, c.vector, c.centre, z)
        return total

    return _independent_map(means, squares, noise, weights)


def _mean_change(client: ClientWork, first: FloatArray, second: FloatArray) -> FloatArray:
    """Return -eta E[M(A M w - b)], K = 1."""
    curvature = client.matrix * second
    pull = curvature @ client.centre - client.vector * first
    return -client.eta * np.concatenate([curvature, pull[:, None]], 1)


def _independent_map(
    means: list[FloatArray], squares: Square, noise: FloatArray, weights: PairWeights
) -> RoundMap:
    """Make the map for independent clients, where pairs contribute the product of their means."""
    each = np.stack(means)
    total = each.sum(0)

    def square(z: FloatArray) -> FloatArray:
        every = total @ z @ total.T
        same = sum(mean @ z @ mean.T for mean in each)
        return np.asarray(weights.alone * squares(z) + weights.pair * (every - same))

    return RoundMap(total / len(means), square, weights.alone * noise)


def _joint_map(
    work: list[ClientWork], masks: FloatArray, chances: FloatArray, weights: PairWeights
) -> RoundMap:
    """Make the map for dependent clients by sums over the entries of the list."""
    d = masks.shape[2]
    alone, together = np.zeros(1), np.zeros(1)
    drift, noise = np.zeros((d, d + 1)), np.zeros((d, d))
    for start in range(0, len(masks), _CHUNK):
        part = slice(start, start + _CHUNK)
        roots = np.sqrt(chances[part])[:, None, None]
        total = np.zeros((len(roots), d, d + 1))
        for i, client in enumerate(work):
            change, covariance = client.change_maps(masks[part, i])
            alone = alone + _gram(roots * change)
            total += change
            noise += np.einsum("m,mab->ab", chances[part], covariance)
        together = together + _gram(roots * total)
        drift += np.einsum("m,mab->ab", chances[part], total) / len(work)
    gram = (weights.alone - weights.pair) * alone + weights.pair * together
    return RoundMap(drift, _apply_gram(gram, d), weights.alone * noise)


def _sum_over_masks(
    client: ClientWork, masks: FloatArray, chances: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return E[D], E[D (x) D] and E[noise] of a client."""
    mean, gram, noise = np.zeros(1), np.zeros(1), np.zeros(1)
    for start in range(0, len(masks), _CHUNK):
        part = slice(start, start + _CHUNK)
        change, covariance = client.change_maps(masks[part])
        mean = mean + np.einsum("m,mab->ab", chances[part], change)
        gram = gram + _gram(np.sqrt(chances[part])[:, None, None] * change)
        noise = noise + np.einsum("m,mab->ab", chances[part], covariance)
    return mean, gram, noise


def _gram(changes: FloatArray) -> FloatArray:
    flat = changes.reshape(len(changes), -1)
    return np.asarray(flat.T @ flat)


def _apply_gram(gram: FloatArray, d: int) -> Square:
    """Compute E[D Z D'] from E[D_ab D_ce] by sums over b and e with Z_be."""
    table = np.ascontiguousarray(
        gram.reshape(d, d + 1, d, d + 1).transpose(1, 3, 0, 2).reshape((d + 1) ** 2, d * d)
    )

    def square(z: FloatArray) -> FloatArray:
        flat = z.reshape(*z.shape[:-2], (d + 1) ** 2)
        return np.asarray((flat @ table).reshape(*z.shape[:-2], d, d))

    return square
