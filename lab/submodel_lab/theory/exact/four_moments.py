"""E[g g'] of a masked gradient g = M(A M w - b) from the masks' first four moments.

E[m_a m_b ...] of k different coordinates is q_k t_a t_b ...: t = p, q = 1 for Bernoulli masks, and
t = 1, q_k = s(s-1).../(d(d-1)...) for sets of s. So no mask is listed, whatever d is; but the mask
must enter no more than four times, that is with K = 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from submodel_lab.theory.mask_laws import BernoulliLaw, FixedSizeLaw, MaskLaw
from submodel_lab.theory.problems import FloatArray


@dataclass(frozen=True, eq=False)
class FourMoments:
    """t and q_1 ... q_4 of one client's masks."""

    weights: FloatArray
    orders: FloatArray

    def gradient_square(
        self, matrix: FloatArray, vector: FloatArray, centre: FloatArray, moments: FloatArray
    ) -> FloatArray:
        """E[g g'] where E[z z'] = ``moments`` (... x (d+1) x (d+1)), z = (w - centre, 1).

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
    """Of every client; None where the law is a list, or clients depend on each other."""
    if isinstance(law, BernoulliLaw):
        return [FourMoments(p, np.ones(4)) for p in law.probabilities]
    if isinstance(law, FixedSizeLaw) and law.independent:
        return [FourMoments(np.ones(law.dimension), q) for q in law.orders]
    return None
