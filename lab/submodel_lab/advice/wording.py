"""Advice in words, as a table and as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from submodel.comparison import (
    JUDGEMENT_HEADINGS,
    PLUS_MINUS,
    BudgetKind,
    describe_judgement,
    number,
    spread,
)
from submodel.drawing import text_table
from submodel_lab.advice.evidence import Evidence
from submodel_lab.advice.fleet import Case, Goal, mean_capacity, write_capacity
from submodel_lab.advice.recommend import Advice, Finding, settings_for

_TRIVIAL = "all devices hold the whole model, and every scheme is FedAvg then, bit for bit."
_FAR_SHOWN = 8  # findings that do not reach the fleet, in the terminal


_GOALS = {
    Goal.FULL_MODEL: "the best full model (test accuracy)",
    Goal.DEVICES: "the best models on the devices (test accuracy, the mean over their sizes)",
}
_HEADINGS = ("setting", "rounds", "ways", "difference", "seeds", *JUDGEMENT_HEADINGS, "verdict")


def question_words(case: Case) -> str:
    """What was asked, in a line."""
    devices = ", ".join(f"{100 * share:.0f} % of {write_capacity(c)}" for c, share in case.fleet)
    budget = "no budget: until runs are flat"
    if case.budget is not None:
        rounds = "" if case.rounds is None else f", {case.rounds} rounds"
        budget = f"a budget of {case.budget.value}{rounds}"
    return (
        f"{devices} (mean capacity {mean_capacity(case.fleet):.2f}); goal: {_GOALS[case.goal]}; "
        f"{budget}"
    )


def answer_lines(evidence: Evidence, advice: Advice) -> list[str]:
    """What is recommended, how sure that is, and what the records do not say."""
    return [
        *_recommendation(evidence, advice),
        "",
        "How sure:",
        *(f"- {text}" for text in sureness(advice)),
        "",
        "Where the records do not reach:",
        *(f"- {text}" for text in limits(evidence, advice)),
    ]


def _recommendation(evidence: Evidence, advice: Advice) -> list[str]:
    if advice.is_trivial:
        return [f"Any scheme: {_TRIVIAL}"]
    answer = settings_for(evidence, advice)
    if answer is None:
        return ["Nothing is recommended: no record near this fleet shows one way to be better."]
    way, rates = answer
    lines = [f"Recommended: {way.title}"]
    if way.settings:
        lines.append("  " + " ".join(f"--set {text}" for text in way.settings))
    else:
        lines.append("  a model of every width, each by those who can hold it: 'submodel compare'")
    if way.afterwards:
        lines.append(f"  then {way.afterwards}")
    lines += [f"  local.lr={rate:g} was the best of its grid in {t}" for t, rate in rates.items()]
    return lines


def sureness(advice: Advice) -> list[str]:
    """How sure the advice is, in words."""
    if advice.is_trivial:
        return ["certain: it is a property of the algorithm, which tests hold for every scheme"]
    lines = [
        f"{advice.way} beats {loser}: {_difference(finding)}"
        for loser, finding in advice.beats.items()
    ]
    lines += [
        f"{loser} loses to {finding.winner}: {_difference(finding)}"
        for loser, finding in advice.losers.items()
        if loser not in advice.beats
    ]
    if advice.rivals:
        words = "not told apart from it" if advice.way else "not told apart"
        lines.append(f"{words}, or never compared near this fleet: {', '.join(advice.rivals)}")
    if any(finding.family.is_best_chosen for finding in advice.beats.values()):
        lines.append("the winner of a comparison was chosen by these same runs, which flatters it")
    lines += [f"the records disagree: {text}" for text in advice.conflicts]
    return lines or ["no record is near enough to say anything"]


def _difference(finding: Finding) -> str:
    """By how much the winner is ahead, with interval and p-value."""
    measure, judgement = finding.contrast.measure, finding.judgement
    is_turned = finding.winner == finding.contrast.worse
    differences = [-d if is_turned else d for d in judgement.differences]
    interval, p = describe_judgement(measure, judgement, flip_sign=is_turned)
    return (
        f"{number(measure, differences, sign=True)}, 95 % interval {interval}, p (Holm) {p}, "
        f"{len(differences)} seeds, {finding.setting.title}, {_rounds(finding)} rounds"
    )


def _rounds(finding: Finding) -> str:
    low, high = finding.setting.rounds
    return f"{low}" if low == high else f"{low} to {high}"


def limits(evidence: Evidence, advice: Advice) -> list[str]:
    """What the records do not say of this case."""
    if advice.is_trivial:
        return ["how well it works: no record was asked"]
    case = advice.case
    lines = []
    if not advice.near and advice.far:
        for finding in _by_setting(advice.far)[:3]:
            obstacles = "; ".join(finding.nearness.obstacles)
            lines.append(f"{finding.setting.title}, {_rounds(finding)} rounds: {obstacles}")
    remarks = dict.fromkeys(r for finding in advice.near for r in finding.nearness.remarks)
    lines += remarks
    if case.model is None:
        models = ", ".join(sorted({f.setting.model for f in [*advice.near, *advice.far]}))
        lines.append(f"the model was not told; records are of {models}: of no transformer")
    if case.data is None:
        lines.append("the data was not told; records are of small images (digits to CIFAR-10)")
    if case.budget is BudgetKind.BYTES and case.rounds is None:
        lines.append("how long the bytes last was not told: give a configuration and --amount")
    if advice.near and not any(finding.setting.is_converged for finding in advice.near):
        lines.append("the runs behind it had not converged; it is an ordering early in training")
    lines += [
        f"{count} of the runs of {f.contrast.better} and {f.contrast.worse} in {f.setting.title} "
        "were not flat when they ended"
        for f in advice.near
        if (count := f.contrast.rising_runs)
    ]
    if advice.way is not None and (command := evidence.ways[advice.way].afterwards):
        lines.append(f"'{command}' takes rounds of its own, which the other ways did not have")
    return lines


def _by_setting(findings: Sequence[Finding]) -> list[Finding]:
    """One finding of each setting."""
    return list({finding.contrast.setting: finding for finding in reversed(findings)}.values())[
        ::-1
    ]


def evidence_table(title: str, findings: Sequence[Finding]) -> Table:
    """ComparisonResult for the terminal."""
    rows = [
        [
            finding.setting.title,
            _rounds(finding),
            f"{finding.contrast.better} - {finding.contrast.worse}",
            number(finding.contrast.measure, finding.judgement.differences, sign=True),
            f"{len(finding.judgement.differences)}",
            *describe_judgement(finding.contrast.measure, finding.judgement),
            finding.judgement.verdict,
        ]
        for finding in findings
    ]
    title = f"{title} ({PLUS_MINUS.rstrip('.')})"
    return text_table(title, _HEADINGS, rows, words=("setting", "ways", "verdict"))


def evidence_tables(advice: Advice) -> list[Table]:
    """The findings that speak for the fleet, or, where none do, the nearest others."""
    if advice.is_trivial:
        return []
    if advice.near:
        return [evidence_table("records near this fleet", advice.near)]
    nearest = sorted(advice.far, key=lambda f: (len(f.nearness.obstacles), *f.order))[:_FAR_SHOWN]
    return [evidence_table("not near this fleet, no ground for advice", nearest)] if nearest else []


def plain_advice(evidence: Evidence, advice: Advice) -> dict[str, Any]:
    """Everything as plain values, for programs."""
    answer = settings_for(evidence, advice)
    way, rates = answer or (None, {})
    case = advice.case
    return {
        "fleet": [{"capacity": c, "share": share} for c, share in case.fleet],
        "goal": case.goal.value,
        "budget": None if case.budget is None else case.budget.value,
        "rounds": case.rounds,
        "measure": advice.measure,
        "any_scheme": advice.is_trivial,
        "recommended": advice.way,
        "settings": [] if way is None else list(way.settings),
        "afterwards": "" if way is None else way.afterwards,
        "learning_rates": rates,
        "beats": sorted(advice.beats),
        "not_told_apart": list(advice.rivals),
        "sureness": sureness(advice),
        "limits": limits(evidence, advice),
        "evidence": [_plain_finding(f) for f in [*advice.near, *advice.far]],
    }


def _plain_finding(finding: Finding) -> dict[str, Any]:
    contrast, judgement = finding.contrast, finding.judgement
    return {
        "setting": finding.setting.title,
        "rounds": list(finding.setting.rounds),
        "records": finding.family.source,
        "better": contrast.better,
        "worse": contrast.worse,
        "difference": spread(judgement.differences)[0] if judgement.differences else None,
        "seeds": len(judgement.differences),
        "interval": judgement.interval,
        "p": judgement.p,
        "verdict": judgement.verdict,
        "is_near": finding.nearness.is_near,
        "obstacles": list(finding.nearness.obstacles),
    }
