"""Advice from evidence: recommend only what near records show beyond chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from submodel.comparison import HOLDS, REVERSED, Judgement, spread
from submodel_lab.advice.evidence import Circumstances, Evidence, Family, Method, TriedContrast
from submodel_lab.advice.fleet import GOAL_MEASURES, Case, Nearness, nearness_of


@dataclass(frozen=True)
class JudgedContrast:
    """A contrast with its verdict, its circumstances and their distance from the question."""

    tried: TriedContrast
    judgement: Judgement
    family: Family
    setting: Circumstances
    nearness: Nearness

    @property
    def winner(self) -> str | None:
        """Key of the method that is better beyond chance; None: neither."""
        sides = {HOLDS: self.tried.better, REVERSED: self.tried.worse}
        return sides.get(self.judgement.verdict)

    @property
    def pair(self) -> frozenset[str]:
        """Keys of the two methods."""
        return frozenset((self.tried.better, self.tried.worse))

    @property
    def order(self) -> tuple[bool, float, int]:
        """Sort key: converged runs first, then the nearest fleet, then the most seeds."""
        seeds = len(self.tried.differences)
        return not self.setting.is_converged, self.nearness.distance, -seeds


@dataclass(frozen=True)
class Advice:
    """A recommendation with its evidence."""

    case: Case  # the question
    measure: str  # the deciding measure
    method: str | None  # key of the recommended method; None: none
    beats: Mapping[str, JudgedContrast]  # deciding contrast by the method that loses it
    rivals: Sequence[str]  # methods without a known difference from the recommended one
    losers: Mapping[str, JudgedContrast]  # all methods that lose a contrast, with that contrast
    near: Sequence[JudgedContrast]  # contrasts that apply to the fleet
    far: Sequence[JudgedContrast]  # contrasts by the same measure that do not, the nearest first
    conflicts: Sequence[str]  # pairs of methods with opposite verdicts in near records

    @property
    def is_trivial(self) -> bool:
        """Whether all devices hold the whole model, so that every scheme is FedAvg, bit for bit."""
        return self.case.smallest == 1


def advise(evidence: Evidence, case: Case) -> Advice:
    """Recommend a method for a case, or none where the evidence is missing.

    A method is recommended if it beats another one in near records and loses to none; of several,
    the method that beats most is recommended.
    """
    measure = GOAL_MEASURES[case.goal]
    judged_contrasts = sorted(_judge_all(evidence, case, measure), key=lambda judged: judged.order)
    near = [judged for judged in judged_contrasts if judged.nearness.is_near]
    decisions, conflicts = _decide(near)
    methods = list(
        dict.fromkeys(method for f in near for method in (f.tried.better, f.tried.worse))
    )
    losers = {_loser(judged): judged for judged in decisions}
    beats_by_method: dict[str, dict[str, JudgedContrast]] = {
        method: {} for method in methods if method not in losers
    }
    for judged in decisions:
        if (winner := judged.winner) in beats_by_method:
            beats_by_method[winner][_loser(judged)] = judged

    def strength(method: str) -> tuple[int, float]:
        beaten = beats_by_method[method].values()
        return len(beaten), sum(abs(spread(f.tried.differences)[0]) for f in beaten)

    best = max(beats_by_method, key=strength, default=None)
    if case.smallest == 1 or best is None or not beats_by_method[best]:
        best = None
    return Advice(
        case,
        measure,
        best,
        {} if best is None else beats_by_method[best],
        [method for method in beats_by_method if method != best],
        losers,
        near,
        [judged for judged in judged_contrasts if not judged.nearness.is_near],
        conflicts,
    )


def _judge_all(evidence: Evidence, case: Case, measure: str) -> list[JudgedContrast]:
    return [
        JudgedContrast(
            contrast,
            judgement,
            family,
            evidence.settings[contrast.setting],
            nearness_of(case, evidence.settings[contrast.setting]),
        )
        for family in evidence.families
        for contrast, judgement in zip(family.contrasts, family.judgements, strict=True)
        if contrast.is_choice and contrast.measure == measure
    ]


def _decide(near: Sequence[JudgedContrast]) -> tuple[list[JudgedContrast], list[str]]:
    """Return the first decisive contrast of each pair of methods, and later contradictions."""
    decisions: dict[frozenset[str], JudgedContrast] = {}
    conflicts: dict[str, None] = {}
    for judged in near:
        if judged.winner is None:
            continue
        first = decisions.setdefault(judged.pair, judged)
        if first.winner != judged.winner:
            text = f"{first.winner} beats {_loser(first)} in {first.setting.title}"
            conflicts[f"{text}, and loses to it in {judged.setting.title}"] = None
    return list(decisions.values()), list(conflicts)


def _loser(judged: JudgedContrast) -> str:
    (loser,) = judged.pair - {judged.winner}
    return loser


def settings_for(evidence: Evidence, advice: Advice) -> tuple[Method, dict[str, float]] | None:
    """Return the recommended method and its best learning rate by setting."""
    if advice.method is None:
        return None
    near_settings = {f.tried.setting: f.setting.title for f in advice.near}
    rates = {
        title: evidence.rates[key][advice.method]
        for key, title in near_settings.items()
        if advice.method in evidence.rates.get(key, {})
    }
    return evidence.ways[advice.method], rates
