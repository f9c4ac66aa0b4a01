"""The embedding of a padding token is not trained, on either local engine."""

from __future__ import annotations

import torch
from torch import nn

from submodel.config import parse
from submodel.engines.batched.engine import BatchedEngine
from submodel.prepare.setup import prepare
from tests.support.engines import assert_equal_updates, updates
from tests.support.tokens import LENGTH, VOCABULARY, tiny_labelled_text


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
