"""Packed messages: exact in both directions, as small as reported, without pickle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

from submodel.algorithm.dispatch import cut_of
from submodel.algorithm.packing import PackedTensors, mask_bytes, pack_cut, unpack_cut
from submodel.algorithm.round_statistics import RoundStatistics
from submodel.algorithm.rounds import initial_state
from submodel.algorithm.types import Assignment
from submodel.engines.serial import SerialEngine
from submodel.model.cost import CostModel
from submodel.model.cut import WHOLE, CoordinateCut, Cut, gather
from tests.support.common import SCHEMES, tiny_setup
from tests.support.rounds import step_of


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()


def assert_round_trip(cut: Cut, whole: dict[str, Tensor], masks: bool) -> PackedTensors:
    tensors, shapes = gather(cut, whole), {n: t.shape for n, t in whole.items()}
    packed = pack_cut(cut, tensors, masks)
    arrived = PackedTensors.from_tensors(load(save(packed.to_tensors())))
    assert arrived.size == packed.size
    sent, found = unpack_cut(arrived, shapes, None if masks else cut)
    assert found.keys() == tensors.keys()
    assert all(same_bits(found[n], t) for n, t in tensors.items())
    if masks:
        for name, shape in shapes.items():
            mask, held = cut.mask(name), sent.mask(name)
            if mask is None or mask.all():
                assert held is None
            else:
                assert held is not None
                assert torch.equal(held, mask)
            assert sent.value_count(name, shape) == cut.value_count(name, shape)
    return packed


@pytest.mark.every(2)
@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "cnn", "preresnet18"])
@pytest.mark.parametrize("granularity", ["unit", "coordinate"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_packed_cuts_come_back_bit_for_bit_and_are_as_large_as_the_books_say(
    scheme: str, granularity: str, model: str
) -> None:
    setup = tiny_setup(model, scheme={**SCHEMES[scheme], "granularity": granularity})
    whole = {n: t - 0.01 for n, t in initial_state(setup).tensors.items()}
    shapes = {n: t.shape for n, t in whole.items()}
    costs = CostModel(setup.module, setup.clients.dataset.example)
    for capacity in (1.0, 0.5, 0.25):
        cut = cut_of(setup, Assignment(3, 1, capacity))
        for masks in (False, True) if granularity == "coordinate" else (False,):
            packed = assert_round_trip(cut, whole, masks)
            statistics = RoundStatistics(setup.axes, whole, costs, sends_masks=masks)
            statistics.record_task(cut)
            counts: list[Any] = statistics.as_dict()["counts"]
            assert packed.size == counts[0]
            assert packed.size - pack_cut(cut, gather(cut, whole)).size == masks * mask_bytes(
                cut, shapes
            )
        assert packed.size <= sum(t.nbytes for t in whole.values()) * (1 + masks / 32) + len(whole)


def test_a_trained_update_comes_back_bit_for_bit() -> None:
    """Weights outside the cut are +0 before and after training, with momentum and decay."""
    setup = tiny_setup(
        "cnn",
        scheme={"name": "random", "granularity": "coordinate"},
        local={"momentum": 0.9, "weight_decay": 0.01, "clip": 1.0},
    )
    shapes = {n: t.shape for n, t in initial_state(setup).tensors.items()}
    engine = SerialEngine(setup)
    seen = []

    class Watching:
        bundles = engine.bundles

        def run(self, tasks: Any) -> Any:
            for update in engine.run(tasks):
                _, found = unpack_cut(pack_cut(update.cut, update.tensors), shapes, update.cut)
                seen.append(all(same_bits(found[n], t) for n, t in update.tensors.items()))
                yield update

    step_of(setup, engine=Watching())
    assert seen == [True] * 4


@pytest.mark.slow
@given(
    shape=st.lists(st.integers(0, 5), max_size=3),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    share=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_any_shape_dtype_and_mask(
    shape: list[int], dtype: torch.dtype, share: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    mask = torch.from_numpy(np.asarray(rng.random(shape) < share))
    tensor = torch.from_numpy(np.asarray(rng.normal(size=shape))).to(dtype)
    cut = CoordinateCut({"a.weight": mask})
    tensors = gather(cut, {"a.weight": tensor, "b": torch.ones(2)})
    shapes = {"a.weight": shape, "b": [2]}
    packed = PackedTensors.from_tensors(pack_cut(cut, tensors, masks=True).to_tensors())
    _, found = unpack_cut(packed, shapes)
    for name, expected in tensors.items():
        assert found[name].dtype == expected.dtype
        assert torch.equal(found[name].view(expected.shape), expected)
    bits = 0 if mask.all() else -(-mask.numel() // 8)
    assert packed.size == int(mask.sum()) * tensor.element_size() + 8 + bits


def test_the_whole_needs_no_mask_and_stays_as_it_is() -> None:
    tensors = {"w": torch.randn(2, 3)}
    packed = pack_cut(WHOLE, tensors, masks=True)
    assert not packed.masks
    assert packed.size == 24
    assert packed.values["w"] is tensors["w"]
