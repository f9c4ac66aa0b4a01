"""Recurrent models, and gates without recurrence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.model.zoo.net import Entry, Inputs

VOCABULARY, STEPS, EMBEDDING, HIDDEN, CLASSES = 11, 5, 12, 16, 7


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
    """An LSTM cell stepped by hand, its state made from the batch."""

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
    """A gated linear unit: one projection holds the values and the gates."""

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


ENTRIES = (
    Entry("lstm", _on_ids(lambda: Recurrent(nn.LSTM, 2))),
    Entry("lstm-bidirectional", _on_ids(lambda: Recurrent(nn.LSTM, both_ways=True))),
    Entry("gru", _on_ids(lambda: Recurrent(nn.GRU, 2))),
    Entry("rnn", _on_ids(lambda: Recurrent(nn.RNN))),
    Entry("lstm-cell", _on_ids(CellLoop)),
    Entry("glu", lambda: (GatedLinear(), (torch.randn(2, 10),))),
)
