"""Common small setups that train in milliseconds."""

from __future__ import annotations

from typing import Any

import torch

from submodel.algorithm.types import Setup
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.data import Dataset, dataset

torch.set_num_threads(1)


SCHEMES: dict[str, dict[str, Any]] = {
    "full": {"name": "full"},
    "static": {"name": "static"},
    "rolling": {"name": "rolling", "order": "shuffled"},
    "rolling-sequential": {"name": "rolling", "order": "sequential"},
    "random-bernoulli": {"name": "random", "sampling": "bernoulli"},
    "random-fixed": {"name": "random", "sampling": "fixed"},
}
RULES = ("selective", "fill_in")
WIDTHS = {"mlp": 16, "cnn": 8, "preresnet18": 4, "preresnet34": 2}


def tiny_images(count: int = 60, classes: int = 10) -> Dataset:
    """Make random 8 x 8 images with labels that depend on their brightness."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(count) % classes
    x = torch.randn(count, 1, 8, 8, generator=generator) + y.view(-1, 1, 1, 1) / 5
    return dataset((x, y), (x[: count // 2], y[: count // 2]))


def tiny_setup(
    model: str = "cnn", images: Dataset | None = None, width: int | None = None, **sections: Any
) -> Setup:
    """Make a setup of four clients on tiny images; keyword arguments are sections of the config."""
    config: dict[str, Any] = {
        "model": {"name": model, "width": width or WIDTHS[model]},
        "data": {"partition": "iid"},
        "clients": {"count": 4, "per_round": 4, "capacities": [1, 0.5, 0.25]},
        "local": {"lr": 0.05, "absent_labels": "keep"},
    }
    for name, section in sections.items():
        config[name] = {**config.get(name, {}), **section} if isinstance(section, dict) else section
    return prepare(parse(config), data=images or tiny_images())
