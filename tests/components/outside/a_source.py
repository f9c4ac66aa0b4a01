"""A data source as a plain function: two clouds of points."""

import torch

from submodel import Dataset, dataset


def clouds(distance: float = 1.0, examples: int = 48) -> Dataset:
    draws = torch.Generator().manual_seed(0)
    y = torch.arange(examples) % 2
    x = torch.randn(examples, 3, generator=draws) + distance * y.unsqueeze(1)
    return dataset((x, y), (x[:20], y[:20]))
