"""One round of the algorithm as a linear map of E[z z'], z = (w - c, 1): by masks or by moments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from submodel_lab.theory.exact.four_moments import FourMoments, four_moments
from submodel_lab.theory.exact.local_maps import ClientWork
from submodel_lab.theory.mask_laws import ListLaw, MaskLaw
from submodel_lab.theory.problems import FloatArray, TheoryError

MOST_MASKS = 1 << 14
"""Masks of a client that are enumerated; where there are more, moments serve, if K = 1."""
_FEW_MASKS = 1 << 10  # more than these take longer than moments, where those are enough
_CHUNK = 1 << 12

Square = Callable[[FloatArray], FloatArray]
"""E[(sum of changes)(sum of changes)'] as a function of E[z z'], any number of them at once."""


@dataclass(frozen=True, eq=False)
class RoundMap:
    """E[z z'] -> E[z z'] after one round."""

    drift: FloatArray  # E[w+ - w] = drift z
    square: Square
    noise: FloatArray  # d x d

    def __call__(self, moments: FloatArray) -> FloatArray:
        """After the round; any number of moments at once (... x (d+1) x (d+1))."""
        after = moments.copy()
        change = self.drift @ moments
        after[..., :-1, :] += change
        after[..., :, :-1] += np.swapaxes(change, -1, -2)
        certain = moments[..., -1:, -1:]  # 1, but for the elements of a basis
        after[..., :-1, :-1] += self.square(moments) + certain * self.noise
        return after


@dataclass(frozen=True)
class PairWeights:
    """How often a client, and a pair of clients, count: with n of N present in a round."""

    alone: float
    pair: float

    @classmethod
    def of(cls, clients: int, participants: int | None) -> PairWeights:
        """Averages over those present."""
        n = participants or clients
        pair = (n - 1) / (n * clients * (clients - 1)) if clients > 1 else 0.0
        return cls(1 / (n * clients), pair)


def round_map(work: list[ClientWork], law: MaskLaw, participants: int | None = None) -> RoundMap:
    """One round with fresh masks.

    Args:
        work: What each client does.
        law: Of the masks; the order of a list plays no part here.
        participants: Clients of the round; None: all.
    """
    weights = PairWeights.of(len(work), participants)
    if isinstance(law, ListLaw) and not law.independent:
        return _joint_map(work, law.masks, law.chances, weights)
    most, steps = max(law.count(i) for i in range(len(work))), work[0].steps
    by_moments = four_moments(law) if steps == 1 and most > _FEW_MASKS else None
    if by_moments is not None:
        return _map_by_moments(work, law, by_moments, weights)
    if not law.independent:
        raise TheoryError("the parts of these clients are too many ways to deal: fewer coordinates")
    if most > MOST_MASKS:
        raise TheoryError(
            f"{most} masks of a client and K = {steps} local steps: {MOST_MASKS} masks are "
            "enumerated; with K = 1 the masks' moments are enough for any d"
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
    """-eta E[M(A M w - b)], K = 1."""
    curvature = client.matrix * second
    pull = curvature @ client.centre - client.vector * first
    return -client.eta * np.concatenate([curvature, pull[:, None]], 1)


def _independent_map(
    means: list[FloatArray], squares: Square, noise: FloatArray, weights: PairWeights
) -> RoundMap:
    """Pairs of clients are independent: the product of their means counts."""
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
    """Clients depend on each other: sums over the entries of the list."""
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
    """E[D], E[D (x) D] and E[noise] of a client."""
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
    """E[D Z D'] from E[D_ab D_ce]: sum over b and e with Z_be."""
    table = np.ascontiguousarray(
        gram.reshape(d, d + 1, d, d + 1).transpose(1, 3, 0, 2).reshape((d + 1) ** 2, d * d)
    )

    def square(z: FloatArray) -> FloatArray:
        flat = z.reshape(*z.shape[:-2], (d + 1) ** 2)
        return np.asarray((flat @ table).reshape(*z.shape[:-2], d, d))

    return square
