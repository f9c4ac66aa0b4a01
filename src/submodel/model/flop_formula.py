"""Operations as a formula in the sizes of axes, for schemes whose every client has another shape.

Every operator does a number of operations that is a product of sizes: of axes, each as often as it
occurs, and of others that no cut changes. One more forward pass finds out which: of a sub-model
with another prime number of units along every axis, by the primes that its operations are
multiples of. Where an operator does something else, there is no formula.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import numpy as np

from submodel.model.axes import Axes
from submodel.model.cut import WHOLE, Cut, UnitCut

_LARGEST_PRIME = 1 << 12
Powers = tuple[tuple[str, int], ...]
"""Axes, and how often each occurs in a product."""


class FlopFormula:
    """The operations of any sub-model of a net.

    Args:
        sizes: of the axes, uncut.
        terms: the operations of the whole net, by the axes that they are products of.

    >>> formula = FlopFormula({"hidden": 8}, {(("hidden", 1),): 96, (): 4})
    >>> formula({"hidden": 2}), formula({})
    (28, 100)
    """

    def __init__(self, sizes: Mapping[str, int], terms: Mapping[Powers, int]) -> None:
        self._sizes, self._terms = sizes, terms

    def __call__(self, kept_sizes: Mapping[str, int]) -> int | None:
        """The operations where axes have these sizes, the others all their units.

        Args:
            kept_sizes: of axes that are cut.
        """
        total = Fraction(0)
        for powers, count in self._terms.items():
            term = Fraction(count)
            for axis, power in powers:
                if axis in kept_sizes:
                    term *= Fraction(kept_sizes[axis], self._sizes[axis]) ** power
            total += term
        return int(total) if total.denominator == 1 else None


def find_formula(axes: Axes, count: Callable[[Cut], Sequence[int]]) -> FlopFormula | None:
    """The formula of a net; None where there is none, or not enough primes to tell axes apart.

    Args:
        axes: of the net.
        count: the operations of every operator of a sub-model, in their order.
    """
    names = {*axes.cut_by_capacity, *axes.sizes} - axes.kept_whole.keys()
    sizes = {name: axes.sizes[name] for name in sorted(names, key=lambda n: (axes.sizes[n], n))}
    primes = _primes(sizes)
    if primes is None:
        return None
    whole = count(WHOLE)
    trial = count(UnitCut(axes, {axis: np.arange(prime) for axis, prime in primes.items()}))
    if len(whole) != len(trial):
        return None
    terms = Counter[Powers]()
    for all_operations, operations in zip(whole, trial, strict=True):
        powers = {a: _power(operations, p) - _power(all_operations, p) for a, p in primes.items()}
        operations_expected = Fraction(all_operations)
        for axis, power in powers.items():
            operations_expected *= Fraction(primes[axis], sizes[axis]) ** power
        if operations_expected != operations:
            return None
        terms[tuple((a, n) for a, n in powers.items() if n)] += all_operations
    return FlopFormula(sizes, terms)


def _primes(sizes: Mapping[str, int]) -> dict[str, int] | None:
    """Another prime for every axis, at most its size, that no size is a multiple of."""
    product = math.prod(sizes.values())
    candidates = (
        n
        for n in range(2, _LARGEST_PRIME)
        if product % n and all(n % d for d in range(2, math.isqrt(n) + 1))
    )
    primes = dict(zip(sizes, candidates, strict=False))
    is_enough = len(primes) == len(sizes) and all(p <= sizes[a] for a, p in primes.items())
    return primes if is_enough else None


def _power(number: int, prime: int) -> int:
    """How often a prime divides a number; of 0, never."""
    power = 0
    while number and number % prime == 0:
        number, power = number // prime, power + 1
    return power
