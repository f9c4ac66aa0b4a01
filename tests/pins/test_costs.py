"""Reported costs of models, and sizes that fit a budget."""

from __future__ import annotations

import json
from typing import Any

import pytest

from submodel.config import parse, prepare
from submodel.core.errors import ConfigError
from submodel.runs import Training
from submodel.runs.loop import run_rounds
from tests.pins import errors
from tests.pins.store import COSTS
from tests.support.commands import Command
from tests.support.common import tiny_images
from tests.support.schemes import VARIANTS, Sections, joined

pytestmark = pytest.mark.slow

WIDE = "clients.capacities=[1,0.75,0.5,0.3,0.25,0.125,0.0625]"
GPT = (
    "data.name=text:words.txt data.tokens=characters data.length=16 model.name=gpt"
    " model.width=32 model.layers=2 model.heads=2"
)
TINY: Sections = {
    "model": {"name": "mlp", "width": 8},
    "data": {"name": "own", "partition": "iid"},
    "clients": {"count": 4, "per_round": 4, "capacities": [1, 0.5, 0.25]},
    "local": {"absent_labels": "keep", "steps": 1},
    "train": {"rounds": 2, "evaluate_every": 2},
    "engine": {"name": "local", "device": "cpu"},
}
MODELS = {
    "cnn": WIDE,
    "cnn 8": f"model.width=8 {WIDE}",
    "mlp": f"model.name=mlp {WIDE}",
    "mlp 20": f"model.name=mlp model.width=20 {WIDE}",
    "mlp of a share": f"model.name=mlp model.share=0.5 {WIDE}",
    "preresnet18 16": "model.name=preresnet18 model.width=16",
    "scaler": "model.name=preresnet18 model.width=4 model.scaler=true",
    "factorised mlp": "model.name=mlp model.factorised=true",
    "factorised cnn": "model.factorised=true model.rank_share=0.5",
    "adapters of mlp": "model.name=mlp model.adapters=lora",
    "adapters of rank 4": "model.name=mlp model.adapters=lora model.adapter_rank=4",
    "adapters of cnn": "model.name=cnn model.adapters=lora",
    "gpt": GPT,
    "factorised gpt": f"{GPT} model.factorised=true",
    "adapters of gpt": f"{GPT} model.adapters=lora",
    "static, coordinates": "scheme.name=static scheme.granularity=coordinate",
    "mlp, coordinates": "model.name=mlp scheme.granularity=coordinate",
    "gpt, coordinates": f"{GPT} scheme.granularity=coordinate",
    "random": "scheme.name=random scheme.sampling=bernoulli",
    "ordered": "scheme.name=ordered",
    "full": "scheme.name=full clients.capacities=[1]",
    "partition": "scheme.name=partition clients.per_round=2 clients.capacities=[0.5]",
    "hierarchical": "scheme.name=hierarchical scheme.cells=2 clients.capacities=[0.5]",
    "dropout": "scheme.name=dropout",
    "an axis held by half": 'model.name=mlp axes.least={"1"=0.5}',
    "a frozen axis": 'model.name=mlp axes.freeze=["1"]',
    "a whole axis": 'model.name=mlp axes.whole=["3"]',
}
"""Settings of a configuration, separated by spaces."""
BUDGETS = {
    "memory": "--memory 300kB",
    "memory of adam": "--memory 300kB --set local.optimiser=adam",
    "FLOPs": "--flops 1e6",
    "traffic": "--traffic 50kB",
    "all": "--memory 1MB --flops 1e7 --traffic 100kB --set model.name=mlp",
    "more than it is": "--memory 1GB",
    "nothing fits": "--memory 1B",
    "of batches of 32": "--memory 1MB --set local.batch_size=32",
    "preresnet18": "--memory 2MiB --set model.name=preresnet18 --set model.width=16",
    "factorised": "--traffic 20kB --set model.factorised=true",
    "adapters": "--memory 100kB --set model.name=mlp --set model.adapters=lora",
}
INSPECTED = [
    *("cnn --input 1,8,8", "cnn --input 3,32,32", "mlp --input 1,8,8 --rank-share 1/2"),
    *(f"{name} --input 3,32,32 --meta --set width=64" for name in ("preresnet18", "preresnet34")),
]
TRAINED = {
    f"{scheme}, {granularity}": joined(
        TINY, VARIANTS[scheme], {"scheme": {"granularity": granularity}}
    )
    for scheme in VARIANTS
    for granularity in ("unit", "coordinate")
}
"""Traffic and FLOPs of a round, for every scheme."""


