"""The optimisers that a configuration can name."""

from __future__ import annotations

from typing import Any

from submodel.plugins import Kind, Offer

OPTIMISERS: Kind[Any] = Kind(
    noun="optimiser",
    key="local.optimiser",
    group="submodel.optimisers",
    offers={"sgd": Offer("submodel.local.sgd:Sgd", "with momentum, as torch's")},
)
