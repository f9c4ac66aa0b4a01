"""Text, tables and plain values of an advice."""

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
from submodel_lab.advice.recommend import Advice, JudgedContrast, settings_for

_TRIVIAL = "all devices hold the whole model, so every scheme is FedAvg, bit for bit."
_FAR_SHOWN = 8  # contrasts that do not apply to the fleet, in the terminal

_GOALS = {
    Goal.FULL_MODEL: "the best full model (test accuracy)",
    Goal.DEVICES: "the best models on the devices (test accuracy, the mean over their sizes)",
}
_HEADINGS = ("setting", "rounds", "arms", "difference", "seeds", *JUDGEMENT_HEADINGS, "verdict")


def question_words(case: Case) -> str:
    """Describe the question in a line."""
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
    """Describe the recommendation, its uncertainty and the limits of the records."""
    return [
        *_recommendation(evidence, advice),
        "",
        "Uncertainty:",
        *(f"- {text}" for text in sureness(advice)),
        "",
        "Limits of the records:",
        *(f"- {text}" for text in limits(evidence, advice)),
    ]


def _recommendation(evidence: Evidence, advice: Advice) -> list[str]:
    if advice.is_trivial:
        return [f"Any scheme: {_TRIVIAL}"]
    answer = settings_for(evidence, advice)
    if answer is None:
        return [
            "Nothing is recommended: no record near this fleet shows that one method is better."
        ]
    method, rates = answer
    lines = [f"Recommended: {method.title}"]
    if method.settings:
        lines.append("  " + " ".join(f"--set {text}" for text in method.settings))
    else:
        lines.append(
            "  one model of each width, trained by the devices that can hold it: 'submodel compare'"
        )
    if method.afterwards:
        lines.append(f"  then {method.afterwards}")
    lines += [f"  local.lr={rate:g} was the best of its grid in {t}" for t, rate in rates.items()]
    return lines


def sureness(advice: Advice) -> list[str]:
    """Describe the uncertainty of the advice."""
    if advice.is_trivial:
        return ["certain: it is a property of the algorithm, tested for every scheme"]
    lines = [
        f"{advice.method} beats {loser}: {_difference(judged)}"
        for loser, judged in advice.beats.items()
    ]
    lines += [
        f"{loser} loses to {judged.winner}: {_difference(judged)}"
        for loser, judged in advice.losers.items()
        if loser not in advice.beats
    ]
    if advice.rivals:
        words = "no difference from it shown" if advice.method else "no difference shown"
        lines.append(f"{words}, or never compared near this fleet: {', '.join(advice.rivals)}")
    if any(judged.family.is_best_chosen for judged in advice.beats.values()):
        lines.append("the winner was chosen by these same runs, which biases its advantage upwards")
    lines += [f"the records disagree: {text}" for text in advice.conflicts]
    return lines or ["no record is near enough for any statement"]


def _difference(judged: JudgedContrast) -> str:
    """Describe the advantage of the winner with interval and p-value."""
    measure, judgement = judged.tried.measure, judged.judgement
    is_turned = judged.winner == judged.tried.worse
    differences = [-d if is_turned else d for d in judgement.differences]
    interval, p = describe_judgement(measure, judgement, flip_sign=is_turned)
    return (
        f"{number(measure, differences, sign=True)}, 95 % interval {interval}, p (Holm) {p}, "
        f"{len(differences)} seeds, {judged.setting.title}, {_rounds(judged)} rounds"
    )


def _rounds(judged: JudgedContrast) -> str:
    low, high = judged.setting.rounds
    return f"{low}" if low == high else f"{low} to {high}"


