"""What a client does with its sub-model: K steps or E epochs on its own examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from submodel.data import Examples
from submodel.local.optimisers import Gradients
from submodel.local.work import LocalWork, Precision
from submodel.tasks.counting import Counted, LossBook
from submodel.tasks.loss import Loss

Step = Callable[[int, Tensor, Tensor], tuple[Tensor, Gradients]]
"""(number, inputs, targets) -> the loss, and its gradient for every trained parameter."""


def mixed(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """The context of a forward pass."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


@dataclass(frozen=True)
class LocalResult:
    """What training one sub-model came to."""

    loss: float  # the mean over all that counts in the batches
    processed: int  # examples, counted as often as they were used
    counted: float  # those that the loss is the mean of; parts of them where not all targets count


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training changes.

    >>> list(trained(nn.Linear(2, 1)))
    ['weight', 'bias']
    """
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def plain_step(module: nn.Module, work: LocalWork, loss: Loss) -> Step:
    """The loss of the module itself."""
    parameters = list(trained(module).values())

    def step(_number: int, x: Tensor, y: Tensor) -> tuple[Tensor, Gradients]:
        with mixed(x.device, work.precision):
            value = loss(module(x), y)
        return value.detach(), torch.autograd.grad(value, parameters, allow_unused=True)

    return step


def train(
    module: nn.Module,
    examples: Examples,
    order: Iterator[NDArray[np.int64]],
    work: LocalWork,
    loss: Loss,
    masks: Mapping[str, Tensor] | None = None,
    step: Step | None = None,
) -> LocalResult:
    """Train ``module`` in place: w <- w - eta m (.) grad f(m (.) w; xi), batch after batch.

    With ``masks``, w is masked when it arrives and only masked gradients are applied, so that
    m (.) w = w holds throughout and needs no further product. ``step`` replaces the gradient of
    the module's own loss by another; ``loss`` is then the one that it computes, to be asked what
    it is the mean of. A batch in which nothing counts is passed through the module, but is no step:
    weights are neither moved nor decayed, and what the optimiser keeps stays.
    """
    module.train()
    loss = loss if isinstance(loss, Counted) else Counted(loss)
    step = step or plain_step(module, work, loss)
    names, parameters = list(trained(module)), list(trained(module).values())
    masked = {i: masks[n].to(parameters[i]) for i, n in enumerate(names) if masks and n in masks}
    slots = work.optimiser.begin(parameters)
    book = LossBook()
    steps = processed = 0
    for positions in order:
        index = torch.from_numpy(positions).to(examples.x.device)
        value, found = step(steps, examples.x[index], examples.y[index])
        count = len(positions) if loss.last is None else loss.last
        if count:
            found = [
                g * masked[i] if g is not None and i in masked else g for i, g in enumerate(found)
            ]
            if work.clip is not None:
                found = clipped(found, work.clip)
            work.optimiser.step(parameters, found, slots, work.lr)
        book.add(value.reshape(1), [count])
        steps, processed = steps + 1, processed + len(positions)
        del found  # or they would still be there while the next ones are computed
    return LocalResult(book.means()[0], processed, book.counted[0])


def clipped(gradients: Gradients, largest: float, clients: int = 1) -> list[Tensor | None]:
    """Scale the gradient of each of ``clients`` (first dimension: clients x rows) to a norm.

    >>> clipped([torch.tensor([3.0, 4.0]), None], 1.0)
    [tensor([0.6000, 0.8000]), None]
    """
    apart = [None if g is None else g.reshape(clients, -1) for g in gradients]
    norms = [torch.linalg.vector_norm(g, dim=1) for g in apart if g is not None]
    total = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    factor = (largest / (total + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
    scaled = (None if g is None else g * factor[:, None] for g in apart)
    return [
        None if s is None or g is None else s.view(g.shape)
        for s, g in zip(scaled, gradients, strict=True)
    ]
