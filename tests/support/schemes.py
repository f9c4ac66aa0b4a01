"""Every scheme that can be named, with what it needs of a configuration: tests run over all."""

from __future__ import annotations

from typing import Any

Sections = dict[str, dict[str, Any]]

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
        "clients": {"per_round": 3, "capacities": ["1/3"]},
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
"""The ways in which tests name a scheme -> the sections of a configuration that it needs."""


def joined(*parts: Sections) -> Sections:
    """Configurations laid over each other, section by section."""
    found: Sections = {}
    for part in parts:
        for name, section in part.items():
            found[name] = {**found.get(name, {}), **section}
    return found
