"""Batches that are dictionaries: stacks train on them as one client after another does."""

from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from submodel.config import parse
from submodel.data import dataset
from submodel.prepare.setup import prepare
from tests.support.engines import EXACT_TOLERANCE, assert_equal_updates

VOCABULARY = 7


class Reader(nn.Module):
    """The mean of what the mask lets through, added to every token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 6)
        self.hidden, self.outputs = nn.Linear(6, 8), nn.Linear(8, VOCABULARY)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.tokens(input_ids)
        share = attention_mask.to(x.dtype).unsqueeze(-1)
        mean = (x * share).sum(1, keepdim=True) / (share.sum(1, keepdim=True) + 1)
        logits: Tensor = self.outputs(torch.tanh(self.hidden(x + mean)))
        return logits


@settings(
    deadline=None,
    max_examples=15,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    examples=st.integers(6, 30),
    length=st.integers(1, 6),
    clients=st.integers(2, 5),
    batch=st.integers(1, 5),
    padding=st.floats(0, 0.9),
    ignored=st.floats(0, 0.9),
    seed=st.integers(0, 2**31),
)
def test_named_inputs_in_stacks(
    caplog: pytest.LogCaptureFixture,
    examples: int,
    length: int,
    clients: int,
    batch: int,
    padding: float,
    ignored: float,
    seed: int,
) -> None:
    draws = torch.Generator().manual_seed(seed)
    shape = (examples, length)
    labels = torch.randint(VOCABULARY, shape, generator=draws)
    labels[torch.rand(shape, generator=draws) < ignored] = -100
    labels[:, 0] = labels[:, 0].clamp(min=0)  # everybody has something to learn
    part = {
        "input_ids": torch.randint(VOCABULARY, shape, generator=draws),
        "attention_mask": (torch.rand(shape, generator=draws) >= padding).long(),
        "labels": labels,
    }
    torch.manual_seed(seed)
    values = {
        "data": {"partition": "iid"},
        "clients": {"count": clients, "per_round": clients, "capacities": [1, 0.5]},
        "local": {"lr": 0.5, "batch_size": batch},
    }
    setup = prepare(parse(values), Reader().double(), dataset(part, part))
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert_equal_updates(setup, EXACT_TOLERANCE)
    assert "one client after another" not in caplog.text  # they are stacks
