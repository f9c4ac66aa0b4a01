"""Layers for all clients at once: values and gradients are those of torch, client by client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from submodel.engines.batched.layers import TORCH_KERNELS

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
    """Outputs and gradients of ``fold`` are ``one``'s for every client."""
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
    with pytest.raises(IndexError, match="out of range"):
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
