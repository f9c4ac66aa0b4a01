"""Contracts 1 and 3 over all schemes, merge rules and built-in models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from submodel.algorithm.dispatch import cut_of
from submodel.algorithm.rounds import initial_state
from submodel.algorithm.types import Assignment, State
from submodel.model.build import build, load
from submodel.model.cost import CostModel
from submodel.model.cut import gather
from tests.support.common import RULES, SCHEMES, WIDTHS, tiny_setup
from tests.support.rounds import one_round, output


@pytest.mark.parametrize("model", WIDTHS)
@pytest.mark.parametrize("rule", RULES)
def test_at_capacity_one_every_scheme_is_fedavg_bit_for_bit(model: str, rule: str) -> None:
    everyone: dict[str, Any] = {
        "clients": {"capacities": [1.0]},
        "merge": {"rule": rule},
        "local": {"steps": 2},
    }
    expected = one_round(tiny_setup(model, scheme={"name": "full"}, **everyone))
    for scheme in SCHEMES.values():
        for granularity in ("unit", "coordinate"):
            choice = {**scheme, "granularity": granularity}
            assert one_round(tiny_setup(model, scheme=choice, **everyone)) == expected, choice


@pytest.mark.parametrize("model", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_sub_model_computes_the_full_model_with_dropped_units_zeroed(
    model: str, scheme: str
) -> None:
    setup = tiny_setup(model, scheme=SCHEMES[scheme])
    state = initial_state(setup)
    generator = torch.Generator().manual_seed(0)
    state = State(
        0,
        {n: t + 0.1 * torch.randn(t.shape, generator=generator) for n, t in state.tensors.items()},
    )
    for capacity in (1.0, 0.5, 0.25):
        cut = cut_of(setup, Assignment(5, 2, capacity))
        small = build(setup.module, cut)
        load(small, gather(cut, state.tensors))
        kept = {name: torch.zeros_like(t) for name, t in state.tensors.items()}
        for name, zeros in kept.items():
            cut.add(name, zeros, cut.part(name, state.tensors[name]))
        masked = build(setup.module, cut_of(setup, Assignment(0, 0, 1.0)))
        load(masked, kept)
        torch.testing.assert_close(
            output(setup, small), output(setup, masked), rtol=1e-5, atol=1e-5
        )  # float32 sums in another order


def test_units_of_one_axis_agree_in_every_tensor_that_shares_it() -> None:
    """Published code draws channels layer by layer, so identity skips add mismatched ones."""
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
    costs = CostModel(setup.module, setup.federation.dataset.example)
    whole = costs.of(cut_of(setup, Assignment(0, 0, 1.0)))
    quarter = costs.of(cut_of(setup, Assignment(0, 0, 0.25)))
    assert whole.bytes == 4 * whole.parameters
    assert 0.062 < quarter.parameters / whole.parameters < 0.064
    assert 0.062 < quarter.forward_flops / whole.forward_flops < 0.07


def test_a_sub_model_is_a_module_of_its_own() -> None:
    setup = tiny_setup("cnn")
    cut = cut_of(setup, Assignment(0, 0, 0.5))
    small = build(setup.module, cut)
    before = {n: p.detach().clone() for n, p in setup.module.named_parameters()}
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.zero_()
    for name, parameter in setup.module.named_parameters():
        assert torch.equal(parameter, before[name])
    assert "out_features=16" in repr(small)
    assert np.prod(small(torch.zeros(3, 1, 8, 8)).shape) == 30
