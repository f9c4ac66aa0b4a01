"""Random sub-models that are unbiased: what is held is divided by its chance of being held."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from pydantic import Field

from submodel.model.capacity import units_held
from submodel.options import Section
from submodel.schemes.base import SchemeContext
from submodel.schemes.protocols import HasChances
from submodel.schemes.random.scheme import MaskSampling, Random


@dataclass(frozen=True)
class Unbiased(Random, HasChances):
    """MAST (Demidovich, Malinovsky, Shulgin, Richtarik 2024).

    "MAST: Model-agnostic sparsified training". The masks m are those of `Random`; the client
    computes with S w, S = diag(m_j / q_j), q_j = P(m_j = 1), so that E[S] = I, and its step is
    w <- w - eta S grad f(S w). The paper's distributed method averages the clients' steps over all
    of them, held or not: that is the merge rule `fill_in`, with one local step.
    """

    class Options(Section):
        """The keys of ``unbiased``."""

        sampling: MaskSampling = Field(
            "bernoulli", description="every unit with probability p, or exactly the share"
        )

    @classmethod
    def configured(cls, options: Options, context: SchemeContext) -> Self:  # type: ignore[override]  # noqa: ARG003
        """As `random`, but for the alignment."""
        return cls(options.sampling)

    def chance(self, size: int, capacity: float, units: int = 1, spare: bool = False) -> float:
        """Exact: p, or the share; with p + (1 - p)^n / n where a draw may not be empty.

        >>> Unbiased().chance(2, 0.5, spare=True), Unbiased("fixed").chance(4, 0.5, 2)
        (0.625, 0.16666666666666666)
        """
        if self.sampling == "fixed":
            count = units_held(capacity, size)
            return math.perm(count, units) / math.perm(size, units)
        empty = (1 - capacity) ** size if spare and units == 1 else 0.0
        return float(capacity**units + empty / size)
