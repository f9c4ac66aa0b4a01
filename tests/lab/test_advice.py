"""Advice follows the records and recommends only what they show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from submodel.cli.application import command_line
from submodel.comparison.budgets import BudgetKind
from submodel.comparison.records import ArmRecord
from submodel.config import parse
from submodel.core import ConfigError
from submodel_lab.advice.evidence import (
    EVIDENCE_FILE,
    Circumstances,
    Evidence,
    Family,
    Method,
    TriedContrast,
    read_evidence,
)
from submodel_lab.advice.fleet import Case, Goal, case_of, parse_fleet
from submodel_lab.advice.gather import gather_evidence
from submodel_lab.advice.recommend import advise
from submodel_lab.advice.wording import answer_lines, limits, plain_advice, sureness
from submodel_lab.converged.converge import RateTable
from submodel_lab.converged.questions import QUESTIONS
from tests.support.records import record, score_line

ROOT = Path(__file__).parent.parent.parent
MIXTURE = [(1.0, 0.4), (0.25, 0.6)]
CLEAR, NOISE = [0.10, 0.11, 0.12, 0.11], [0.1, -0.1, 0.05, -0.06]


def contrast(better: str, worse: str, differences: Sequence[float], **values: Any) -> TriedContrast:
    fields = {"setting": "here", "measure": "accuracy", **values}
    return TriedContrast(better=better, worse=worse, differences=differences, **fields)


def evidence_of(*contrasts: TriedContrast, **settings: Circumstances) -> Evidence:
    methods = {w: Method(w, [f"scheme.name={w}"]) for c in contrasts for w in (c.better, c.worse)}
    here = Circumstances(
        "CIFAR-10", "cifar10", "preresnet18", 5, MIXTURE, (1100, 1600), True, "rounds"
    )
    families = [Family("a question", "results/x", contrasts)]
    return Evidence(methods, {"here": here, **settings}, families, {"here": {"static": 0.05}})


CASE = Case(MIXTURE, Goal.FULL_MODEL)


def test_the_evidence_of_the_package_is_that_of_the_records(tmp_path: Path) -> None:
    gather_evidence(ROOT / "results").write(tmp_path / "evidence.json")
    assert (tmp_path / "evidence.json").read_text() == EVIDENCE_FILE.read_text(), "make results"
    assert EVIDENCE_FILE.stat().st_size < 200_000


def test_what_is_shown_is_recommended_and_the_opposite_where_the_evidence_turns() -> None:
    order = contrast("rolling", "static", CLEAR), contrast("rolling", "random", CLEAR)
    advice = advise(evidence_of(*order), CASE)
    assert (advice.method, sorted(advice.beats), advice.rivals) == (
        "rolling",
        ["random", "static"],
        [],
    )
    turned = [replace(c, differences=[-d for d in c.differences]) for c in order]
    other = evidence_of(*turned)
    advice = advise(other, CASE)
    assert advice.method in ("static", "random")
    assert "rolling" in advice.beats
    text = "\n".join(answer_lines(other, replace(advice, method="static")))
    assert "--set scheme.name=static" in text
    assert "local.lr=0.05 was the best of its grid in CIFAR-10" in text
    assert "rolling: +11.0 points ± 0.8, 95 % interval [+9.7, +12.3], p (Holm) < 0.001" in text


def test_nothing_is_recommended_that_is_not_shown() -> None:
    unsure = evidence_of(contrast("rolling", "static", NOISE))
    advice = advise(unsure, CASE)
    assert advice.method is None
    assert set(advice.rivals) == {"rolling", "static"}
    assert "Nothing is recommended" in answer_lines(unsure, advice)[0]
    two_seeds = evidence_of(contrast("rolling", "static", CLEAR[:2]))
    assert advise(two_seeds, CASE).method is None
    # corrected for the family: one clear difference of three seeds among many decides nothing
    many = [contrast(f"a{n}", f"b{n}", [0.1, -0.1, 0.05]) for n in range(20)]
    alone = contrast("rolling", "static", [0.10, 0.11, 0.13])
    assert advise(evidence_of(alone), CASE).method == "rolling"
    assert advise(evidence_of(alone, *many), CASE).method is None
    reference = contrast("full", "static", CLEAR, is_choice=False)
    assert advise(evidence_of(reference), CASE).method is None
    other_measure = contrast("rolling", "static", CLEAR, measure="mean over sizes")
    assert advise(evidence_of(other_measure), CASE).method is None
    assert advise(evidence_of(other_measure), replace(CASE, goal=Goal.DEVICES)).method == "rolling"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"fleet": parse_fleet("1:0.4,1/32:0.6")}, "smallest capacity 1/4 there, 1/32 here"),
        ({"fleet": parse_fleet("1:0.4,1/5:0.6")}, "smallest capacity 1/4 there, 1/5 here"),
        ({"fleet": parse_fleet("1/4,1/8")}, "largest capacity 1 there, 1/4 here"),
        ({"fleet": parse_fleet("1:0.95,1/4:0.05")}, "mean capacity 0.55 there, 0.96 here"),
        ({"model": "gpt"}, "model preresnet18 there, gpt here"),
        ({"labels": 50}, "5 labels a client there, 50 here"),
        ({"budget": BudgetKind.BYTES}, "equal rounds there, a budget of bytes here"),
        ({"budget": BudgetKind.ROUNDS, "rounds": 30}, "1100 to 1600 rounds there, 30 here"),
    ],
)
def test_where_records_do_not_reach_nothing_is_recommended_and_it_is_said(
    change: dict[str, Any], reason: str
) -> None:
    evidence = evidence_of(contrast("rolling", "static", CLEAR))
    near = replace(CASE, model="cnn", labels=4, budget=BudgetKind.ROUNDS, rounds=9000)
    assert advise(evidence, near).method == "rolling"
    assert "model preresnet18 there, cnn here" in limits(evidence, advise(evidence, near))
    advice = advise(evidence, replace(CASE, **change))
    assert advice.method is None
    assert reason in "\n".join(limits(evidence, advice))


def test_rounded_shares_do_not_put_a_fleet_beyond_the_limit() -> None:
    evidence = evidence_of(contrast("rolling", "static", CLEAR))  # mean capacity 0.55
    fleet = parse_fleet("1:0.666667,1/4:0.333333")  # 0.75000025
    assert advise(evidence, replace(CASE, fleet=fleet)).method == "rolling"


def test_converged_and_nearer_records_speak_first_and_disagreement_is_told() -> None:
    early = Circumstances("early", "cifar10", "cnn", 5, MIXTURE, (500, 500), False, "rounds")
    contrasts = [
        contrast("static", "rolling", CLEAR, setting="early"),
        contrast("rolling", "static", CLEAR),
    ]
    case = replace(CASE, budget=BudgetKind.ROUNDS, rounds=1100)
    advice = advise(evidence_of(*contrasts, early=early), case)
    assert advice.method == "rolling"
    assert advice.conflicts == ["rolling beats static in CIFAR-10, and loses to it in early"]
    assert any("disagree" in text for text in sureness(advice))


def test_all_of_capacity_one_leaves_nothing_to_choose() -> None:
    evidence = evidence_of(contrast("rolling", "static", CLEAR))
    advice = advise(evidence, replace(CASE, fleet=[(1.0, 1.0)]))
    assert advice.is_trivial
    assert advice.method is None
    assert "bit for bit" in answer_lines(evidence, advice)[0]


def test_new_converged_records_change_the_advice_without_a_change_of_code(tmp_path: Path) -> None:
    def write(method: str, accuracies: Sequence[float], is_flat: bool = True) -> None:
        lines = [[score_line(accuracy, 440)] for accuracy in accuracies]
        kept = record(f"fashion-1-4-{method}", lines, is_flat=is_flat)
        kept.write(tmp_path / f"converged/{kept.slug}.json")
        RateTable(kept.slug, 150, [(0.02, 0.7), (0.05, 0.8)]).write(tmp_path / "converged")

    case = Case(parse_fleet("1:0.5,1/4:0.5"), Goal.FULL_MODEL)
    write("rolling", [0.80, 0.81, 0.82])
    write("static", [0.70, 0.72, 0.71])
    evidence = gather_evidence(tmp_path)
    assert advise(evidence, case).method == "rolling"
    assert not any("not flat" in text for text in limits(evidence, advise(evidence, case)))
    write("static", [0.90, 0.92, 0.91], is_flat=False)
    evidence = gather_evidence(tmp_path)
    advice = advise(evidence, case)
    assert advice.method == "static"
    assert any("3 of the runs of rolling and static" in text for text in limits(evidence, advice))
    assert plain_advice(evidence, advice)["learning_rates"] == {
        "Fashion-MNIST, L = 5, capacities 1 and 1/4, mean 0.6, dynamic capacities": 0.05
    }
    assert {c.setting for f in evidence.families for c in f.contrasts} == {
        "converged/fashion-1-4/rounds/dynamic"
    }
    # one family per measure
    assert [len(family.contrasts) for family in evidence.families] == [1, 1]
    assert [len(family) for family in QUESTIONS["smallest"].families] == [4, 4]


def test_a_fleet_is_read_as_people_write_it() -> None:
    assert parse_fleet("1:1,1/2:3") == [(1.0, 0.25), (0.5, 0.75)]
    for text, reason in (
        ("2:1", "capacity: 2 "),
        ("1:0", "'1:0'"),
        ("1:x", "'1:x'"),
        ("1,1/2:0.5", "share"),
        ("", "capacity: '' "),
    ):
        with pytest.raises(ConfigError, match=f"^--fleet: .*{reason}"):
            parse_fleet(text)
    config = parse(
        {
            "clients": {"capacities": [1, 0.5], "proportions": [1, 3]},
            "data": {"partition": "labels", "labels_per_client": 3},
        }
    )
    case = case_of(config, Goal.DEVICES, None, None)
    assert case.fleet == [(1.0, 0.25), (0.5, 0.75)]
    assert (case.model, case.data, case.labels) == ("cnn", "digits", 3)


def run(*words: str) -> Any:
    return CliRunner().invoke(command_line, ["advise", *words])


def test_the_command_answers_from_the_evidence_of_the_package() -> None:
    words = ("--fleet", "1/4,1/8", "--budget", "rounds", "--amount", "30")
    plain = json.loads(run(*words, "--json").stdout)
    case = Case(parse_fleet("1/4,1/8"), Goal.FULL_MODEL, BudgetKind.ROUNDS, 30)
    evidence = read_evidence()
    assert plain == json.loads(json.dumps(plain_advice(evidence, advise(evidence, case))))
    record = {w: ArmRecord.read(ROOT / f"results/small/cifar10-high-{w}-small.json")
              for w in ("static", "rolling")}  # fmt: skip
    ahead = record["static"].ahead_of(record["rolling"], "accuracy")
    assert min(ahead) > 0
    assert (plain["recommended"], plain["settings"]) == ("static", ["scheme.name=static"])
    assert plain["evidence"][0]["difference"] == pytest.approx(-sum(ahead) / 3)
    text = run(*words).stdout
    assert "Recommended: static" in text
    assert "had not converged" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--fleet"),
        (["--fleet", "1,1/2", "--set", "seed=1"], "--fleet"),
        (["--fleet", "1,1/2", "--amount", "3"], "--amount: "),
        (["--fleet", "1,1/2", "--budget", "rounds"], "--amount"),
        (["--fleet", "1,1/2", "--budget", "bytes", "--amount", "2GB"], "CONFIG.toml"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_the_reason(words: list[str], message: str) -> None:
    result = run(*words)
    assert message in str(result.exception)


def test_bytes_are_rounds_of_a_configuration() -> None:
    words = ("--set", "train.rounds=50", "--budget", "bytes", "--amount", "2MB", "--json")
    plain = json.loads(run(*words).stdout)
    assert plain["budget"] == "bytes"
    assert 0 < plain["rounds"] < 50
    rounds = json.loads(run("--set", "train.rounds=50", "--budget", "rounds", "--json").stdout)
    assert rounds["rounds"] == 50


def test_evidence_is_written_and_read_without_loss(tmp_path: Path) -> None:
    evidence = evidence_of(contrast("rolling", "static", CLEAR))
    evidence.write(tmp_path / "e.json")
    again = read_evidence(tmp_path / "e.json")
    assert json.dumps(asdict(again)) == json.dumps(asdict(evidence))
