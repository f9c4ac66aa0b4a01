"""Contracts 1 and 3 over all schemes, merge rules and built-in models."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from submodel.algorithm.dispatch import cut_of, knowledge_of
from submodel.algorithm.merge import merge_rule
from submodel.algorithm.rounds import initial_state
from submodel.algorithm.types import Assignment
from submodel.model.build import build_module, load
from submodel.model.cost import CostModel
from submodel.model.cut import WHOLE, gather
from tests.support.common import RULES, WIDTHS, tiny_setup
from tests.support.rounds import one_round, output
from tests.support.schemes import AT_CAPACITY_ONE, CASES, UNIT_CASES, joined, sections_of

pytestmark = pytest.mark.slow


@pytest.mark.every(3)
@pytest.mark.parametrize("model", WIDTHS)
@pytest.mark.parametrize(("scheme", "granularity"), CASES)
def test_at_capacity_one_every_scheme_is_fedavg_bit_for_bit(
    scheme: str, granularity: str, model: str
) -> None:
    sections = joined(
        {"clients": {"count": 2, "per_round": 2}, "local": {"steps": 2}},
        sections_of(scheme, granularity, AT_CAPACITY_ONE.get(scheme, {})),
        {"clients": {"capacities": [1.0]}},
    )
    setup = tiny_setup(model, **sections)
    for rule in RULES:
        found = one_round(replace(setup, rule=merge_rule(rule)))
        assert found == fedavg(model, rule, json.dumps(sections["clients"])), rule


@cache
def fedavg(model: str, rule: str, clients: str) -> dict[str, bytes]:
    """Run a round in which all clients train the whole model."""
    sections = {"scheme": {"name": "full"}, "clients": json.loads(clients), "local": {"steps": 2}}
    return one_round(replace(tiny_setup(model, **sections), rule=merge_rule(rule)))


@pytest.mark.every(3)
@pytest.mark.parametrize("model", WIDTHS)
@pytest.mark.parametrize("scheme", UNIT_CASES)
def test_a_sub_model_computes_the_full_model_with_dropped_units_zeroed(
    model: str, scheme: str
) -> None:
    setup = tiny_setup(model, **sections_of(scheme, "unit"))
    state = initial_state(setup)
    generator = torch.Generator().manual_seed(0)
    tensors = {
        n: t.double() + 0.1 * torch.randn(t.shape, generator=generator)
        for n, t in state.tensors.items()
    }
    state = replace(state, tensors=tensors)
    for capacity in setup.population.capacities:
        cut = cut_of(setup, Assignment(5, 0, capacity), knowledge=knowledge_of(setup, state))
        small = build_module(setup.module, cut).double()
        load(small, gather(cut, state.tensors))
        kept = {name: torch.zeros_like(t) for name, t in state.tensors.items()}
        for name, zeros in kept.items():
            cut.add(name, zeros, cut.part(name, state.tensors[name]))
        masked = build_module(setup.module, WHOLE).double()
        load(masked, kept)
        torch.testing.assert_close(
            output(setup, small), output(setup, masked), rtol=1e-9, atol=1e-9
        )  # sums in another order, through 34 layers


def test_units_of_one_axis_agree_in_every_tensor_that_shares_it() -> None:
    """Published code draws channels layer by layer, so identity skips add mismatched channels."""
    setup = tiny_setup("preresnet18", scheme={"name": "random", "sampling": "fixed"})
    cut = cut_of(setup, Assignment(1, 1, 0.5))
    marked = {}
    for name, tensor in initial_state(setup).tensors.items():
        channels = torch.arange(tensor.shape[0]).float()
        marked[name] = channels.view(-1, *(1 for _ in tensor.shape[1:])).expand_as(tensor)
    held = gather(cut, marked)
    stream = held["stem.weight"][:, 0, 0, 0]
    for block in (0, 1):
        assert torch.equal(held[f"stages.0.{block}.conv2.weight"][:, 0, 0, 0], stream)
        assert torch.equal(held[f"stages.0.{block}.norm1.weight"], stream)
    assert not torch.equal(stream, torch.arange(len(stream)).float())


def test_parameters_shrink_with_the_square_of_the_capacity() -> None:
    setup = tiny_setup("preresnet18", width=64)
    costs = CostModel(setup.module, setup.clients.dataset.example)
    whole = costs.of(cut_of(setup, Assignment(0, 0, 1.0)))
    quarter = costs.of(cut_of(setup, Assignment(0, 0, 0.25)))
    assert whole.bytes == 4 * whole.parameters
    assert 0.062 < quarter.parameters / whole.parameters < 0.064
    assert 0.062 < quarter.forward_flops / whole.forward_flops < 0.07


def test_a_sub_model_is_a_module_of_its_own() -> None:
    setup = tiny_setup("cnn")
    cut = cut_of(setup, Assignment(0, 0, 0.5))
    small = build_module(setup.module, cut)
    before = {n: p.detach().clone() for n, p in setup.module.named_parameters()}
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.zero_()
    for name, parameter in setup.module.named_parameters():
        assert torch.equal(parameter, before[name])
    assert "out_features=16" in repr(small)
    assert np.prod(small(torch.zeros(3, 1, 8, 8)).shape) == 30
