"""Capacity as rank: of the axes of a low-rank model only the ranks are cut."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from submodel.model.axes import CLASSES, Axes
from submodel.model.axes.layout import Along
from submodel.model.zoo.adapters import adapters_of, factor_pairs


def only_ranks(module: nn.Module, axes: Axes) -> Axes:
    """The axes of a factorised or adapted module, all but its ranks kept whole: capacity is rank.

    Args:
        module: what `factorised` or `add_adapters` returned.
        axes: all of its axes.

    >>> import torch
    >>> from submodel.model.axes import trace
    >>> from submodel.model.zoo import factorised
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.Linear(6, 2))
    >>> low = factorised(net)
    >>> only_ranks(low, trace(low, torch.ones(1, 4))).cut_by_capacity
    {'2.down': 6}
    """
    ranks = set()
    for pair in factor_pairs(module):
        layouts = axes.layouts.get(pair.down)
        if layouts is not None and isinstance(layouts[0], Along):
            ranks.add(layouts[0].axis)
    others = [axis for axis in axes.sizes if axis not in ranks and axis != CLASSES]
    kind = "model with adapters" if adapters_of(module) else "factorised model"
    why = f"of a {kind} only ranks are cut"
    return replace(axes, kept_whole=dict.fromkeys(others, why) | dict(axes.kept_whole))
