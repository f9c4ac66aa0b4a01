"""Attention, token-mixing and recurrent models written with torch alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.model.nets import Entry, Inputs

CLASSES = 7


class Attention(nn.Module):
    """Self-attention with one fused projection; its sizes are plain attributes, as usual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.head_size = width // heads
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Any:
        batch, tokens, _ = x.shape
        qkv = self.project(x).reshape(batch, tokens, 3, self.heads, self.head_size)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = functional.scaled_dot_product_attention(q, k, v)
        return self.out(attended.transpose(1, 2).flatten(2))


class VisionBlock(nn.Module):
    """Attention and a perceptron, each after a norm and with a learned scale per channel."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.scale1 = nn.Parameter(torch.ones(width))
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 40), nn.GELU(), nn.Linear(40, width))
        self.scale2 = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Any:
        x = x + self.scale1 * self.attention(self.norm1(x))
        return x + self.scale2 * self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Patches, a class token, learned positions, two blocks."""

    def __init__(self, width: int = 24, heads: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 5, width))
        self.blocks = nn.Sequential(*(VisionBlock(width, heads) for _ in range(2)))
        self.norm = nn.LayerNorm(width)
        self.classify = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        return self.classify(self.norm(self.blocks(x))[:, 0])


class MixerBlock(nn.Module):
    """A perceptron over the tokens, then one over the channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.over_tokens = nn.Sequential(nn.Linear(tokens, 10), nn.GELU(), nn.Linear(10, tokens))
        self.norm2 = nn.LayerNorm(width)
        self.over_channels = nn.Sequential(nn.Linear(width, 36), nn.GELU(), nn.Linear(36, width))

    def forward(self, x: Tensor) -> Any:
        x = x + self.over_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.over_channels(self.norm2(x))


class Mixer(nn.Module):
    """MLP-Mixer: patches, two blocks, the mean over the tokens."""

    def __init__(self, width: int = 20) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.blocks = nn.Sequential(*(MixerBlock(4, width) for _ in range(2)))
        self.norm = nn.LayerNorm(width)
        self.classify = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.classify(self.norm(self.blocks(x)).mean(1))


class MultiheadNet(nn.Module):
    """torch's own attention layer between a projection and a classifier, with a skip."""

    def __init__(self, width: int = 24, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(9, width)
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.classify = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        x = self.embed(x)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return self.classify(x.mean(1))


class EncoderNet(nn.Module):
    """torch's own encoder layers."""

    def __init__(self, width: int = 24, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(9, width)
        self.encoder = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(width, heads, 40, dropout=0.0, batch_first=True)
                for _ in range(2)
            )
        )
        self.classify = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.classify(self.encoder(self.embed(x)).mean(1))


class SequenceNet(nn.Module):
    """torch's own encoder and decoder, with a norm without weights before the classifier."""

    def __init__(self, width: int = 24, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(9, width)
        self.sequence = nn.Transformer(width, heads, 1, 1, 40, dropout=0.0, batch_first=True)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.classify = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        x = self.embed(x)
        return self.classify(self.norm(self.sequence(x, x[:, 1:])).mean(1))


ENTRIES = (
    Entry("vit", lambda: (VisionTransformer(), (torch.randn(2, 3, 8, 8),)), mixes=True),
    Entry("mixer", lambda: (Mixer(), (torch.randn(2, 3, 8, 8),)), mixes=True),
    Entry("multihead-attention", lambda: (MultiheadNet(), (torch.randn(2, 5, 9),)), mixes=True),
    Entry("encoder-layer", lambda: (EncoderNet(), (torch.randn(2, 5, 9),)), mixes=True),
    Entry("encoder-decoder", lambda: (SequenceNet(), (torch.randn(2, 5, 9),)), mixes=True),
)


VOCABULARY, STEPS, EMBEDDING, HIDDEN = 11, 5, 12, 16


class Recurrent(nn.Module):
    """Embed, recur, classify the last step."""

    def __init__(
        self, kind: type[nn.LSTM | nn.GRU | nn.RNN], layers: int = 1, *, both_ways: bool = False
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, EMBEDDING)
        self.recur = kind(
            EMBEDDING, HIDDEN, num_layers=layers, bidirectional=both_ways, batch_first=True
        )
        self.classify = nn.Linear(HIDDEN * (2 if both_ways else 1), CLASSES)

    def forward(self, ids: Tensor) -> Any:
        hidden, _ = self.recur(self.embed(ids))
        return self.classify(hidden[:, -1])


class CellLoop(nn.Module):
    """An LSTM cell in a loop, with its state made from the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, EMBEDDING)
        self.cell = nn.LSTMCell(EMBEDDING, HIDDEN)
        self.classify = nn.Linear(HIDDEN, CLASSES)

    def forward(self, ids: Tensor) -> Any:
        embedded = self.embed(ids)
        state = None
        for step in range(ids.shape[1]):
            state = self.cell(embedded[:, step], state)
        assert state is not None
        return self.classify(state[0])


class GatedLinear(nn.Module):
    """A gated linear unit with one projection for values and gates."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(10, 24)
        self.gated = nn.Linear(24, 2 * HIDDEN)
        self.classify = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Any:
        hidden = functional.glu(self.gated(torch.relu(self.stem(x))), dim=-1)
        return self.classify(hidden)


def _on_ids(make: Callable[[], nn.Module]) -> Callable[[], tuple[nn.Module, Inputs]]:
    return lambda: (make(), (torch.randint(VOCABULARY, (2, STEPS)),))


RECURRENT = (
    Entry("lstm", _on_ids(lambda: Recurrent(nn.LSTM, 2))),
    Entry("lstm-bidirectional", _on_ids(lambda: Recurrent(nn.LSTM, both_ways=True))),
    Entry("gru", _on_ids(lambda: Recurrent(nn.GRU, 2))),
    Entry("rnn", _on_ids(lambda: Recurrent(nn.RNN))),
    Entry("lstm-cell", _on_ids(CellLoop)),
    Entry("glu", lambda: (GatedLinear(), (torch.randn(2, 10),))),
)
