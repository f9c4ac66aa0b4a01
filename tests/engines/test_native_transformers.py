"""The native kernels for transformers: torch's numbers, and the usual bits on tapes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import submodel
from submodel.engines.batched import replay
from submodel.engines.native import operators
from submodel.engines.native.library import find_compiler
from submodel.engines.native.operators import native_kernels
from submodel.engines.native.tape import Tape
from submodel.engines.select import native_refusal
from submodel.engines.serial import SerialEngine
from submodel.runs.checkpoint import model_sha256
from tests.engines.test_transformers import MAKERS, gpt, gpt2, sequences, setup_of
from tests.support.engines import TOLERANCE, native_engine, updates
from tests.support.engines import setup_of as small_nets

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")
CPU = torch.device("cpu")
Compute = Callable[..., Tensor]


def assert_as_double(own: Compute, reference: Compute, *inputs: Tensor) -> None:
    """Compare values and gradients: 2e-6 of the largest value, for sums of up to 256 terms."""
    inputs = tuple(t.detach().requires_grad_() for t in inputs)
    exact = [t.detach().double().requires_grad_() for t in inputs]
    out, expected = own(*inputs), reference(*exact)
    weights = torch.linspace(-1, 2, out.numel()).view(out.shape)
    gradients = torch.autograd.grad((out * weights).sum(), inputs)
    expected_gradients = torch.autograd.grad((expected * weights).sum(), exact)
    pairs = zip((out, *gradients), (expected, *expected_gradients), strict=True)
    for value, wanted in pairs:
        error = (value.double() - wanted).abs().max()
        assert float(error.detach()) <= 2e-6 * float(wanted.detach().abs().max())


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(math.prod(shape)))


@pytest.mark.parametrize("inputs_first", [True, False])
@pytest.mark.parametrize("sizes", [(3, 37, 29, 51), (2, 128, 64, 48), (1, 5, 200, 7), (2, 1, 1, 1)])
def test_linear(sizes: tuple[int, int, int, int], inputs_first: bool) -> None:
    clients, rows, inputs, outputs = sizes
    shape = (inputs, outputs) if inputs_first else (outputs, inputs)
    x, weight, bias = draw(clients, rows, inputs), draw(clients, *shape), draw(clients, outputs)

    def reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return x @ (weight if inputs_first else weight.mT) + bias[:, None]

    linear = native_kernels().linear
    assert_as_double(lambda x, w, b: linear(x, w, b, inputs_first), reference, x, weight, bias)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("gelu", functional.gelu),
        ("gelu_tanh", lambda x: functional.gelu(x, approximate="tanh")),
        ("silu", functional.silu),
    ],
)
def test_activations(name: str, reference: Compute) -> None:
    x = torch.cat([torch.linspace(-10, 10, 4001), torch.tensor([-200.0, 0.0, 200.0])])
    assert_as_double(native_kernels().activations[name], reference, x)


@pytest.mark.parametrize("width", [5, 37, 64])
def test_norms(width: int) -> None:
    x, scale, shift = draw(3, 7, width), draw(3, width), draw(3, width)
    kernels = native_kernels()

    def layer_norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return functional.layer_norm(x, (width,), eps=1e-5) * scale[:, None] + shift[:, None]

    def rms_norm(x: Tensor, scale: Tensor) -> Tensor:
        return functional.rms_norm(x, (width,), eps=1e-6) * scale[:, None]

    assert_as_double(lambda x, w, b: kernels.layer_norm(x, w, b, 1e-5), layer_norm, x, scale, shift)
    assert_as_double(lambda x, w: kernels.rms_norm(x, w, 1e-6), rms_norm, x, scale)


@pytest.mark.parametrize("case", [(4, 4, 32, 32, 16), (4, 2, 37, 37, 5), (4, 1, 9, 50, 24)])
@pytest.mark.parametrize("causal", [True, False])
def test_attention(case: tuple[int, int, int, int, int], causal: bool) -> None:
    heads, key_heads, places, keys, size = case
    keys = places if causal else keys
    query = draw(2, places, heads, size).transpose(1, 2)  # as in models
    key, value = draw(2, key_heads, keys, size), draw(2, key_heads, keys, size + 1)

    def own(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out = native_kernels().attend(query, key, value, causal, 0.3)
        assert out is not None
        return out

    def reference(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=causal, scale=0.3, enable_gqa=True
        )

    assert_as_double(own, reference, query, key, value)


@pytest.mark.parametrize("classes", [11, 256])
def test_cross_entropy(classes: int) -> None:
    labels = torch.arange(9) % classes
    labels[3] = -100
    entropy = native_kernels().cross_entropy
    assert_as_double(
        lambda x: entropy(x, labels, -100, 0.0),
        lambda x: functional.cross_entropy(x, labels, reduction="none"),
        5 * draw(9, classes),
    )


@pytest.mark.parametrize("label", [-1, 5])
def test_a_label_that_there_is_not_is_refused(label: int) -> None:
    with pytest.raises(IndexError, match=f"Target {label} "):
        operators.cross_entropy(draw(2, 5), torch.tensor([0, label]), -100)


def test_what_is_no_number_stays_so() -> None:
    """NaN must not be hidden."""
    x = draw(1, 20, 20)
    x[0, 3, 4] = math.nan
    kernels = native_kernels()
    scale = torch.ones(1, 20)
    assert kernels.linear(x, x, None, True)[0, 3].isnan().all()
    assert kernels.layer_norm(x, scale, None, 1e-5)[0, 3].isnan().all()
    assert all(activate(x)[0, 3, 4].isnan() for activate in kernels.activations.values())
    assert kernels.cross_entropy(x[0], torch.zeros(20).long(), -100, 0.0).isnan().nonzero() == 3
    attended = kernels.attend(x[None], x[None], x[None], is_causal=True, scale=None)
    assert attended is not None
    assert attended[0, 0, 3:].isnan().any(-1).all()


@pytest.mark.every(2)
@pytest.mark.slow
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("kind", MAKERS)
def test_native_stacks_are_serial(kind: str, packed: bool) -> None:
    setup = setup_of(kind, packed, clip=0.5)
    expected = updates(SerialEngine(setup), setup)
    for client, update in updates(native_engine(setup), setup).items():
        assert update.loss == pytest.approx(expected[client].loss, rel=TOLERANCE)
        torch.testing.assert_close(
            update.tensors, expected[client].tensors, rtol=TOLERANCE, atol=TOLERANCE
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt", "modern"])
def test_tapes_have_the_bits_of_the_usual_way(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setup, results, calls = setup_of(kind, steps=5, optimiser="adamw"), [], []
    run = Tape.__call__

    def counted(self: Tape, *inputs: Tensor) -> list[Tensor]:
        calls.append(self)
        return run(self, *inputs)

    monkeypatch.setattr(Tape, "__call__", counted)
    for steps in (10**9, 2):
        monkeypatch.setattr(replay, "USUAL_STEPS", steps)
        engine = native_engine(setup)
        results.append(updates(engine, setup))
        assert bool(calls) is (steps == 2)
    assert engine._replays.programs > 0
    for client, update in results[1].items():
        assert update.loss == results[0][client].loss
        torch.testing.assert_close(update.tensors, results[0][client].tensors, rtol=0, atol=0)


@pytest.mark.slow
def test_a_step_without_attention_masks_is_one_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and back and loss: else activations of a whole stack would be kept."""
    monkeypatch.setattr(replay, "USUAL_STEPS", 2)
    tapes: list[Any] = []
    make = Tape.__init__

    def noted(self: Tape, *given: Any) -> None:
        tapes.append(self)
        make(self, *given)

    monkeypatch.setattr(Tape, "__init__", noted)
    setup = setup_of("gpt2", steps=3, batch_size=2)
    engine = native_engine(setup)
    updates(engine, setup)
    assert 0 < len(tapes) == engine._replays.programs


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """The first part recorded its steps before it stopped; the second records them anew."""

    def train(rounds: int, name: str, resume: bool = False) -> str:
        config = {
            "task": {"name": "language"},
            "data": {"partition": "iid"},
            "clients": {"count": 4, "per_round": 4, "capacities": [0.5]},
            "local": {"optimiser": "adamw", "lr": 1e-3, "batch_size": 4, "steps": 4},
            "train": {"rounds": rounds},
            "engine": {"name": "local", "kernels": "native"},
        }
        torch.manual_seed(0)
        run = submodel.train(
            gpt(),
            sequences(True, "gpt"),
            config,
            out=tmp_path / name,
            resume=resume,
            progress=False,
        )
        return model_sha256(run.state.tensors)

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch shows no warning to a user
        whole = train(6, "whole")
        train(4, "parts")
        assert train(6, "parts", resume=True) == whole


@pytest.mark.slow
def test_which_models_are_for_the_kernels() -> None:
    assert native_refusal(setup_of("gpt2"), CPU) is None
    assert "neither" in str(native_refusal(small_nets("mlp"), CPU))
    assert "random" in str(native_refusal(setup_of("gpt2", net=gpt2(resid_pdrop=0.2)), CPU))
