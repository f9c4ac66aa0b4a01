"""A step of a stack whose batch is computed in pieces, one after another, to save memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from submodel.engines.batched.stack import Share, as_numbers
from submodel.local.work import LocalWork
from submodel.model.inputs import Inputs, split_rows

Compute = Callable[[Inputs, Tensor], tuple[Tensor, Tensor | list[float]]]
"""Inputs and targets of shape (batch, clients, ...) -> the loss and the count of every client."""


def step_in_pieces(
    share: Share, x: Inputs, y: Tensor, compute: Compute, work: LocalWork, lr: float
) -> tuple[Tensor, list[float]]:
    """As `submodel.local.training.in_pieces`, for every client of a share."""
    size = -(-len(y) // work.pieces)
    totals = [0.0] * share.clients
    means = torch.zeros(share.clients, device=y.device)
    sums: list[Tensor | None] = [None] * len(share.parameters)
    for part_x, part_y in zip(split_rows(x, size), torch.split(y, size), strict=True):
        values, terms = compute(part_x, part_y)
        counts = as_numbers(terms)
        moving = [client for client, count in enumerate(counts) if count]
        if not moving:
            continue
        weights = values.new_tensor([counts[client] for client in moving])
        gradients = share.gradients((values[moving] * weights).sum())
        for place, gradient in enumerate(gradients):
            if gradient is not None:
                total = sums[place]
                sums[place] = gradient if total is None else total + gradient
        for client in moving:
            totals[client] += counts[client]
            step = counts[client] / totals[client]
            means[client] += (values[client].detach() - means[client]) * step
    still = [client for client, total in enumerate(totals) if not total]
    if len(still) < share.clients:
        share.move([_divide(total, totals) for total in sums], still, work, lr)
    return means, totals


def _divide(total: Tensor | None, counts: list[float]) -> Tensor | None:
    """Each client's rows over what its batch counts."""
    if total is None:
        return None
    divisor = total.new_tensor([count or 1.0 for count in counts])
    return (total.reshape(len(counts), -1) / divisor[:, None]).view(total.shape)
