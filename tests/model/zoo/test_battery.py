"""Every model of the zoo: traced, cut at random units, built, run, trained and merged."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from submodel.algorithm.merge import FILL_IN, Accumulator, merge_rule
from submodel.model.axes import Axes, trace
from submodel.model.axes.declare import from_json, to_json
from submodel.model.build import build_module, tensors_of
from submodel.model.build.checks import OutputCheck
from submodel.model.cut import UnitCut, count_values, gather
from tests.model.nets import cut_by
from tests.model.zoo import MORE, ZOO, Entry
from tests.model.zoo.battery import battery
from tests.model.zoo.hugging_face import LEVIT
from tests.pins import nets
from tests.pins.store import NETS
from tests.support.reference import RestrictedStatistics, kept_mask, masked, plain_attention

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Case:
    """A model with its axes and half of each."""

    module: nn.Module
    inputs: tuple[Any, ...]
    axes: Axes
    cut: UnitCut
    check: OutputCheck

    def build(self, cut: UnitCut) -> nn.Module:
        """Build the sub-model and check it on the inputs."""
        sub_model = build_module(self.module, cut)
        self.check.check(sub_model, cut)
        return sub_model


@cache
def case(entry: Entry) -> Case:
    module, inputs = entry.make()
    axes = trace(module, inputs, outputs=entry.outputs, verify=True)
    half = cut_by(axes)
    return Case(module, inputs, axes, half, OutputCheck(module, inputs, entry.outputs))


def small(entry: Entry) -> nn.Module:
    given = case(entry)
    return given.build(given.cut)


each = pytest.mark.parametrize("entry", ZOO, ids=str)


@each
def test_every_net_goes_through_the_battery(entry: Entry) -> None:
    measured = battery(entry)
    assert measured.claimed == (not entry.mixes)
    check_pins(entry, measured.axes)


def check_pins(entry: Entry, axes: Axes) -> None:
    """Check the units of a net and their costs against the recorded ones."""
    module, inputs = entry.make()
    found = nets.units(module, axes)
    if entry.name in COUNTED:
        found["needs"] = nets.needs(module, axes, inputs)
    NETS.check(entry.name, found)


COUNTED = {
    *("vgg", "channels-last", "resnet-bn", "resnet-gn4", "resnext", "mobilenet", "densenet"),
    *("shufflenet-v2", "squeeze-excite", "unet", "lstm", "lstm-bidirectional", "gru", "lstm-cell"),
    *("glu", "vit", "mixer", "multihead-attention", "encoder-decoder", "gpt2", "bert", "llama"),
    *("t5", "gan", "super-resolution", "capsules", "selective-scan", "tagger", "experts"),
    *("mixtral", "mamba", "convnext"),
}
"""Nets of all kinds whose memory, FLOPs and traffic are recorded as well."""


def test_no_net_is_pinned_that_is_gone() -> None:
    NETS.check_names([entry.name for entry in (*ZOO, *MORE)])


@pytest.mark.parametrize("entry", MORE, ids=str)
def test_every_further_net_is_traced_as_before(entry: Entry) -> None:
    module, inputs = entry.make()
    axes = trace(module, inputs, outputs=entry.outputs)
    check_pins(entry, axes)
    half = cut_by(axes)
    parameters = {name: p.detach() for name, p in module.named_parameters()}
    assert count_values(half, parameters) <= 0.6 * sum(p.numel() for p in parameters.values())


@pytest.mark.every(3)
@pytest.mark.parametrize("entry", MORE, ids=str)
def test_every_further_net_goes_through_the_battery(entry: Entry) -> None:
    """Its sub-models are similar nets: they have the same permutations."""
    measured = battery(entry)
    assert measured.claimed == (not entry.mixes)
    some = cut_by(measured.axes, 0.5, 1, "bernoulli")
    trace(build_module(entry.make()[0], some), entry.make()[1], outputs=entry.outputs)


@pytest.mark.every(3)
@each
def test_axes_survive_being_kept(entry: Entry) -> None:
    axes = case(entry).axes
    assert from_json(to_json(axes)) == axes


@each
def test_half_of_every_axis_is_at_most_half_of_the_weights(entry: Entry) -> None:
    """This detects dimensions that the trace freezes needlessly."""
    given = case(entry)
    parameters = {name: p.detach() for name, p in given.module.named_parameters()}
    assert count_values(given.cut, parameters) <= 0.5 * sum(p.numel() for p in parameters.values())


def test_values_as_a_multiple_of_keys_are_cut_with_them() -> None:
    """LeViT: full models are made anew, as each caches computed weights."""
    module, inputs = LEVIT.make()
    axes = trace(module, inputs, outputs=LEVIT.outputs)
    for draw in range(2):
        cut = cut_by(axes, 0.5, draw, "bernoulli")
        sub_model = build_module(module, cut, example_inputs=inputs, outputs=LEVIT.outputs)
        with torch.no_grad():
            wanted = LEVIT.result(masked(LEVIT.make()[0], cut), inputs)
            same(LEVIT.result(sub_model, inputs), wanted)


def expected(entry: Entry, cut: UnitCut, *, mixes: bool) -> torch.Tensor:
    """Return the full model's output without the dropped units, with statistics of kept ones."""
    given = case(entry)
    zeroed = masked(given.module, cut)
    with torch.no_grad(), plain_attention():
        if not mixes:
            return torch.as_tensor(entry.result(zeroed, given.inputs))
        with RestrictedStatistics():
            return torch.as_tensor(entry.result(zeroed, given.inputs))


