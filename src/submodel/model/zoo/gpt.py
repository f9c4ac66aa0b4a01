"""A small transformer for language: a decoder that tells the next token at every place."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from submodel.core.errors import ConfigError
from submodel.core.options import Count, Decay, Section
from submodel.model.zoo import ModelContext, allocating

_SPREAD = 0.02  # of initial weights, as GPT-2's


class CausalAttention(nn.Module):
    """Self-attention in which a place sees itself and those before it.

    Products are scaled by the full model's head size, in sub-models too: they compute what the full
    model does without the units that they lack.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_size = heads, width // heads
        self.scale = self.head_size**-0.5
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """From and to (batch, length, width)."""
        batch, length, _ = x.shape
        qkv = self.project(x).reshape(batch, length, 3, self.heads, self.head_size)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        values_by_head = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=self.scale
        )
        result: Tensor = self.out(values_by_head.transpose(1, 2).flatten(2))
        return result


class DecoderBlock(nn.Module):
    """Attention and a perceptron of four times the width, each behind a norm and beside a skip."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.dropout = _dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """From and to (batch, length, width)."""
        x = x + self.dropout(self.attention(self.norm1(x)))
        result: Tensor = x + self.dropout(self.mlp(self.norm2(x)))
        return result


class Decoder(nn.Module):
    """Token and learned position embeddings, blocks, a norm, and a head of its own weights.

    Args:
        length: the most tokens of a sequence.
        vocabulary: how many tokens there are.
        width: of the stream.
        layers: how many blocks.
        heads: of every attention; they divide the width.
        dropout: the share of values dropped in training, of embeddings and of what blocks add.

    >>> Decoder(length=8, vocabulary=29, width=16)(torch.zeros(2, 8, dtype=torch.long)).shape
    torch.Size([2, 8, 29])
    """

    def __init__(
        self,
        length: int,
        vocabulary: int,
        width: int = 128,
        layers: int = 4,
        heads: int = 4,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.empty(length, width))
        self.dropout = _dropout(dropout)
        self.blocks = nn.Sequential(*(DecoderBlock(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self._initialise(layers)

    def _initialise(self, layers: int) -> None:
        """As GPT-2: what adds to the stream is smaller, the more there is of it."""
        nn.init.normal_(self.positions, std=_SPREAD)
        for name, layer in self.named_modules():
            if isinstance(layer, nn.Linear | nn.Embedding):
                adds = name.endswith(("attention.out", "mlp.2"))
                nn.init.normal_(
                    layer.weight, std=_SPREAD / (2 * layers) ** 0.5 if adds else _SPREAD
                )
            if isinstance(layer, nn.Linear) and layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """From tokens (batch, length) to logits (batch, length, vocabulary)."""
        x = self.dropout(self.tokens(tokens) + self.positions[: tokens.shape[1]])
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def _dropout(share: float) -> nn.Module:
    return nn.Dropout(share) if share else nn.Identity()


class Gpt:
    """The net as a component."""

    class Options(Section):
        """The keys of ``gpt``."""

        width: Count = Field(128, description="of the stream; the MLPs are four times as wide")
        layers: Count = Field(4, description="blocks of attention and MLP")
        heads: Count = Field(4, description="of every attention; they divide the width")
        dropout: Decay = Field(
            0.0, description="share of values dropped in training; clients then train one by one"
        )

    @classmethod
    def configured(cls, options: Options, context: ModelContext) -> nn.Module:
        """For sequences of tokens, as long as the data's."""
        length, vocabulary = context.sequences("gpt")
        if options.width % options.heads:
            raise ConfigError(
                f"model.heads: {options.heads} heads do not divide the width {options.width}"
            )
        with allocating(options.width):
            return Decoder(
                length, vocabulary, options.width, options.layers, options.heads, options.dropout
            )
