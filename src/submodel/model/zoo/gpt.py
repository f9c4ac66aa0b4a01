"""A small language model: a transformer decoder that predicts the next token at every position."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from submodel.core.errors import ConfigError
from submodel.core.options import Count, Decay, Section
from submodel.model.zoo import ModelContext, allocating

_SPREAD = 0.02  # standard deviation of initial weights, as in GPT-2


class CausalAttention(nn.Module):
    """Self-attention in which a position sees itself and earlier positions.

    Products are scaled by the full model's head size, in sub-models too: a sub-model computes the
    full model with the dropped units zeroed.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_size = heads, width // heads
        self.scale = self.head_size**-0.5
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Compute self-attention, (batch, length, width) to the same shape."""
        batch, length, _ = x.shape
        qkv = self.project(x).reshape(batch, length, 3, self.heads, self.head_size)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        values_by_head = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=self.scale
        )
        result: Tensor = self.out(values_by_head.transpose(1, 2).flatten(2))
        return result


class DecoderBlock(nn.Module):
    """Attention and an MLP of four times the width, each with a norm and a skip connection."""

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
        """Compute the block, (batch, length, width) to the same shape."""
        x = x + self.dropout(self.attention(self.norm1(x)))
        result: Tensor = x + self.dropout(self.mlp(self.norm2(x)))
        return result


class Decoder(nn.Module):
    """Token and learned position embeddings, blocks, a norm, and an untied head.

    Args:
        length: the largest number of tokens in a sequence.
        vocabulary: the number of tokens.
        width: the width of the residual stream.
        layers: the number of blocks.
        heads: the heads of every attention; they divide the width.
        dropout: the fraction of values dropped in training, of embeddings and of block outputs.

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
        """Initialise as GPT-2: projections onto the stream are scaled by 1 / sqrt(2 layers)."""
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
        """Map tokens (batch, length) to logits (batch, length, vocabulary)."""
        x = self.dropout(self.tokens(tokens) + self.positions[: tokens.shape[1]])
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def _dropout(share: float) -> nn.Module:
    return nn.Dropout(share) if share else nn.Identity()


class Gpt:
    """The component of ``gpt``."""

    class Options(Section):
        """The keys of ``gpt``."""

        width: Count = Field(
            128, description="width of the residual stream; the MLPs are four times as wide"
        )
        layers: Count = Field(4, description="blocks of attention and MLP")
        heads: Count = Field(4, description="heads of every attention; they divide the width")
        dropout: Decay = Field(
            0.0, description="fraction of values dropped in training; clients then train one by one"
        )

    @classmethod
    def configured(cls, options: Options, context: ModelContext) -> nn.Module:
        """Make the net for sequences of tokens of the data's length."""
        length, vocabulary = context.sequences("gpt")
        if options.width % options.heads:
            raise ConfigError(
                f"model.heads: {options.heads} heads do not divide the width {options.width}"
            )
        with allocating(options.width):
            return Decoder(
                length, vocabulary, options.width, options.layers, options.heads, options.dropout
            )
