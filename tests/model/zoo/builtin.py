"""The library's own models."""

from __future__ import annotations

import torch
from torch import nn

from submodel.model.zoo import make_model
from tests.model.zoo.net import Entry, Inputs


def _entry(name: str, inputs: tuple[int, ...], width: int) -> Entry:
    def factory() -> tuple[nn.Module, Inputs]:
        module = make_model(name, inputs, 5, width)
        return module, (torch.randn(4, *inputs),)

    # static batch norm has statistics to evaluate with only after a calibration; of a batch of two
    # single pixels, they would amplify every rounding error
    return Entry(f"builtin-{name}", factory, training=True)


def _gpt() -> tuple[nn.Module, Inputs]:
    module = make_model("gpt", (8,), 29, 16, layers=2, heads=2)
    return module, (torch.randint(29, (2, 8)),)


ENTRIES = (
    _entry("mlp", (1, 6, 6), 16),
    _entry("cnn", (1, 8, 8), 4),
    _entry("preresnet18", (3, 16, 16), 4),
    Entry("builtin-gpt", _gpt, mixes=True),
)
