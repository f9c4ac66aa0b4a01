"""Federated Dropout, `random` with masks of fixed size; and independent draws per layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from submodel.algorithm.dispatch import cut_of
from submodel.algorithm.merge import Accumulator, coverage, merge_rule
from submodel.algorithm.rounds import initial_state
from submodel.algorithm.types import Assignment, Setup
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError
from submodel.model.build import build_module, load
from submodel.model.cost import CostModel
from submodel.model.cut import WHOLE, Cut, PlannedCut, UnitCut, gather
from submodel.runs.loop import run_rounds
from submodel.runs.training import Training
from submodel.schemes import Draw, Dropout, Random, units_held
from tests.support.common import RULES, tiny_images, tiny_setup
from tests.support.engines import EXACT_TOLERANCE, assert_equal_updates, doubled, setup_of
from tests.support.rounds import one_round, step_of

pytestmark = pytest.mark.slow


@given(
    size=st.integers(1, 70),
    capacity=st.floats(0.01, 1),
    seed=st.integers(0, 9),
    round_=st.integers(0, 99),
    client=st.integers(-1, 99),
)
def test_it_draws_what_random_with_fixed_sampling_draws(
    size: int, capacity: float, seed: int, round_: int, client: int
) -> None:
    draw = Draw(seed, round_, client)
    mask = Dropout().select("a", size, capacity, draw)
    assert mask.tobytes() == Random("fixed").select("a", size, capacity, draw).tobytes()
    assert int(mask.sum()) == units_held(capacity, size)


@pytest.mark.parametrize("granularity", ["unit", "coordinate"])
def test_a_run_with_it_is_a_run_of_random_with_fixed_sampling(granularity: str) -> None:
    chosen = {"granularity": granularity}
    dropout = tiny_setup("mlp", scheme={"name": "dropout", **chosen})
    fixed = tiny_setup("mlp", scheme={"name": "random", "sampling": "fixed", **chosen})
    bernoulli = tiny_setup("mlp", scheme={"name": "random", **chosen})
    assert one_round(dropout, 2) == one_round(fixed, 2) != one_round(bernoulli, 2)


def test_algorithm_1_draws_masks_of_random_size_and_dropout_does_not() -> None:
    draws = [Draw(0, r, c) for r in range(20) for c in range(5)]
    sizes = {int(Dropout().select("a", 40, 0.25, d).sum()) for d in draws}
    random = [int(Random().select("a", 40, 0.25, d).sum()) for d in draws]
    assert sizes == {10}
    assert len(set(random)) > 5
    assert abs(np.mean(random) - 10) < 5 * np.sqrt(40 * 0.25 * 0.75 / len(draws))  # 5 deviations


RANDOM = {"name": "random", "sampling": "fixed"}
INDEPENDENT = {**RANDOM, "alignment": "independent"}


def aligned(alignment: str, width: int = 8, **sections: Any) -> Setup:
    scheme = {**RANDOM, "alignment": alignment}
    return tiny_setup("preresnet18", width=width, scheme=scheme, **sections)


def planned(setup: Setup, capacity: float, client: int = 0, round_: int = 0) -> PlannedCut:
    cut = cut_of(setup, Assignment(round_, client, capacity))
    assert isinstance(cut, PlannedCut)
    return cut


def logits(setup: Setup, cut: Cut) -> Tensor:
    module = build_module(setup.module, cut)
    load(module, gather(cut, initial_state(setup).tensors))
    with torch.no_grad():
        out: Tensor = module.train()(setup.clients.dataset.train.x)
    return out


def test_at_capacity_one_only_aligned_channels_compute_the_global_model() -> None:
    assignment = Assignment(0, 0, 1.0)
    for alignment in ("residual", "independent"):
        setup = aligned(alignment)
        whole, own = logits(setup, WHOLE), logits(setup, cut_of(setup, assignment))
        gap = float((own - whole).abs().max())
        assert gap == 0 if alignment == "residual" else gap > 0.1


def test_skips_agree_with_branches_only_where_a_convolution_is_the_skip() -> None:
    setup = aligned("independent")
    for capacity in (1.0, 0.5):
        plan = planned(setup, capacity).plan

        def channels(tensor: str, d: int, plan: Any = plan) -> list[int]:
            (kept,) = [k.tolist() for own, k in plan[f"{tensor}.weight"] if own == d]
            return list(kept)

        stream = channels("stem", 0)
        for stage in range(4):
            for block in range(2):
                path = f"stages.{stage}.{block}"
                inner, out = channels(f"{path}.conv1", 0), channels(f"{path}.conv2", 0)
                assert channels(f"{path}.norm1", 0) == channels(f"{path}.conv1", 1) == stream
                assert channels(f"{path}.norm2", 0) == channels(f"{path}.conv2", 1) == inner
                assert inner != out
                if f"{path}.shortcut.weight" in plan:
                    assert channels(f"{path}.shortcut", 0) == out
                    assert channels(f"{path}.shortcut", 1) == stream
                else:
                    assert stream != out  # the sum of the identity skip
                assert len(set(out)) == len(out) == np.ceil((8 << stage) * capacity)
                stream = out
        assert channels("norm", 0) == channels("classifier", 1) == stream


def test_draws_depend_on_seed_round_client_and_layer_alone() -> None:
    setup = aligned("independent")
    first = planned(setup, 0.5, client=1, round_=2)
    assert planned(aligned("independent"), 0.5, 1, 2).same_key == first.same_key
    others = [planned(setup, 0.5, 2, 2), planned(setup, 0.5, 1, 3),
              planned(aligned("independent", seed=1), 0.5, 1, 2)]  # fmt: skip
    assert first.same_key not in [other.same_key for other in others]


def test_shapes_and_costs_are_those_of_an_aligned_cut() -> None:
    setup, like = aligned("independent"), aligned("residual")
    costs = CostModel(setup.module, setup.clients.dataset.example)
    for capacity in (1.0, 0.5, 0.25):
        cut, expected = planned(setup, capacity), cut_of(like, Assignment(0, 0, capacity))
        small, reference = build_module(setup.module, cut), build_module(like.module, expected)
        assert repr(small) == repr(reference)
        assert {n: p.shape for n, p in small.named_parameters()} == {
            n: p.shape for n, p in reference.named_parameters()
        }
        assert costs.of(cut) == costs.of(expected)
        assert cut.shape_key == expected.shape_key


@pytest.mark.parametrize("rule", RULES)
def test_what_was_gathered_goes_back_where_it_came_from(rule: str) -> None:
    setup = aligned("independent")
    tensors = initial_state(setup).tensors
    accumulator = Accumulator(tensors, merge_rule(rule))
    for client, capacity in enumerate((1.0, 0.5, 0.25)):
        cut = planned(setup, capacity, client)
        sent = PlannedCut.from_json(cut.to_json())
        held = gather(cut, tensors)
        for name, whole in tensors.items():
            assert torch.equal(sent.part(name, whole), held[name])
            back, count = torch.zeros_like(whole), torch.zeros_like(whole)
            cut.add(name, back, held[name])
            cut.add(name, count, 1.0)
            assert torch.equal(back, whole * count)
            assert int(count.sum()) == cut.value_count(name, whole.shape) == held[name].numel()
            assert count.max() == 1
        assert accumulator.refusal(cut, held) is None
        accumulator.add(cut, held)
    assert coverage([accumulator]) == 1
    torch.testing.assert_close(accumulator.merge(), tensors, rtol=0, atol=0)


@pytest.mark.parametrize("absent", ["keep", "zero", "leave_out"])
def test_batched_is_serial(absent: str) -> None:
    local = {"absent_labels": absent, "clip": 1.0}
    clients = {"capacities": [1, 0.5, 0.25]}
    images = doubled(tiny_images())
    setup = setup_of("preresnet18", images, scheme=INDEPENDENT, local=local, clients=clients)
    assert_equal_updates(setup, EXACT_TOLERANCE)


def test_rows_of_absent_labels_are_cut() -> None:
    local = {"absent_labels": "leave_out"}
    setup = aligned("independent", local=local)
    cut = cut_of(setup, Assignment(0, 0, 0.5), np.array([2, 5, 7]))
    tensors = initial_state(setup).tensors
    held = gather(cut, tensors)
    assert held["classifier.weight"].shape == (3, 32)
    assert torch.equal(held["classifier.bias"], tensors["classifier.bias"][[2, 5, 7]])


def test_rounds_and_runs_work_and_say_what_a_client_of_capacity_one_has() -> None:
    setup = aligned("independent")
    state, report = step_of(setup)
    assert report.clients == 4
    assert 0 < report.units_covered == report.weights_covered <= 1
    assert all(bool(t.isfinite().all()) for t in state.tensors.values())
    config = parse(
        {
            "model": {"name": "preresnet18", "width": 4},
            "scheme": INDEPENDENT,
            "clients": {"count": 4, "per_round": 4, "capacities": [1, 0.5]},
            "data": {"partition": "iid"},
            "train": {"rounds": 2, "evaluate_every": 2},
        }
    )
    _, history = run_rounds(Training(config, prepare(config, data=tiny_images())))
    last = history[-1]
    assert set(last["capacity_accuracy"]) == {"1", "0.5"}


REFUSED: dict[str, dict[str, Any]] = {
    "scheme.sampling = 'fixed', not 'bernoulli'": {"scheme": {"sampling": "bernoulli"}},
    "scheme.granularity = 'unit', not 'coordinate'": {"scheme": {"granularity": "coordinate"}},
    "preresnet18 or preresnet34.* not Sequential": {"model": {"name": "cnn"}},
    "traced axes": {"axes": {"whole": ["stem"]}},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_it_is_refused_where_it_means_nothing(reason: str) -> None:
    scheme = {**INDEPENDENT, **REFUSED[reason].get("scheme", {})}
    sections = {"model": {"name": "preresnet18", "width": 4}, **REFUSED[reason], "scheme": scheme}
    with pytest.raises(ConfigError, match=rf"^scheme\.alignment: 'independent' .*{reason}"):
        prepare(parse(sections), data=tiny_images())


def test_the_default_is_a_valid_cut() -> None:
    cut = cut_of(aligned("residual"), Assignment(0, 0, 0.5))
    assert isinstance(cut, UnitCut)
