"""All steps of a stack in one call equal single steps of the kernels; scores are torch's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from submodel.algorithm.evaluation import evaluate_capacities, evaluate_model, evaluation_module
from submodel.algorithm.rounds import initial_state
from submodel.algorithm.types import Setup, State, plain_scorer
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.engines.native import library
from submodel.engines.native import scoring as native_scoring
from submodel.engines.native.library import built_library, find_compiler
from submodel.engines.native.scoring import KernelScorer
from submodel.engines.native.training import WholeTraining
from submodel.model.cut import WHOLE
from submodel.model.norm import Statistics
from submodel.runs.training import Training
from tests.support.common import tiny_images
from tests.support.engines import native_engine, setup_of, updates
from tests.support.rounds import step_of

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")
TOLERANCE = 1e-5
"""For float32 sums in another order, over a few steps of the same kernels."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record an entry for every stack that is trained in one call."""
    stacks: list[str] = []
    train = WholeTraining.train

    def count(self: WholeTraining, *args: Any) -> Any:
        stacks.append("trained")
        return train(self, *args)

    monkeypatch.setattr(WholeTraining, "train", count)
    return stacks


def step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WholeTraining, "can_train", lambda *_: False)


WORKS: dict[str, dict[str, Any]] = {
    "momentum": {"local": {"momentum": 0.9}},
    "no momentum": {"local": {"momentum": 0.0, "weight_decay": 0.01}},
    "nesterov": {"local": {"nesterov": True, "weight_decay": 0.01}},
    "clip": {"local": {"clip": 0.1}},
    "steps": {"local": {"steps": 5, "step_schedule": "cosine", "warmup_steps": 2}},
    "absent labels": {"local": {"absent_labels": "leave_out"}},
    "absent labels of nought": {"local": {"absent_labels": "zero"}},
    "coordinates": {
        "scheme": {"granularity": "coordinate"},
        "local": {"absent_labels": "leave_out", "clip": 1.0},
    },
}


@pytest.mark.parametrize("case", WORKS)
def test_updates_are_those_of_single_steps(
    case: str, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients have 8 and 9 examples in batches of 4, so some last batches have one example."""
    loss = nn.CrossEntropyLoss(label_smoothing=0.1 if case == "absent labels" else 0.0)
    is_plain = WORKS[case]["local"].get("absent_labels") is None
    setup = setup_of("cnn", tiny_images(), cross_entropy if is_plain else loss, **WORKS[case])
    actual = updates(native_engine(setup), setup)
    assert calls
    calls.clear()
    step_by_step(monkeypatch)
    expected = updates(native_engine(setup), setup)
    assert not calls
    assert actual.keys() == expected.keys()
    for client, update in expected.items():
        assert actual[client].examples_used == update.examples_used
        assert actual[client].loss == pytest.approx(update.loss, rel=TOLERANCE)
        torch.testing.assert_close(
            actual[client].tensors, update.tensors, rtol=TOLERANCE, atol=TOLERANCE
        )


def last_state(setup: Setup) -> State:
    engine, state = native_engine(setup), initial_state(setup)
    for _ in range(3):
        state, _ = step_of(setup, state, engine)
    return state


def test_momenta_are_kept_over_rounds(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    setup = setup_of("cnn", local={"optimiser_state": "kept"})
    actual = last_state(setup)
    assert calls
    step_by_step(monkeypatch)
    expected = last_state(setup)
    for mine, other in (
        (actual.tensors, expected.tensors),
        (actual.client_slots, expected.client_slots),
    ):
        assert mine.keys() == other.keys()
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5, equal_nan=True)


OTHERS: dict[str, dict[str, Any]] = {
    "another optimiser": {"local": {"optimiser": "adam"}},
    "held near": {"local": {"proximal": 0.1}},
    "pieces": {"local": {"accumulate": 2}},
    "all examples at once": {"local": {"batch_size": 0}},
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_is_not_for_one_call_is_trained_step_by_step(case: str, calls: list[str]) -> None:
    setup = setup_of("cnn", tiny_images(), **OTHERS[case])
    assert len(updates(native_engine(setup), setup)) == 7
    assert not calls


def test_an_update_that_is_not_finite_stays_with_its_client() -> None:
    setup = setup_of("cnn", data={"partition": "iid"})
    expected = updates(native_engine(setup), setup)
    setup.clients.dataset.train.x[setup.clients.indices(3)] = float("nan")
    actual = updates(native_engine(setup), setup)
    for client, update in actual.items():
        for name, tensor in update.tensors.items():
            if client == 3:
                assert not torch.isfinite(tensor).all()
            else:
                assert torch.equal(tensor, expected[client].tensors[name])


"""Relative to the largest output, for float32 sums of some thousand terms."""
MODELS = ["cnn", "preresnet18"]


def scorer_of(setup: Setup) -> KernelScorer:
    return KernelScorer(setup.module, setup.clients.dataset.example)


def is_native(outputs_of: object) -> bool:
    return isinstance(outputs_of, native_scoring._Pieces)


@pytest.mark.parametrize("model", MODELS)
def test_outputs_are_torchs_whatever_the_number_of_examples(model: str) -> None:
    setup = setup_of(model, tiny_images(600))
    with evaluation_module(setup, initial_state(setup)) as module, torch.no_grad():
        outputs_of = scorer_of(setup)(module)
        assert is_native(outputs_of)
        x = setup.clients.dataset.train.x
        assert isinstance(x, Tensor)
        torchs = module(x)
        largest = torchs.abs().max()
        for count in (600, 200, 33, 16, 1):
            outputs = outputs_of(x[:count])
            assert outputs.shape == (count, 10)
            assert ((outputs - torchs[:count]).abs().max() / largest).item() < TOLERANCE
        channels_last = x.contiguous(memory_format=torch.channels_last)
        assert torch.equal(outputs_of(channels_last), outputs_of(x))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["static", "rolling", "random"])
@pytest.mark.parametrize("model", MODELS)
def test_scores_of_all_sizes_are_torchs(model: str, scheme: str) -> None:
    setup = setup_of(model, scheme={"name": scheme}, model={"scaler": True})
    state = replace(initial_state(setup), round=3)
    native = replace(setup, scorer=scorer_of(setup))
    ours, torchs = (evaluate_model(one, state) for one in (native, setup))
    assert ours.loss == pytest.approx(torchs.loss, rel=TOLERANCE)
    assert ours.accuracy == torchs.accuracy
    sizes, torchs_sizes = (evaluate_capacities(one, state, ours) for one in (native, setup))
    for capacity, score in torchs_sizes.items():
        assert sizes[capacity].loss == pytest.approx(score.loss, rel=TOLERANCE)


class _Gate(nn.Module):
    """A sum with a layer without a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.conv(x))


