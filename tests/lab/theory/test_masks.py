"""Moments of masks and masked objectives, against enumeration of the draws of schemes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
import pytest

from submodel.schemes import (
    Draw,
    Dropout,
    Full,
    Hierarchical,
    Importance,
    Mask,
    MaskedSgd,
    Ordered,
    PartitionScheme,
    Pruned,
    Random,
    Rolling,
    Scheme,
    Static,
    Unbiased,
)
from submodel_lab.theory import (
    MaskedObjective,
    Masking,
    TheoryError,
    bernoulli,
    coordinatewise,
    mask_list,
    quadratics,
)
from submodel_lab.theory.problems import FloatArray, Quadratic
from submodel_lab.theory.trials import MaskDraws

D = 5


def sets(d: int, size: int) -> list[FloatArray]:
    """List all masks of a size."""
    return [
        np.isin(np.arange(d), members).astype(float) for members in combinations(range(d), size)
    ]


def optimum_by_sums(problem: Quadratic, masks: list[tuple[list[FloatArray], list[float]]]) -> Any:
    """Compute w*(p), where the gradient of (1/N) sum_i sum_m chance f_i(m (.) w) is 0."""
    d = problem.dimension
    matrix, vector = np.zeros((d, d)), np.zeros(d)
    for a, b, (client_masks, chances) in zip(problem.matrices, problem.vectors, masks, strict=True):
        for m, chance in zip(client_masks, chances, strict=True):
            matrix += chance * np.diag(m) @ a @ np.diag(m)
            vector += chance * m * b
    return np.linalg.solve(matrix, vector)


@pytest.mark.parametrize("scheme", [Random("fixed"), Dropout()])
def test_the_optimum_of_masks_of_fixed_size(scheme: Scheme) -> None:
    """Two coordinates are held together with s(s-1)/(d(d-1)), not p^2."""
    problem = quadratics(clients=2, dimension=D)
    masking = Masking(scheme, (0.5, 0.8))  # 3 and 4 of 5 coordinates
    lists = [(sets(D, 3), [1 / 10] * 10), (sets(D, 4), [1 / 5] * 5)]
    expected = optimum_by_sums(problem, lists)
    found = MaskedObjective(problem, masking).optimum(math.inf)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    bernoulli_optimum = MaskedObjective(problem, Masking(Random(), (0.5, 0.8))).optimum(math.inf)
    assert np.linalg.norm(found - bernoulli_optimum) > 0.01


SCHEMES: dict[str, tuple[Scheme, tuple[float, ...]]] = {
    "full": (Full(), (1.0, 1.0)),
    "static": (Static(), (0.4, 0.6)),
    "rolling": (Rolling(D), (0.4, 0.6)),
    "sequential": (Rolling(D, "sequential"), (0.4, 0.6)),
    "bernoulli": (Random(), (0.4, 0.7)),
    "fixed": (Random("fixed"), (0.4, 0.7)),
    "dropout": (Dropout(), (0.4, 0.7)),
    "masked-sgd": (MaskedSgd(Rolling(D)), (0.4,)),
    "one cell": (Hierarchical(1), (1.0, 1.0)),
    "partition": (PartitionScheme(), (0.4, 0.4)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMES)
def test_moments_are_the_frequencies_of_draws(name: str) -> None:
    """Means of m and m m' over 4000 rounds of the scheme's draws."""
    scheme, capacities = SCHEMES[name]
    masking = Masking(scheme, capacities)
    draws = np.array([
        [scheme.select("coordinates", D, p, Draw(0, r, i, place=i))
         for i, p in enumerate(capacities)]
        for r in range(4000)
    ], float)  # fmt: skip
    first, second = masking.moments(D)
    # 5 standard deviations of a frequency; 0 if every epoch has every mask once
    spread = 0.0 if name in ("full", "static", "rolling", "sequential", "masked-sgd") else 0.04
    np.testing.assert_allclose(draws.mean(0), first, atol=spread + 1e-12)
    np.testing.assert_allclose(np.einsum("rid,rie->ide", draws, draws) / 4000, second,
                               atol=spread + 1e-12)  # fmt: skip
    masks, chances = masking.list_masks(D)
    np.testing.assert_allclose(np.einsum("im,imd->id", chances, masks), first, atol=1e-12)
    np.testing.assert_allclose(np.einsum("im,imd,ime->ide", chances, masks, masks), second,
                               atol=1e-12)  # fmt: skip


def test_parts_are_listed_as_they_are_dealt() -> None:
    law = Masking(PartitionScheme(), (0.4, 0.4)).law(D)
    found = Counter(
        tuple(map(tuple, entry)) for entry in np.stack([law.list_client(i)[0] for i in (0, 1)], 1)
    )
    expected = Counter(
        (tuple(np.isin(range(D), order[:2]) * 1.0), tuple(np.isin(range(D), order[2:4]) * 1.0))
        for order in permutations(range(D))
    )
    assert found.keys() == expected.keys()
    assert set(found.values()) == {1}  # each once, and all are equally likely
    assert len(set(expected.values())) == 1


def test_too_many_parts_keep_their_moments() -> None:
    law = Masking(PartitionScheme(), (0.2,) * 5).law(20)
    first, second = law.moments
    np.testing.assert_allclose(first, 0.2)
    np.testing.assert_allclose(second[0, 0, 1], 4 * 3 / (20 * 19))
    assert not law.independent


def test_unequal_and_coordinatewise_probabilities() -> None:
    problem = quadratics(clients=2, dimension=D)
    p = np.array([[0.2, 0.5, 1.0, 0.9, 0.4], [1.0, 1.0, 0.3, 0.6, 0.7]])
    lists = []
    for row in p:
        masks = [np.array(m) for m in product((0.0, 1.0), repeat=D)]
        lists.append((masks, [float(np.prod(np.where(m > 0, row, 1 - row))) for m in masks]))
    found = MaskedObjective(problem, coordinatewise(p)).optimum(math.inf)
    np.testing.assert_allclose(found, optimum_by_sums(problem, lists), atol=1e-12)
    same = coordinatewise(np.full((2, D), 0.4))
    ours, theirs = (MaskDraws(m, D, 3, 7)(2) for m in (same, bernoulli(0.4, 2)))
    np.testing.assert_array_equal(ours, theirs)
    draws = np.stack([MaskDraws(coordinatewise(p), D, 500, 0)(r) for r in range(8)])
    np.testing.assert_allclose(draws.mean((0, 2)), p, atol=0.04)  # 5 sigma of 4000 draws


@pytest.mark.parametrize("together", [True, False])
def test_a_list_of_masks(together: bool) -> None:
    table = np.array([[[1, 0, 1], [0, 1, 1]], [[0, 1, 0], [1, 1, 1]]], float)
    masking = mask_list(table, [0.25, 0.75], together)
    problem = quadratics(clients=2, dimension=3)
    lists = [(list(table[:, i]), [0.25, 0.75]) for i in (0, 1)]
    found = MaskedObjective(problem, masking).optimum(math.inf)
    np.testing.assert_allclose(found, optimum_by_sums(problem, lists), atol=1e-12)
    draws = np.stack([MaskDraws(masking, 3, 100, 0)(r) for r in range(20)], 1).reshape(2, -1, 3)
    is_first = (draws[0] == table[0, 0]).all(-1)
    other_first = (draws[1] == table[0, 1]).all(-1)
    assert is_first.mean() == pytest.approx(0.25, abs=0.05)  # 5 sigma of 2000 draws
    assert (is_first == other_first).mean() == pytest.approx(1.0 if together else 0.625, abs=0.06)


def test_unbiased_masks_have_a_mean_of_one() -> None:
    """MAST of a fixed size divides by s/d, which differs from a capacity that is rounded up."""
    for masking in (
        Masking(Random("fixed"), (0.5, 0.3), unbiased=True),
        Masking(Unbiased("fixed"), (0.5, 0.3)),
        Masking(Unbiased(), (0.5, 0.3)),
    ):
        np.testing.assert_allclose(masking.moments(D)[0], 1.0, atol=1e-12)


class Odd(Scheme):
    """A scheme that the lab does not support."""

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:  # noqa: ARG002
        return np.asarray(np.arange(size) % 2 == 0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Masking(Importance(), (0.5,)), "Importance: "),
        (lambda: Masking(Pruned(), (0.5,)), "Pruned: "),
        (lambda: Masking(Hierarchical(2), (0.5, 0.5)), "Hierarchical: "),
        (lambda: Masking(Ordered((0.5, 1.0)), (1.0,)), "Ordered: "),
        (lambda: Masking(Odd(), (0.5,)), "Odd: "),
        (lambda: Masking(Rolling(7), (0.5,)).law(D), "scheme.windows: 7 "),
        (lambda: Masking(PartitionScheme(), (0.6, 0.6)).law(D), "clients.capacities: 2 "),
        (lambda: Masking(MaskedSgd(Random()), (0.5, 0.5)).law(D), "clients.count: 2 "),
        (lambda: coordinatewise(np.zeros((1, 2))), "(0, 1]"),
        (lambda: coordinatewise(np.ones((1, 2))).law(3), "1 x 2"),
        (lambda: mask_list(np.full((1, 1, 2), 0.5)), "0 and 1"),
        (lambda: mask_list(np.ones((2, 1, 2)), [0.5, 0.6]), "chances: 2 "),
        (lambda: Masking(Static(), (0.5,), unbiased=True).moments(4), "coordinate"),
    ],
)
def test_what_the_lab_cannot_is_refused_by_name(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(TheoryError) as raised:
        make()
    assert words in str(raised.value)