def limits(evidence: Evidence, advice: Advice) -> list[str]:
    """Describe the limits of the records for this case."""
    if advice.is_trivial:
        return ["how well it works: no record was consulted"]
    case = advice.case
    lines = []
    if not advice.near and advice.far:
        for judged in _by_setting(advice.far)[:3]:
            obstacles = "; ".join(judged.nearness.obstacles)
            lines.append(f"{judged.setting.title}, {_rounds(judged)} rounds: {obstacles}")
    remarks = dict.fromkeys(r for judged in advice.near for r in judged.nearness.remarks)
    lines += remarks
    if case.model is None:
        models = ", ".join(sorted({f.setting.model for f in [*advice.near, *advice.far]}))
        lines.append(f"the model is not given; records are of {models}, and of no transformer")
    if case.data is None:
        lines.append("the data is not given; records are of small images (digits to CIFAR-10)")
    if case.budget is BudgetKind.BYTES and case.rounds is None:
        lines.append(
            "the rounds that the bytes allow are unknown: give a configuration and --amount"
        )
    if advice.near and not any(judged.setting.is_converged for judged in advice.near):
        lines.append("the runs behind it had not converged; this is an ordering early in training")
    lines += [
        f"{count} of the runs of {f.tried.better} and {f.tried.worse} in {f.setting.title} "
        "were not flat when they ended"
        for f in advice.near
        if (count := f.tried.rising_runs)
    ]
    if advice.method is not None and (command := evidence.ways[advice.method].afterwards):
        lines.append(f"'{command}' takes additional rounds, which the other methods did not have")
    return lines


def _by_setting(judged_contrasts: Sequence[JudgedContrast]) -> list[JudgedContrast]:
    return list({judged.tried.setting: judged for judged in reversed(judged_contrasts)}.values())[
        ::-1
    ]


def evidence_table(title: str, judged_contrasts: Sequence[JudgedContrast]) -> Table:
    """Build a table of contrasts for the terminal."""
    rows = [
        [
            judged.setting.title,
            _rounds(judged),
            f"{judged.tried.better} - {judged.tried.worse}",
            number(judged.tried.measure, judged.judgement.differences, sign=True),
            f"{len(judged.judgement.differences)}",
            *describe_judgement(judged.tried.measure, judged.judgement),
            judged.judgement.verdict,
        ]
        for judged in judged_contrasts
    ]
    title = f"{title} ({PLUS_MINUS.rstrip('.')})"
    return text_table(title, _HEADINGS, rows, words=("setting", "arms", "verdict"))


def evidence_tables(advice: Advice) -> list[Table]:
    """Build tables of the contrasts that apply to the fleet, or else of the nearest others."""
    if advice.is_trivial:
        return []
    if advice.near:
        return [evidence_table("records near this fleet", advice.near)]
    nearest = sorted(advice.far, key=lambda f: (len(f.nearness.obstacles), *f.order))[:_FAR_SHOWN]
    return (
        [evidence_table("not near this fleet, so no basis for advice", nearest)] if nearest else []
    )


def plain_advice(evidence: Evidence, advice: Advice) -> dict[str, Any]:
    """Return the advice as plain values for JSON."""
    answer = settings_for(evidence, advice)
    method, rates = answer or (None, {})
    case = advice.case
    return {
        "fleet": [{"capacity": c, "share": share} for c, share in case.fleet],
        "goal": case.goal.value,
        "budget": None if case.budget is None else case.budget.value,
        "rounds": case.rounds,
        "measure": advice.measure,
        "any_scheme": advice.is_trivial,
        "recommended": advice.method,
        "settings": [] if method is None else list(method.settings),
        "afterwards": "" if method is None else method.afterwards,
        "learning_rates": rates,
        "beats": sorted(advice.beats),
        "not_told_apart": list(advice.rivals),
        "sureness": sureness(advice),
        "limits": limits(evidence, advice),
        "evidence": [_plain_contrast(f) for f in [*advice.near, *advice.far]],
    }


def _plain_contrast(judged: JudgedContrast) -> dict[str, Any]:
    contrast, judgement = judged.tried, judged.judgement
    return {
        "setting": judged.setting.title,
        "rounds": list(judged.setting.rounds),
        "records": judged.family.source,
        "better": contrast.better,
        "worse": contrast.worse,
        "difference": spread(judgement.differences)[0] if judgement.differences else None,
        "seeds": len(judgement.differences),
        "interval": judgement.interval,
        "p": judgement.p,
        "verdict": judgement.verdict,
        "is_near": judged.nearness.is_near,
        "obstacles": list(judged.nearness.obstacles),
    }