OTHER_NETS: dict[str, nn.Module] = {
    "a layer without a kernel": nn.Sequential(_Gate(), nn.Flatten(), nn.Linear(144, 10)),
    "running statistics": nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10)
    ),
    "groups": nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 1, groups=4), nn.Flatten(), nn.Linear(144, 10)
    ),
}


@pytest.mark.parametrize("name", OTHER_NETS)
def test_other_nets_compute_their_scores_themselves(name: str) -> None:
    setup = setup_of(OTHER_NETS[name])
    state, scorer = initial_state(setup), scorer_of(setup)
    with evaluation_module(setup, state) as module, torch.no_grad():
        assert not is_native(scorer(module))
        assert not is_native(scorer(module))  # as before
    assert evaluate_model(replace(setup, scorer=scorer), state) == evaluate_model(setup, state)


def test_a_module_that_computes_something_else_than_its_weights_say_is_left_to_itself() -> None:
    setup = setup_of("cnn")
    with evaluation_module(setup, initial_state(setup)) as module, torch.no_grad():
        assert is_native(scorer_of(setup)(module))
        handle = module.register_forward_hook(lambda _module, _inputs, output: 1.01 * output)
        assert not is_native(scorer_of(setup)(module))
        handle.remove()
        for parameter in module.parameters():
            parameter.data = parameter.data * float("nan")
        assert not is_native(scorer_of(setup)(module))


def test_layers_that_are_not_aligned_compute_their_scores_themselves() -> None:
    scheme = {"name": "random", "sampling": "fixed", "alignment": "independent"}
    setup = setup_of("preresnet18", scheme=scheme)
    state = replace(initial_state(setup), round=2)
    native = replace(setup, scorer=scorer_of(setup))
    whole = evaluate_model(setup, state)
    ours, torchs = (evaluate_capacities(one, state, whole) for one in (native, setup))
    for capacity, score in torchs.items():
        assert ours[capacity].loss == pytest.approx(score.loss, rel=TOLERANCE)


def test_norms_that_go_by_test_batches_are_torchs() -> None:
    setup = replace(setup_of("cnn"), statistics=Statistics("test_batch"))
    state = initial_state(setup)
    native = replace(setup, scorer=scorer_of(setup))
    assert evaluate_model(native, state) == evaluate_model(setup, state)


@pytest.fixture
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CC", "no-such-compiler")
    for function in (library.load_library, built_library):
        function.cache_clear()
    yield
    for function in (library.load_library, built_library):
        function.cache_clear()


@pytest.mark.usefixtures("_no_compiler")
def test_a_run_of_native_kernels_is_scored_where_there_is_no_compiler() -> None:
    setup = setup_of("cnn")
    state = initial_state(setup)
    scores = evaluate_model(replace(setup, scorer=scorer_of(setup)), state)
    assert scores == evaluate_model(setup, state)


@pytest.mark.parametrize(("kernels", "kind"), [("native", KernelScorer), ("torch", None)])
def test_runs_are_scored_by_the_kernels_that_train_them(kernels: str, kind: Any) -> None:
    sections = {
        "model": {"name": "cnn", "width": 4},
        "clients": {"count": 4, "per_round": 2, "capacities": [1, 0.5]},
        "engine": {"name": "local", "kernels": kernels, "device": "cpu"},
    }
    config = parse(sections)
    training = Training(config, prepare(config, data=tiny_images()))
    state = initial_state(training.setup)
    first, second = (training.scored_setup_at(state).scorer for _ in range(2))
    assert first is second  # its kernels are prepared once
    assert first is plain_scorer if kind is None else isinstance(first, kind)
    with evaluation_module(training.setup, state, WHOLE) as module, torch.no_grad():
        assert is_native(first(module)) == (kind is not None)
