"""The layers of torch that hold several dimensions in one size: no cut may make them differ.

The computation does not always say so. An attention whose heads together are narrower than its
input would be sound, and a cell that runs a single step never feeds its output back; but torch has
one number for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor, nn


class Part(NamedTuple):
    """A dimension of a tensor, made of a number of equal parts one after another."""

    tensor: Tensor
    dimension: int
    parts: int = 1


def alike_in_layers(module: nn.Module) -> Iterator[list[Part]]:
    """Dimensions whose parts must keep equal sizes, layer by layer.

    >>> [[(p.dimension, p.parts) for p in parts] for parts in alike_in_layers(nn.LSTMCell(2, 3))]
    [[(0, 4), (1, 1)]]
    """
    for layer in module.modules():
        if isinstance(layer, nn.MultiheadAttention):
            yield _attention(layer)
        elif isinstance(layer, nn.RNNCellBase):
            yield [Part(layer.weight_hh, 0, _gates(layer.weight_hh)), Part(layer.weight_hh, 1)]
        elif isinstance(layer, nn.RNNBase):
            yield from _recurrent(layer)


def _attention(layer: nn.MultiheadAttention) -> list[Part]:
    """One width for the queries read, for all heads together, and for the output."""
    output_parts = [Part(layer.out_proj.weight, 0), Part(layer.out_proj.weight, 1)]
    if layer._qkv_same_embed_dim:
        return [*output_parts, Part(layer.in_proj_weight, 0, 3), Part(layer.in_proj_weight, 1)]
    heads = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    return [*output_parts, Part(layer.q_proj_weight, 1), *(Part(weight, 0) for weight in heads)]


def _recurrent(layer: nn.RNNBase) -> Iterator[list[Part]]:
    """One hidden size for all layers and directions, and one size of what they give out."""
    parameters = dict(layer.named_parameters())
    recurrent = [p for name, p in parameters.items() if name.startswith("weight_hh")]
    gates = {"LSTM": 4, "GRU": 3}.get(layer.mode, 1)
    hidden_parts = [Part(weight, 0, gates) for weight in recurrent]
    output_parts = [Part(weight, 1) for weight in recurrent]
    if layer.proj_size:
        projections = [p for name, p in parameters.items() if name.startswith("weight_hr")]
        yield hidden_parts + [Part(weight, 1) for weight in projections]
        yield output_parts + [Part(weight, 0) for weight in projections]
    else:
        yield hidden_parts + output_parts


def _gates(weight: Tensor) -> int:
    return weight.shape[0] // weight.shape[1]
