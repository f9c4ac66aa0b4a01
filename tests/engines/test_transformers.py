"""Transformers in stacks: the serial engine's updates, torch's layers, and no output about it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from submodel.algorithm.types import Setup
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.data import Dataset, dataset
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.batched.layers import TORCH_KERNELS
from submodel.model.zoo.gpt import Decoder
from tests.support.engines import EXACT_TOLERANCE, TOLERANCE, assert_equal_updates, updates
from tests.support.tokens import LENGTH, VOCABULARY, tiny_labelled_text

_set_fallback: Callable[[bool], None] = torch._C._functorch._set_vmap_fallback_enabled  # type: ignore[attr-defined]
_library: Any = transformers
WIDTH = 16


def gpt2(**options: Any) -> nn.Module:
    config = _library.GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=WIDTH, n_layer=2, n_head=4,
        use_cache=False, bos_token_id=0, eos_token_id=0,
        **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, **options},
    )  # fmt: skip
    model: nn.Module = _library.GPT2LMHeadModel(config)
    return model


def llama() -> nn.Module:
    config = _library.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH,
        use_cache=False,
    )  # fmt: skip
    model: nn.Module = _library.LlamaForCausalLM(config)
    return model


def gpt() -> nn.Module:
    return Decoder(LENGTH, VOCABULARY, WIDTH, layers=2, heads=4)


class Modern(nn.Module):
    """RMS norm, rotary positions, a padding token, and torch's attention without a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.norm = nn.RMSNorm(WIDTH)
        self.project = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        angles = torch.arange(LENGTH)[:, None] * 0.3 ** torch.arange(WIDTH // 2)
        self.register_buffer("cos", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", angles.sin().repeat(1, 2), persistent=False)

    def _turn(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, -1)
        cos, sin = self.get_buffer("cos"), self.get_buffer("sin")
        return x * cos.to(x) + torch.cat([-right, left], -1) * sin.to(x)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.tokens(input_ids)
        query, key, value = self.project(self.norm(x)).chunk(3, -1)
        x = x + functional.scaled_dot_product_attention(
            self._turn(query), self._turn(key), value, is_causal=True
        )
        logits: Tensor = self.head(functional.silu(x))
        return logits


class Encoder(nn.Module):
    """torch's encoder, whose attention is a composite function, with a causal mask."""

    def __init__(self, needs_weights: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 24, dropout=0.0, batch_first=True)
        self.extra = nn.MultiheadAttention(WIDTH, 2, batch_first=True) if needs_weights else None
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(input_ids.shape[1])
        x = self.tokens(input_ids)
        x = self.layer(x, mask.to(x), is_causal=True)
        if self.extra is not None:
            x = x + self.extra(x, x, x, attn_mask=mask.to(x))[0]
        logits: Tensor = self.head(x)
        return logits


MAKERS: dict[str, Callable[[], nn.Module]] = {
    "gpt2": gpt2,
    "llama": llama,
    "gpt": gpt,
    "modern": Modern,
    "encoder": Encoder,
    "attention with weights": lambda: Encoder(needs_weights=True),
}
CUTTABLE = ("gpt2", "llama", "gpt")


def sequences(packed: bool, kind: str) -> Dataset:
    """Make packed sequences, where all positions count, or padded ones with masks."""
    draws = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, VOCABULARY, (60, LENGTH + 1), generator=draws)
    inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].clone()
    if kind == "gpt":
        return dataset((inputs, labels), (inputs, labels))
    part = {"input_ids": inputs, "labels": labels}
    if not packed:
        lengths = torch.randint(2, LENGTH + 1, (60,), generator=draws)
        is_there = torch.arange(LENGTH) < lengths[:, None]
        part["labels"] = labels.masked_fill(~is_there, -100)
        if kind in ("gpt2", "llama"):
            part["attention_mask"] = is_there.long()
        else:
            part["input_ids"] = inputs.masked_fill(~is_there, 0)
    return dataset(part, part)


def setup_of(
    kind: str, packed: bool = True, double: bool = False, net: nn.Module | None = None, **local: Any
) -> Setup:
    torch.manual_seed(0)
    capacities = [1, 0.5] if kind in CUTTABLE else [1]
    values = {
        "task": {"name": "language"},
        "data": {"partition": "iid"},
        "clients": {"count": 7, "per_round": 7, "capacities": capacities},
        "local": {"lr": 0.05, "batch_size": 4, **local},
    }
    net = MAKERS[kind]() if net is None else net
    return prepare(parse(values), net.double() if double else net, sequences(packed, kind))


