"""Coverage read from a run's folder equals the cuts of clients in training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import submodel
from submodel.algorithm import rounds
from submodel.algorithm.types import Update
from submodel.config import parse
from submodel.core.errors import SubmodelError
from submodel.model.axes.declare import pack_units
from submodel.model.cut import UnitCut
from submodel.report.coverage import build_coverage, choose_rounds, coverage_of
from submodel.report.holdings import HoldingsSource, source_of
from submodel.runs.holdings_file import ModelOutline
from tests.support.runs import SMALL, run
from tests.support.schemes import joined, sections_of

Sections = dict[str, Any]
FEW = {"train": {"rounds": 4, "evaluate_every": 4, "checkpoint_every": 2}}
CASES: dict[str, Sections] = {
    **{
        name: sections_of(name, "unit")
        for name in ("rolling", "random", "importance", "partition", "masked-sgd-importance")
    },
    "hierarchical": sections_of("hierarchical", "unit", {"clients": {"count": 8}}),
    "finish": {"train": {"finish": 0.5}},
}


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[Update]:
    """Return all merged updates."""
    merged: list[Update] = []
    add = rounds._add

    def note(setup: Any, cells: Any, update: Update, statistics: Any) -> bool:
        merged.append(update)
        return add(setup, cells, update, statistics)

    monkeypatch.setattr(rounds, "_add", note)
    return merged


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_counts_are_of_the_cuts_that_clients_trained(
    case: str, tmp_path: Path, updates: list[Update]
) -> None:
    run(tmp_path / "run", parse(joined(SMALL, CASES[case], FEW)))
    found = coverage_of(tmp_path / "run")
    assert [shown.number for shown in found.rounds] == [1, 2, 3, 4]
    assert found.notes == ()
    for axis in found.axes:
        expected = np.zeros((len(found.capacities), 4, axis.size))
        for update in updates:
            cut, participant = update.cut, update.assignment
            assert isinstance(cut, UnitCut)
            units = cut.units.get(axis.name, slice(None))
            expected[found.capacities.index(participant.capacity), participant.round, units] += 1
        assert np.array_equal(np.stack([grid.array() for grid in axis.holders]), expected)
        assert np.array_equal(axis.total(), expected.sum(0))
    for shown in found.rounds:
        participants = [u.assignment for u in updates if u.assignment.round + 1 == shown.number]
        assert sorted((t.client, t.capacity) for t in participants) == [
            (client, found.capacities[c])
            for client, c in zip(shown.clients, shown.capacities, strict=True)
        ]
    cuts = {(u.assignment.round + 1, u.assignment.client): u.cut for u in updates}
    for held in found.cuts:
        cut = cuts[held.round, held.client]
        assert isinstance(cut, UnitCut)
        for axis in found.axes:
            units = cut.units.get(axis.name, np.arange(axis.size))
            whole = pack_units(np.arange(axis.size), axis.size)
            assert held.units.get(axis.name, whole) == pack_units(units, axis.size)


def test_an_older_folder_tells_the_same_where_the_seed_does(tmp_path: Path) -> None:
    run(tmp_path / "run", parse(joined(SMALL, FEW)))
    before = coverage_of(tmp_path / "run")
    for name in ("coverage.jsonl", "layers.json"):
        (tmp_path / "run" / name).unlink()
    assert coverage_of(tmp_path / "run") == before


def test_an_older_folder_does_not_tell_what_depends_on_the_model(tmp_path: Path) -> None:
    run(tmp_path / "run", parse(joined(SMALL, FEW, CASES["importance"])))
    (tmp_path / "run" / "coverage.jsonl").unlink()
    found = coverage_of(tmp_path / "run")
    assert found.rounds == ()
    assert found.rounds_done == 4
    assert found.notes[0].startswith("The cuts of 4 of 4 rounds are unknown")


def test_single_weights_are_told_by_tensor(tmp_path: Path, updates: list[Update]) -> None:
    sections = sections_of("random", "coordinate", {"scheme": {"sampling": "bernoulli"}})
    run(tmp_path / "run", parse(joined(SMALL, sections, FEW)))
    found = coverage_of(tmp_path / "run")
    assert found.sources == ("recorded",)
    assert "Single weights are cut" in found.notes[0]
    for axis in found.axes:
        assert axis.cuts == "weights"
        weights = np.zeros(4)
        for update in updates:
            mask = update.cut.mask(axis.name)
            assert mask is not None
            weights[update.assignment.round] += float(mask.float().mean())
        # a byte has a resolution of a 255th of the largest
        assert np.allclose(axis.total()[:, 0], weights, atol=weights.max() / 255)
    assert set(found.cuts[0].shares) == {axis.name for axis in found.axes}


def test_a_module_given_in_python_needs_no_module_to_be_told(tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = torch.nn.Linear(12, 10)  # it is last in the forward
            self.first = torch.nn.Linear(64, 12)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.relu(self.first(x.flatten(1))))  # type: ignore[no-any-return]

    submodel.train(Net(), submodel.digits(), {"train": {"rounds": 2}}, out=tmp_path / "run")
    found = coverage_of(tmp_path / "run")
    assert [(layer.name, layer.kind) for layer in found.layers] == [
        ("first", "Linear"),
        ("last", "Linear"),
    ]
    (axis,) = found.axes
    assert axis.size == 12
    assert axis.layers == ("first", "last")
    assert found.layers[1].tensors[0].dimensions[1].axes == (axis.name,)
    assert json.loads(json.dumps(found.json()))["axes"][0]["size"] == 12
    (tmp_path / "run" / "layers.json").unlink()
    with pytest.raises(SubmodelError, match=r"/run: .*layers\.json.*resume\(\)"):
        coverage_of(tmp_path / "run")


@pytest.mark.slow
def test_a_large_run_is_thinned_and_says_so() -> None:
    config = parse({"clients": {"count": 1000, "per_round": 100}, "train": {"rounds": 1000}})
    outline = ModelOutline({f"axis{k}": 300 for k in range(8)}, _layers(8))
    found = build_coverage(HoldingsSource(config, outline, {}, 1000, {}))
    assert len(found.rounds) == 75  # 60,000 draws of 100 clients on 8 axes
    assert found.axes[0].units_per_column == 5
    assert found.axes[0].holders[0].columns == 60
    assert found.notes == (
        "75 of 1000 rounds are shown: the first, the last, and a random one from each interval "
        "between them.",
        "Units are grouped, with the mean of each group, on "
        + ", ".join(f"axis{k}" for k in range(8))
        + ".",
    )
    assert len(json.dumps(found.json())) < 2**20


@pytest.mark.parametrize("most", [2, 3, 8, 75])
@pytest.mark.parametrize("done", [76, 77, 150, 1000])
def test_however_long_a_run_is_its_first_and_last_rounds_are_shown(most: int, done: int) -> None:
    chosen = choose_rounds(range(1, done + 1), most, seed=0)
    assert (chosen[0], chosen[-1]) == (1, done)
    assert len(set(chosen)) == len(chosen) == most
    assert chosen == sorted(chosen)


def _layers(count: int) -> Any:
    from submodel.model.inspect import LayerTensor, ModelLayer, TensorDimension

    return tuple(
        ModelLayer(
            f"layer{k}",
            "Linear",
            (LayerTensor(f"layer{k}.weight", (TensorDimension(300, (f"axis{k}",)),)),),
        )
        for k in range(count)
    )


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SubmodelError, match=f"^{tmp_path}: "):
        source_of(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "cut", [{"other": "gA=="}, {"1": "?"}, {"1": "gA=="}], ids=["axis", "text", "length"]
)
def test_cuts_of_another_model_are_as_good_as_none(tmp_path: Path, cut: dict[str, str]) -> None:
    run(tmp_path / "run", parse(joined(SMALL, CASES["importance"], {"train": {"rounds": 2}})))
    path = tmp_path / "run" / "coverage.jsonl"
    first, second = map(json.loads, path.read_text().splitlines())
    first["cuts"][0]["units"] = cut
    path.write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    found = coverage_of(tmp_path / "run")
    assert [shown.number for shown in found.rounds] == [2]
    assert "cuts of 1 of 2 rounds are unknown" in found.notes[0]