def same(got: torch.Tensor, reference: torch.Tensor) -> None:
    # float32 sums in another order; outputs are of order one
    torch.testing.assert_close(got, reference, rtol=1e-5, atol=1e-5)


@each
def test_the_sub_model_is_the_full_model_without_the_dropped_units(entry: Entry) -> None:
    given = case(entry)
    with torch.no_grad():
        same(
            entry.result(small(entry), given.inputs), expected(entry, given.cut, mixes=entry.mixes)
        )


@pytest.mark.every(3)
@each
@pytest.mark.parametrize("capacity", [0.25, 1 / 3, 0.75])
def test_any_number_of_units_can_be_drawn(entry: Entry, capacity: float) -> None:
    """Bernoulli: no two axes keep the same share, so shapes fit only if they are coupled."""
    given = case(entry)
    cut = cut_by(given.axes, capacity, 1, "bernoulli")
    module = given.build(cut)
    with torch.no_grad():
        same(entry.result(module, given.inputs), expected(entry, cut, mixes=entry.mixes))


WITH_PRODUCTS = {
    *("resnet-gn4", "resnext", "shufflenet", "vit", "multihead-attention", "encoder-layer"),
    *("encoder-decoder", "gpt2", "bert", "distilbert", "llama", "t5", "builtin-gpt"),
}


def test_heads_and_groups_are_the_products_of_the_zoo() -> None:
    assert {entry.name for entry in ZOO if case(entry).axes.kept_whole} == WITH_PRODUCTS


@pytest.mark.parametrize("entry", [e for e in ZOO if e.name in WITH_PRODUCTS], ids=str)
def test_the_other_factor_of_each_product_can_be_cut_instead(entry: Entry) -> None:
    """Whole heads instead of the head size, whole groups of a grouped convolution."""
    given = case(entry)
    others = tuple(given.axes.kept_whole)
    axes = trace(given.module, given.inputs, outputs=entry.outputs, cut=others, verify=False)
    cut = cut_by(axes)
    module = given.build(cut)
    mixes = any(axis in axes.inexact for axis in cut.units)
    with torch.no_grad():
        same(entry.result(module, given.inputs), expected(entry, cut, mixes=mixes))


@each
@pytest.mark.parametrize("rule", ["fill_in", "selective"])
def test_untouched_values_merge_to_the_same_bits(entry: Entry, rule: str) -> None:
    given = case(entry)
    whole = tensors_of(given.module)
    accumulator = Accumulator(whole, merge_rule(rule))
    accumulator.add(given.cut, gather(given.cut, whole))
    for name, merged in accumulator.merge().items():
        assert torch.equal(merged, whole[name]), name


@each
def test_training_changes_nothing_outside_the_cut(entry: Entry) -> None:
    given = case(entry)
    module = small(entry)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        torch.autograd.backward(entry.result(module, given.inputs).square().mean())
        optimizer.step()
    whole, trained = tensors_of(given.module), tensors_of(module)
    accumulator = Accumulator(whole, FILL_IN)
    assert accumulator.refusal(given.cut, trained) is None
    accumulator.add(given.cut, trained)
    merged = accumulator.merge()
    back = gather(given.cut, merged)
    for name in whole:
        outside = kept_mask(given.cut, name, whole[name]) == 0
        assert torch.equal(merged[name][outside], whole[name][outside]), name
        assert torch.equal(back[name], trained[name]), name
    moved = [name for name in whole if not torch.equal(merged[name], whole[name])]
    assert len(moved) > len(whole) / 2