@pytest.fixture
def strict(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Turn warnings into errors, disable vmap's fallback, and forbid serial training."""
    _set_fallback(False)
    try:
        with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
            warnings.simplefilter("error")
            yield
    finally:
        _set_fallback(True)
    messages = [record.getMessage() for record in caplog.get_records("call")]
    assert not any("one client after another" in message for message in messages)


@pytest.mark.every(2)
@pytest.mark.slow
@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("kind", MAKERS)
def test_stacks_are_serial(kind: str, packed: bool) -> None:
    setup = setup_of(kind, packed, clip=0.5)
    assert_equal_updates(setup, TOLERANCE)


@pytest.mark.every(2)
@pytest.mark.slow
@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("kind", ["gpt2", "gpt", "modern", "encoder"])
@pytest.mark.parametrize(
    "local",
    [
        {"optimiser": "adamw", "lr": 0.01},
        {"optimiser": "adamw", "lr": 0.01, "clip": 0.1, "epochs": 2},
        {"momentum": 0.9, "weight_decay": 0.1, "steps": 5},
    ],
)
def test_stacks_are_serial_to_the_last_digits(kind: str, local: dict[str, Any]) -> None:
    """In double precision, as Adam turns any nearly zero gradient into a step."""
    assert_equal_updates(setup_of(kind, packed=False, double=True, **local), EXACT_TOLERANCE)


@pytest.mark.usefixtures("strict")
def test_adamw_in_single_precision() -> None:
    assert_equal_updates(setup_of("llama", optimiser="adamw", lr=1e-3), TOLERANCE)


@pytest.mark.slow
def test_mixed_precision_stays_near() -> None:
    exact, mixed = (setup_of("gpt2", precision=p) for p in ("float32", "bfloat16"))
    expected = updates(BatchedEngine(exact), exact)
    for client, update in updates(BatchedEngine(mixed), mixed).items():
        assert update.loss != expected[client].loss
        assert update.loss == pytest.approx(expected[client].loss, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("option", ["attn_pdrop", "resid_pdrop"])
def test_dropout_is_drawn_client_by_client(option: str, caplog: pytest.LogCaptureFixture) -> None:
    setup = setup_of("gpt2", net=gpt2(**{option: 0.2}))
    with caplog.at_level(logging.WARNING):
        assert_equal_updates(setup, 0.0)
    assert "one client after another" in caplog.text


def test_a_client_whose_targets_do_not_count_stays() -> None:
    data = sequences(packed=True, kind="gpt2")
    setup = setup_of("gpt2", steps=1, batch_size=0)
    labels = setup.clients.dataset.train.y
    labels[torch.from_numpy(setup.clients.indices(3))] = -100
    assert_equal_updates(setup)
    assert updates(BatchedEngine(setup), setup)[3].loss == 0
    assert int((data.train.y == -100).sum()) == 0


def test_the_padding_token_keeps_its_embedding() -> None:
    embedding = nn.Embedding(VOCABULARY, 6, padding_idx=0)
    net = nn.Sequential(embedding, nn.LayerNorm(6), nn.Flatten(), nn.Linear(6 * LENGTH, 4))
    sections = {
        "data": {"partition": "iid"},
        "clients": {"count": 4, "per_round": 4, "capacities": [1]},
        "local": {"lr": 0.5, "batch_size": 4, "absent_labels": "keep"},
    }
    setup = prepare(parse(sections), net, tiny_labelled_text())
    assert_equal_updates(setup)
    for update in updates(BatchedEngine(setup), setup).values():
        change = update.tensors["0.weight"] - embedding.weight
        assert torch.count_nonzero(change[0]) == 0
        assert torch.count_nonzero(change[1:]) > 0


CLIENTS = 3
fold_linear, fold_layer_norm = TORCH_KERNELS.linear, TORCH_KERNELS.layer_norm
fold_rms_norm, fold_embedding = TORCH_KERNELS.rms_norm, TORCH_KERNELS.embedding
fold_attention, fold_gelu = TORCH_KERNELS.attention, TORCH_KERNELS.activations["gelu_tanh"]


def numbers(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def assert_alike(
    fold: Callable[..., Tensor], one: Callable[..., Tensor], *tensors: Tensor | None
) -> None:
    """Check that outputs and gradients of ``fold`` equal those of ``one`` for every client."""
    out = fold(*tensors)
    apart = [None if t is None else t.unbind(0) for t in tensors]
    expected = torch.stack([one(*(None if a is None else a[i] for a in apart))
                            for i in range(CLIENTS)])  # fmt: skip
    assert out.shape == expected.shape
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    trained = [t for t in tensors if t is not None and t.requires_grad]
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)
    pairs = zip(
        torch.autograd.grad((out * weights).sum(), trained),
        torch.autograd.grad((expected * weights).sum(), trained),
        strict=True,
    )
    for gradient, reference in pairs:
        assert gradient.shape == reference.shape
        torch.testing.assert_close(gradient, reference, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lead", [(), (5,), (2, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(lead: Sequence[int], bias: bool) -> None:
    x, shift = numbers(CLIENTS, *lead, 4), numbers(CLIENTS, 6) if bias else None
    assert_alike(fold_linear, functional.linear, x, numbers(CLIENTS, 6, 4), shift)


def test_linear_with_inputs_first() -> None:
    def fold(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return fold_linear(x, weight, bias, inputs_first=True)

    tensors = numbers(CLIENTS, 6), numbers(CLIENTS, 5, 4), numbers(CLIENTS, 4, 6)
    assert_alike(fold, torch.addmm, *tensors)


@pytest.mark.parametrize("shape", [(4,), (2, 4)])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm(shape: tuple[int, ...], bias: bool) -> None:
    assert_alike(
        lambda x, w, b: fold_layer_norm(x, w, b, 1e-3),
        lambda x, w, b: functional.layer_norm(x, shape, w, b, 1e-3),
        numbers(CLIENTS, 5, *shape),
        numbers(CLIENTS, *shape),
        numbers(CLIENTS, *shape) if bias else None,
    )


def test_layer_norm_of_many_values() -> None:
    assert_alike(
        lambda x, w, b: fold_layer_norm(x, w, b, 1e-3),
        lambda x, w, b: functional.layer_norm(x, (64,), w, b, 1e-3),
        numbers(CLIENTS, 90, 64),
        numbers(CLIENTS, 64),
        numbers(CLIENTS, 64),
    )


@pytest.mark.parametrize("eps", [None, 1e-3])
def test_rms_norm(eps: float | None) -> None:
    assert_alike(
        lambda x, w: fold_rms_norm(x, w, eps),
        lambda x, w: functional.rms_norm(x, (4,), w, eps),
        numbers(CLIENTS, 2, 5, 4),
        numbers(CLIENTS, 4),
    )


@pytest.mark.parametrize("padding", [None, 1, -1])
def test_embedding_adds_up_the_rows_that_occur_again(padding: int | None) -> None:
    ids = torch.tensor([[[0, 1, 1], [2, 4, 1]], [[4, 4, 4], [4, 0, 1]], [[3, 2, 1], [0, 0, 0]]])
    assert_alike(
        lambda ids, table: fold_embedding(ids, table, padding),
        lambda ids, table: functional.embedding(ids, table, padding),
        ids,
        numbers(CLIENTS, 5, 2),
    )


@pytest.mark.parametrize("token", [5, -1])
def test_a_token_beyond_the_table_is_not_another_clients(token: int) -> None:
    ids = torch.tensor([[0], [token], [1]])
    with pytest.raises(IndexError, match="range"):
        fold_embedding(ids, numbers(CLIENTS, 5, 2), None)


@pytest.mark.parametrize("lead", [(), (2,), (2, 4), (2, 3, 4)])
@pytest.mark.parametrize("mask", ["none", "causal", "common", "apart", "short"])
def test_attention(lead: tuple[int, ...], mask: str) -> None:
    query, key, value = (numbers(CLIENTS, *lead, n, 4) for n in (5, 6, 6))
    options: dict[str, Any] = {"is_causal": mask == "causal", "scale": 0.3}
    lets_pass = torch.arange(30).view(5, 6) % 4 != 1
    if mask in ("none", "causal"):
        masks = None
    elif mask == "common":
        masks = lets_pass.expand(CLIENTS, *[1] * len(lead), 5, 6)
    elif mask == "short":
        masks = torch.stack([lets_pass, lets_pass.roll(1), lets_pass.roll(2)])
    else:
        every = torch.arange(CLIENTS * 4 * 30).view(CLIENTS, 4, 5, 6) % 5 != 1
        masks = every[:, : (lead or (1,))[-1]] if len(lead) > 1 else every[:, 0]
        masks = masks.view(CLIENTS, *[1] * (len(lead) + 3 - masks.dim()), *masks.shape[1:])
    assert_alike(
        lambda q, k, v, m: fold_attention(q, k, v, m[:1] if mask == "common" else m, **options),
        lambda q, k, v, m: functional.scaled_dot_product_attention(q, k, v, m, **options),
        query, key, value, masks,
    )  # fmt: skip


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_attention_of_small_heads(is_causal: bool, key_heads: int) -> None:
    options: dict[str, Any] = {"is_causal": is_causal, "enable_gqa": key_heads < 4}
    assert_alike(
        lambda q, k, v: fold_attention(q, k, v, None, **options),
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, **options),
        numbers(CLIENTS, 2, 4, 16, 4),
        numbers(CLIENTS, 2, key_heads, 16, 4),
        numbers(CLIENTS, 2, key_heads, 16, 3),
    )


def test_gelu() -> None:
    x = numbers(CLIENTS, 2, 5) * 4
    assert_alike(fold_gelu, lambda x: functional.gelu(x, approximate="tanh"), x)


def test_attention_with_fewer_keys_than_heads_and_common_keys() -> None:
    query, key = numbers(CLIENTS, 2, 4, 5, 3), numbers(CLIENTS, 2, 2, 5, 3)
    options: dict[str, Any] = {"enable_gqa": True}
    assert_alike(
        lambda q, k: fold_attention(q, k, k, None, **options),
        lambda q, k: functional.scaled_dot_product_attention(q, k, k, **options),
        query,
        key,
    )
    assert_alike(
        lambda q, k: fold_attention(q, k, k, None),
        functional_common_keys,
        numbers(CLIENTS, 2, 4, 5, 3),
        numbers(CLIENTS, 1, 4, 5, 3),
    )


def functional_common_keys(query: Tensor, key: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, key)
