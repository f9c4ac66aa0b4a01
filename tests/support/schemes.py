"""Every scheme with the sections of a configuration that it needs; tests run over all."""

from __future__ import annotations

from typing import Any

Sections = dict[str, Any]
"""Sections of a configuration, by name."""

ONE_CLIENT: dict[str, Any] = {"count": 1, "per_round": 1, "capacities": [0.5]}
VARIANTS: dict[str, Sections] = {
    "full": {"scheme": {"name": "full"}},
    "static": {"scheme": {"name": "static"}},
    "rolling": {"scheme": {"name": "rolling", "order": "shuffled"}},
    "rolling-sequential": {"scheme": {"name": "rolling", "order": "sequential"}},
    "random": {"scheme": {"name": "random", "sampling": "bernoulli"}},
    "random-fixed": {"scheme": {"name": "random", "sampling": "fixed"}},
    "dropout": {"scheme": {"name": "dropout"}},
    "ordered": {"scheme": {"name": "ordered"}},
    "ordered-distilled": {"scheme": {"name": "ordered", "distill": 0.5}},
    "unbiased": {"scheme": {"name": "unbiased"}},
    "unbiased-fixed": {"scheme": {"name": "unbiased", "sampling": "fixed"}},
    "importance": {"scheme": {"name": "importance"}},
    "importance-global": {"scheme": {"name": "importance", "scope": "global"}},
    "partition": {
        "scheme": {"name": "partition"},
        "clients": {"per_round": 2, "capacities": [0.5]},
    },
    "hierarchical": {
        "scheme": {"name": "hierarchical", "cells": 2, "every": 2},
        "clients": {"capacities": [0.5]},
    },
    "pruned": {
        "scheme": {"name": "pruned", "every": 1, "granularity": "coordinate"},
        "clients": {"capacities": [0.5]},
    },
    "masked-sgd": {
        "scheme": {"name": "masked-sgd", "sequence": "rolling"},
        "clients": ONE_CLIENT,
        "data": {"partition": "iid"},
    },
    "masked-sgd-importance": {
        "scheme": {"name": "masked-sgd", "sequence": "importance"},
        "clients": ONE_CLIENT,
        "data": {"partition": "iid"},
    },
}
"""Sections of the configuration by test name of a scheme."""

GRANULARITIES: dict[str, tuple[str, ...]] = {
    "ordered": ("unit",),
    "ordered-distilled": ("unit",),
    "pruned": ("coordinate",),
}
"""Supported granularities of schemes that do not support both."""

AT_CAPACITY_ONE: dict[str, Sections] = {
    "partition": {"clients": {"per_round": 1}},  # a single client has everything
    "hierarchical": {"scheme": {"cells": 1, "every": 1}},
}
"""Additional settings by which a scheme equals FedAvg at capacity 1."""

CASES = [
    (name, granularity)
    for name in VARIANTS
    for granularity in GRANULARITIES.get(name, ("unit", "coordinate"))
]
UNIT_CASES = [name for name, granularity in CASES if granularity == "unit"]


def sections_of(name: str, granularity: str, *more: Sections) -> Sections:
    """Return the sections of a configuration for a test name."""
    return joined(VARIANTS[name], {"scheme": {"granularity": granularity}}, *more)


def joined(*parts: Sections) -> Sections:
    """Merge configurations section by section."""
    found: Sections = {}
    for part in parts:
        for name, section in part.items():
            found[name] = {**found.get(name, {}), **section}
    return found
