"""Advice from evidence: what near records show beyond chance, and nothing besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from submodel.comparison import HOLDS, REVERSED, Judgement, spread
from submodel_lab.advice.evidence import Circumstances, Evidence, Family, TriedContrast, TriedWay
from submodel_lab.advice.fleet import GOAL_MEASURES, Case, Nearness, nearness_of


@dataclass(frozen=True)
class Finding:
    """A contrast with its verdict, where it was measured, and how near that is."""

    contrast: TriedContrast
    judgement: Judgement
    family: Family
    setting: Circumstances
    nearness: Nearness

    @property
    def winner(self) -> str | None:
        """The way that is better beyond chance; None: neither."""
        sides = {HOLDS: self.contrast.better, REVERSED: self.contrast.worse}
        return sides.get(self.judgement.verdict)

    @property
    def pair(self) -> frozenset[str]:
        """The two ways."""
        return frozenset((self.contrast.better, self.contrast.worse))

    @property
    def order(self) -> tuple[bool, float, int]:
        """What speaks first: runs to the end, then the nearest fleet, then the most seeds."""
        seeds = len(self.contrast.differences)
        return not self.setting.is_converged, self.nearness.distance, -seeds


@dataclass(frozen=True)
class Advice:
    """What is recommended, and all that it rests on."""

    case: Case  # what was asked for
    measure: str  # what decided
    way: str | None  # what is recommended, by key; None: nothing
    beats: Mapping[str, Finding]  # for each way that it was shown to beat, the finding
    rivals: Sequence[str]  # ways that near records do not tell from it, or never compared with it
    # of the other ways those that were shown to lose, with the finding
    losers: Mapping[str, Finding]
    near: Sequence[Finding]  # all findings that speak for the fleet
    far: Sequence[Finding]  # findings by the same measure that do not, the nearest first
    conflicts: Sequence[str]  # pairs of ways of which near records say both

    @property
    def is_trivial(self) -> bool:
        """Whether all devices hold the whole model: every scheme is FedAvg then, to the bit."""
        return self.case.smallest == 1


def advise(evidence: Evidence, case: Case) -> Advice:
    """What the evidence recommends for a case; nothing where it shows nothing.

    A way is recommended if near records show it to be better than another one and show none to be
    better than it; of several, the one that beats most.
    """
    measure = GOAL_MEASURES[case.goal]
    findings = sorted(_findings(evidence, case, measure), key=lambda finding: finding.order)
    near = [finding for finding in findings if finding.nearness.is_near]
    decisions, conflicts = _decide(near)
    ways = list(dict.fromkeys(way for f in near for way in (f.contrast.better, f.contrast.worse)))
    losers = {_loser(finding): finding for finding in decisions}
    beats_by_way: dict[str, dict[str, Finding]] = {way: {} for way in ways if way not in losers}
    for finding in decisions:
        if (winner := finding.winner) in beats_by_way:
            beats_by_way[winner][_loser(finding)] = finding

    def strength(way: str) -> tuple[int, float]:
        beaten = beats_by_way[way].values()
        return len(beaten), sum(abs(spread(f.contrast.differences)[0]) for f in beaten)

    best = max(beats_by_way, key=strength, default=None)
    if case.smallest == 1 or best is None or not beats_by_way[best]:
        best = None
    return Advice(
        case,
        measure,
        best,
        {} if best is None else beats_by_way[best],
        [way for way in beats_by_way if way != best],
        losers,
        near,
        [finding for finding in findings if not finding.nearness.is_near],
        conflicts,
    )


def _findings(evidence: Evidence, case: Case, measure: str) -> list[Finding]:
    return [
        Finding(
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


def _decide(near: Sequence[Finding]) -> tuple[list[Finding], list[str]]:
    """For each pair of ways the first finding that decides; where later ones say the opposite."""
    decisions: dict[frozenset[str], Finding] = {}
    conflicts: dict[str, None] = {}
    for finding in near:
        if finding.winner is None:
            continue
        first = decisions.setdefault(finding.pair, finding)
        if first.winner != finding.winner:
            text = f"{first.winner} beats {_loser(first)} in {first.setting.title}"
            conflicts[f"{text}, and loses to it in {finding.setting.title}"] = None
    return list(decisions.values()), list(conflicts)


def _loser(finding: Finding) -> str:
    (loser,) = finding.pair - {finding.winner}
    return loser


def settings_for(evidence: Evidence, advice: Advice) -> tuple[TriedWay, dict[str, float]] | None:
    """What the recommended way sets, and by setting the learning rate that was best for it."""
    if advice.way is None:
        return None
    near_settings = {f.contrast.setting: f.setting.title for f in advice.near}
    rates = {
        title: evidence.rates[key][advice.way]
        for key, title in near_settings.items()
        if advice.way in evidence.rates.get(key, {})
    }
    return evidence.ways[advice.way], rates
