"""Which probabilities to hold things with, under a budget: those of least variance.

An unbiased mask m/p makes of a vector g an estimate with the variance sum_j g_j^2 (1/p_j - 1).
"""

from __future__ import annotations

import numpy as np

from submodel_lab.theory.problems import FloatArray, TheoryError


def variance(powers: FloatArray, probabilities: FloatArray) -> float:
    """The variance of m/p (.) g, where ``powers`` are E[g_j^2].

    >>> variance(np.array([4.0, 1.0]), np.array([0.5, 0.5]))
    5.0
    """
    return float((powers * (1 / probabilities - 1)).sum())


def least_variance(powers: FloatArray, budget: float) -> FloatArray:
    """The p_j in (0, 1] of sum ``budget`` that make `variance` least: min(1, c sqrt(powers)).

    >>> least_variance(np.array([4.0, 1.0, 1.0]), 2.0)
    array([1. , 0.5, 0.5])
    """
    if not (powers > 0).all():
        raise TheoryError("a power of 0: what is never needed has no probability; leave it out")
    if not 0 < budget <= len(powers):
        raise TheoryError(f"a budget of {budget:g} for {len(powers)}: it must be in (0, d]")
    roots = np.sqrt(powers)
    largest_first = np.argsort(-roots, kind="stable")
    tail = np.cumsum(roots[largest_first][::-1])[::-1]  # of each one and all smaller ones
    for certain, rest in enumerate(tail):
        factor = (budget - certain) / rest
        if factor * roots[largest_first[certain]] <= 1:
            return np.asarray(np.minimum(1.0, factor * roots))
    return np.ones_like(roots)