@pytest.fixture(autouse=True)
def _here(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "words.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 30)
    monkeypatch.chdir(tmp_path)


def settings(text: str) -> list[str]:
    return [word for setting in text.split() for word in ("--set", setting)]


@pytest.mark.parametrize("case", MODELS)
def test_models_cost_what_they_did(case: str, submodel: Command) -> None:
    ended = submodel("cost", "--json", *settings(MODELS[case]))
    assert ended.returncode == 0, ended.stderr
    keys = ("capacity", "parameters", "bytes", "flops")
    rows = json.loads(ended.stdout)["capacities"]
    COSTS.check(f"cost: {case}", [[row[key] for key in keys] for row in rows])
    whole = rows[0]
    for row in rows:  # the other two follow from these
        assert row["share"] == row["parameters"] / whole["parameters"]
        assert row["flops_share"] == row["flops"] / whole["flops"]


@pytest.mark.parametrize("case", BUDGETS)
def test_budgets_hold_what_they_did(case: str, submodel: Command) -> None:
    ended = submodel("plan", "--json", *BUDGETS[case].split())
    assert ended.stderr == ""
    COSTS.check(f"plan: {case}", [ended.returncode, json.loads(ended.stdout)])


@pytest.mark.parametrize("case", INSPECTED)
def test_inspected_models_have_the_axes_that_they_had(case: str, submodel: Command) -> None:
    ended = submodel("inspect", *case.split(), "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    axes = {a["axis"]: [a["size"], len(a["members"]), a["cut_by_capacity"]] for a in found["axes"]}
    numbers = [[c["parameters"], c["bytes"], c["flops"]] for c in found["capacities"]]
    entry = {"axes": axes, "frozen": sorted(found["frozen"]), "capacities": numbers}
    COSTS.check(f"inspect: {case}", entry)


@pytest.mark.parametrize("case", TRAINED)
def test_rounds_send_and_compute_what_they_did(case: str) -> None:
    try:
        config = parse(TRAINED[case])
        training = Training(config, prepare(config, data=tiny_images()))
    except ConfigError as error:
        COSTS.check(f"rounds: {case}", errors.describe(error))
        return
    _, history = run_rounds(training)
    keys = ("clients", "bytes_down", "bytes_up", "flops")
    COSTS.check(f"rounds: {case}", [[line[key] for key in keys] for line in history])


def test_a_forecast_has_the_quantities_that_it_had(submodel: Command) -> None:
    """Seconds, memory and disk depend on the machine, so only their keys are compared."""
    small = "model.name=mlp model.width=8 train.rounds=2 data.examples=60 data.test_examples=20"
    more = "clients.count=4 clients.per_round=4 clients.capacities=[1,0.5]"
    ended = submodel("train", "--dry-run", "--json", *settings(f"{small} {more}"))
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    quantities = found["quantities"]
    numbers = {key: quantities[key] for key in ("by_capacity", "bytes_down", "bytes_up")}
    entry = {
        "keys": sorted(found),
        "phases": [phase["name"] for phase in found["phases"]],
        "quantities": sorted(quantities),
        "numbers": [numbers, found["rounds"], found["processes"], found["capacities"]],
    }
    COSTS.check("train --dry-run", entry)


def test_nothing_is_pinned_that_is_gone() -> None:
    COSTS.check_names([f"cost: {case}" for case in MODELS], "cost: ")
    COSTS.check_names([f"rounds: {case}" for case in TRAINED], "rounds: ")
    COSTS.check_names([f"inspect: {case}" for case in INSPECTED], "inspect: ")
    COSTS.check_names([f"plan: {case}" for case in BUDGETS], "plan: ")
