"""Merging gives the same bits with waiting updates and with sums in the memory of the old model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from submodel.algorithm.merge import (
    FILL_IN,
    SELECTIVE,
    Accumulator,
    MergeRule,
    accumulator,
    coverage,
    merge_rule,
    waiting,
)
from submodel.algorithm.merge.rules import average
from submodel.algorithm.rounds import OneModel, initial_state
from submodel.config import parse
from submodel.engines.serial import SerialEngine
from submodel.model.axes.layout import Indices
from submodel.model.cut import WHOLE, CoordinateCut, Cut, PlannedCut, flat, gather
from submodel.runs import loop, scoring
from submodel.runs.callbacks import Callback, CallbackGuard, RoundCallback, standard
from submodel.runs.folder import RunFolder
from tests.algorithm.test_merge import Update, random_updates
from tests.support.common import RULES, tiny_setup
from tests.support.exchange import merge_all_updates, merge_in_threads
from tests.support.rounds import step_of
from tests.support.runs import SMALL, run

SHAPES = {"w": (40, 30, 3), "b": (40,), "one": (), "plain": (7, 5)}
Tensors = dict[str, Tensor]
Updates = Sequence[tuple[Cut, Tensors, float]]


def draw(shape: Sequence[int], seed: int) -> Tensor:
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed))


MODEL = {name: draw(shape, number) for number, (name, shape) in enumerate(SHAPES.items())}
ODD = [0.0, -0.0, 1e-38, -1e-12, 3e-8, 1.0, -1000.0]  # near rounding or the loss of a sign
MODEL["w"].view(-1)[: 10 * len(ODD)] = torch.tensor(ODD * 10)


def cut_of(rows: Sequence[int], columns: Sequence[int]) -> PlannedCut:
    kept = np.array(rows), np.array(columns)
    return PlannedCut({"w": ((0, kept[0]), (1, kept[1])), "b": ((0, kept[0]),)})


def update(
    cut: Cut, seed: int, weight: float = 1.0, change: float = 1e-3
) -> tuple[Cut, Tensors, float]:
    parts = gather(cut, MODEL)
    return cut, {n: t + change * draw(t.shape, seed + 7) for n, t in parts.items()}, weight


def odd(values: Tensor, seed: int) -> Tensor:
    """Make updates for two of three clients."""
    which = torch.randint(len(ODD), values.shape, generator=torch.Generator().manual_seed(seed))
    return torch.where(which % 3 == 0, values, torch.tensor(ODD)[which])


SAME = cut_of(range(8, 20), [0, 1, 2, 28, 29])
CASES: dict[str, Updates] = {
    "one cut": [update(SAME, seed) for seed in range(12)],
    "neighbours": [update(cut_of(range(n, n + 9), range(n, n + 5)), n) for n in range(20)],
    "anywhere": [
        update(cut_of([39, 3 + n, 0, 20 - n], [1, 29, 7 + n]), n, 1 + n / 4) for n in range(12)
    ],
    "small and large changes": [
        update(cut_of(range(0, 40, n), range(n)), n, 1.5, 1e-5 if n % 3 else 1.0)
        for n in range(1, 9)
    ],
    "odd values": [
        (cut, {n: odd(t, number) for n, t in tensors.items()}, weight)
        for number, weight in enumerate((1.0, 2.0**-20, 3.0))
        for cut, tensors, _ in [update(cut_of(range(number, 40, 7), range(number, 30, 4)), 0)]
    ],
    "all of it": [update(WHOLE, seed, 0.5) for seed in range(3)],
    "masks": [
        update(CoordinateCut({n: draw(s, 50 + k) > 0 for n, s in SHAPES.items()}), k)
        for k in range(6)
    ],
}
CASES["all kinds"] = [one for updates in CASES.values() for one in updates[:4]]


def reference(updates: Updates) -> Tensors:
    """Sum whole tensors in integers, multiples of 2^-62."""
    result = {}
    for name, whole in MODEL.items():
        total = np.zeros(whole.shape, dtype=object)
        holders = torch.zeros(whole.shape, dtype=torch.float64)
        for cut, tensors, weight in updates:
            change = torch.zeros(whole.shape, dtype=torch.float64)
            cut.add(name, change, (tensors[name].double() - cut.part(name, whole)) * weight)
            cut.add(name, holders, weight)
            total = total + np.vectorize(lambda x: round(x * 2**62), otypes=[object])(change)
        sums = np.vectorize(lambda x: x / 2**62, otypes=[np.float64])(total)
        total_weight = sum(weight for *_, weight in updates)
        result[name] = average(whole, torch.from_numpy(sums), holders, total_weight, SELECTIVE)
    return result


def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat, "_MOST", 0)
    monkeypatch.setattr(waiting, "_BLOCK", 300)


def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)
    monkeypatch.setattr(accumulator, "_LEAST_WAITING", 1)


def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    little_memory(monkeypatch)
    monkeypatch.setattr(waiting, "_MOST_IN_MEMORY", 1)


@pytest.mark.slow
@pytest.mark.parametrize("limits", [None, small_blocks, little_memory, no_memory])
@pytest.mark.parametrize("case", CASES)
def test_the_bits_do_not_depend_on_where_sums_are(
    case: str,
    limits: Callable[[pytest.MonkeyPatch], None] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if limits is not None:
        limits(monkeypatch)
    updates = CASES[case]
    alone = Accumulator(MODEL, SELECTIVE)
    for one in updates:
        alone.add(*one)
    expected = reference(updates)
    for name, tensor in alone.merge().items():
        assert tensor.numpy().tobytes() == expected[name].numpy().tobytes(), name
    copies = {name: tensor.clone() for name, tensor in MODEL.items()}
    over_it = Accumulator(copies, SELECTIVE)
    for one in updates:
        over_it.add(*one)
    over_it.merge(in_place=True)
    assert all(torch.equal(expected[name], copies[name]) for name in MODEL)
    held = {n: torch.zeros(t.shape, dtype=torch.float64) for n, t in MODEL.items()}
    for cut, _, weight in updates:
        for name, tensor in held.items():
            cut.add(name, tensor, weight)
    weights = alone.holder_weights(MODEL)
    assert all(torch.equal(held[name], weights[name]) for name in MODEL)
    masks = alone.coverage_masks()
    assert list(masks) == list(MODEL)
    assert all(torch.equal(held[name] > 0, masks[name]) for name in MODEL)
    count = sum(int((t > 0).sum()) for t in held.values())
    assert coverage([alone]) == count / sum(t.numel() for t in MODEL.values())

    shares = [Accumulator(MODEL, SELECTIVE) for _ in range(3)]
    for number, one in enumerate(updates):
        shares[number % 3].add(*one)
    for tensors in merge_in_threads(shares):
        assert all(torch.equal(expected[name], tensors[name]) for name in MODEL)

    shares = [Accumulator(MODEL, SELECTIVE) for _ in range(3)]
    for number, one in enumerate(updates):
        shares[number % 3].add(*one)
    if case in ("masks", "all kinds") or limits in (little_memory, no_memory):
        return  # only sums are sent
    for tensors in merge_all_updates(shares):
        assert all(torch.equal(expected[name], tensors[name]) for name in MODEL)
    assert all(coverage([share]) == coverage([alone]) for share in shares)


def test_clients_of_one_cut_take_no_more_memory_the_more_they_are() -> None:
    whole = {"w": torch.zeros(4096, 1024)}
    cut = PlannedCut({"w": ((0, np.arange(1024)), (1, np.arange(256)))})
    sums = Accumulator(whole, SELECTIVE)
    sizes = []
    for _ in range(200):
        sums.add(cut, {"w": torch.ones(1024, 256)})
        sizes.append(sums.size)
    assert max(sizes) <= 4 * whole["w"].numel()  # of one model: 200 updates are 12 times as much
    assert sums.merge()["w"].sum() == 1024 * 256


LARGE = {"w": draw((700, 120, 3), 60), "b": draw((700,), 61)}  # more than a single call takes


def some(count: int, of: int, seed: int) -> Indices:
    return np.random.default_rng(seed).choice(of, count, replace=False)


def large_cut(rows: Indices, columns: Indices) -> Cut:
    return PlannedCut({"w": ((0, rows), (1, columns)), "b": ((0, rows),)})


LARGE_CUTS: dict[str, list[Cut]] = {
    "few of them": [large_cut(some(90, 700, n), some(15, 120, n + 9)) for n in range(4)],
    "many of them": [large_cut(some(400, 700, n), some(90, 120, n + 9)) for n in range(9)],
    "each in the next": [large_cut(np.arange(70 * n), np.arange(12 * n)) for n in (1, 2, 4, 10)],
    "one cut": [large_cut(some(300, 700, 1), np.arange(40, 80))] * 5,
    "the same columns": [large_cut(some(300, 700, n), np.arange(40, 80)) for n in range(3)],
    "all of it and less": [WHOLE, large_cut(some(300, 700, 1), np.arange(60))],
    "more than wait": [large_cut(some(600, 700, n), some(110, 120, n)) for n in range(23)] * 4,
}


@pytest.mark.slow
@pytest.mark.parametrize("case", LARGE_CUTS)
@pytest.mark.parametrize("rule", [SELECTIVE, FILL_IN], ids=["selective", "fill_in"])
def test_large_tensors_are_merged_to_the_bits_of_exact_sums(case: str, rule: MergeRule) -> None:
    """Changes are multiples of 2^-20 below 2, so their sums are exact in float64."""
    model = {name: (tensor * 2**20).round() / 2**20 for name, tensor in LARGE.items()}
    updates = []
    for number, cut in enumerate(LARGE_CUTS[case]):
        moved = {
            n: t + (draw(t.shape, number) * 2**17).round().clamp(-(2**21), 2**21) / 2**20
            for n, t in gather(cut, model).items()
        }
        updates.append((cut, moved, 1.0 + number % 3))
    sums, total_weight = Accumulator(model, rule), sum(weight for *_, weight in updates)
    for one in updates:
        sums.add(*one)
    expected, covered = {}, 0
    for name, whole in model.items():
        change, holders = torch.zeros((2, *whole.shape), dtype=torch.float64)
        for cut, tensors, weight in updates:
            cut.add(name, change, (tensors[name].double() - cut.part(name, whole)) * weight)
            cut.add(name, holders, weight)
        expected[name] = average(whole, change, holders, total_weight, rule)
        covered += int(holders.count_nonzero())
    assert all(torch.equal(expected[name], tensor) for name, tensor in sums.merge().items())
    assert coverage([sums]) == covered / sum(t.numel() for t in model.values())

    shares = [Accumulator(model, rule) for _ in range(2)]
    for number, one in enumerate(updates):
        shares[number % 2].add(*one)
    for tensors in merge_in_threads(shares):
        assert all(torch.equal(expected[name], tensors[name]) for name in model)


def masked(whole: dict[str, torch.Tensor]) -> list[Update]:
    masks = {n: torch.rand(t.shape) < 0.5 for n, t in whole.items()}
    values = {n: torch.where(masks[n], t + 1 / 3, t) for n, t in whole.items()}
    return [(CoordinateCut(masks), values, 1.0)] * 2


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("most", [None, 0])  # bytes waiting for summation
@pytest.mark.parametrize("which", ["one cut", "many cuts", "masks"])
def test_merged_in_place_it_has_the_same_bytes(
    rule: str, most: int | None, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if most is not None:
        monkeypatch.setattr(accumulator, "_LEAST_WAITING", most)
    whole, updates = random_updates(3, torch.float32)
    if which == "one cut":
        updates = updates[:1] * 3
    elif which == "masks":
        updates = masked(whole)
    results, addresses = [], [t.data_ptr() for t in whole.values()]
    for in_place in (False, True):
        sums = Accumulator(whole, merge_rule(rule))
        for cut, values, weight in updates:
            sums.add(cut, values, weight)
        merged = sums.merge(in_place=in_place)
        results.append([t.numpy().tobytes() for t in merged.values()])
        assert ([t.data_ptr() for t in merged.values()] == addresses) == in_place
        if in_place:
            assert sums.size == 0  # updates are freed while their tensors are merged
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("sections", "overwrites"),
    [
        ({}, True),
        ({"merge": {"projection": "box", "radius": 0.05}}, True),
        ({"server": {"name": "momentum"}}, False),
        ({"server": {"name": "plain", "lr": 0.5}}, False),
        ({"scheme": {"name": "hierarchical", "cells": 2}, "clients": {"capacities": [0.5]}}, False),
    ],
)
def test_only_where_nothing_looks_back(sections: dict[str, Any], overwrites: bool) -> None:
    setup = tiny_setup("mlp", **sections)
    engine = SerialEngine(setup)
    first, second = initial_state(setup), initial_state(setup)
    expected, _ = step_of(setup, first, engine)
    one_model = OneModel()
    state, _ = step_of(setup, second, engine, one_model=one_model)
    assert one_model.is_torn == overwrites
    assert all(torch.equal(expected.tensors[n], t) for n, t in state.tensors.items())
    assert all(torch.equal(expected.memory[n], t) for n, t in state.memory.items())


def test_callbacks_of_others_keep_the_model_before_a_round() -> None:
    class Own(Callback):
        def after_round(self, before: Any, after: Any, line: Any) -> None:
            pass

    class AtTheEnd(Callback):
        def close(self) -> None:
            pass

    assert CallbackGuard(Own()).looks_back
    assert not AtTheEnd().looks_back
    assert not RoundCallback(print).looks_back


@pytest.mark.slow
def test_stopped_where_the_model_is_written_over_it_goes_on_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse(SMALL)
    expected = run(tmp_path / "whole", config)["model_sha256"]
    monkeypatch.setattr(loop, "_LARGE", 0)
    scores = scoring.scores

    def interrupted(training: Any, state: Any, *others: Any) -> Any:
        if state.round == 4:
            raise KeyboardInterrupt
        return scores(training, state, *others)

    monkeypatch.setattr(standard, "scores", interrupted)
    with pytest.raises(loop.Interruption, match=r"round 4 of 6 .*round 2 "):
        run(tmp_path / "run", config)
    monkeypatch.setattr(standard, "scores", scores)
    assert run(tmp_path / "run", config, resume=True)["model_sha256"] == expected
    assert [line["round"] for line in RunFolder(tmp_path / "run").metrics()] == [1, 2, 3, 4, 5, 6]
