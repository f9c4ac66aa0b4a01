"""Which study measures which statement of the paper, and along what: no row stays empty."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from submodel_lab.theory.verdicts import Statement, Verdict

_RATES = ("R", "K", "N", "1/p", "zeta", "noise")
REGISTER: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "convergence": {
        "Theorem 1": (*_RATES, "kappa", "value", "floor"),
        "Theorem 3": (*_RATES, "kappa", "floor"),
        "Algorithm 1": ("output",),
        "Theorem A": ("R",),
    },
    "residual": {"Lemma 2": ("value", "1-p", "d"), "Theorem 1": ("residual", "1-p")},
    "lemmas": {
        "Proposition 1": ("p",),
        "Proposition 2": ("p",),
        "Lemma 4": ("p",),
        "Lemma 5": ("K",),
        "Lemma 6": ("K",),
        "Lemma 10": ("epoch",),
        "Lemma 11": ("K",),
        "Lemma 12": ("K",),
    },
    "nonconvex": {"Theorem 2": (*_RATES, "residual"), "Theorem 4": (*_RATES, "residual")},
    "stability": {
        "Theorem 5": ("n", "N", "R", "K", "p", "p, control", "D_max", "noise"),
        "Theorem 6": ("n", "N", "R", "K", "p", "p, control", "D_max", "noise"),
        "Corollary": ("gap",),
        "Lemma 1": ("gap",),
    },
    "generalization": {"Remark 3": ("p", "p, pays", "p, control")},
    "beyond": {"Section 3": ("order",)},
}
"""Study -> statement -> the parameters along which it is measured."""


def empty_rows(study: str, claims: Iterable[Statement]) -> list[tuple[str, str]]:
    """The statements and parameters that a study should have measured, and did not.

    Args:
        study: Its name.
        claims: What it claims.

    >>> empty_rows("beyond", [])
    [('Section 3', 'order')]
    """
    claim_rows = {(claim.source, claim.parameter) for claim in claims}
    return [
        (source, parameter)
        for source, parameters in REGISTER[study].items()
        for parameter in parameters
        if (source, parameter) not in claim_rows
    ]


def summarise(claims: Iterable[Statement]) -> dict[tuple[str, str], dict[Verdict, int]]:
    """How many claims of each statement and parameter came to which verdict.

    Args:
        claims: Of any studies; those beyond the paper are left out.
    """
    table: dict[tuple[str, str], dict[Verdict, int]] = {}
    for claim in claims:
        if claim.source and claim.verdict is not Verdict.NUMBER:
            counts = table.setdefault((claim.source, claim.parameter), {})
            counts[claim.verdict] = counts.get(claim.verdict, 0) + 1
    return table
