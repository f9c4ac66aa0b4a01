"""Training of a client's sub-model: K steps or E epochs on its own examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from submodel.core.randomness import generator
from submodel.data import Examples
from submodel.model.inputs import Inputs, call, first_column, map_inputs, split_rows
from submodel.tasks.loss import CountingLoss, Loss, LossSums
from submodel.tasks.optimisers import Gradients, Optimiser, Sgd, name_slots, restore_slots
from submodel.tasks.schedule import Precision, StepRates


@dataclass(frozen=True)
class LocalWork:
    """Local training of a client in one round. Exactly one of ``epochs`` and ``steps`` is given."""

    lr: float
    epochs: int | None = 1
    steps: int | None = None
    batch_size: int | None = None  # None: all examples at once
    drop_last: bool = False  # leave out the last batch of a pass if it is smaller than the others
    optimiser: Optimiser = field(default_factory=Sgd)
    clip: float | None = None  # the largest norm of a gradient
    precision: Precision = "float32"
    pieces: int = 1  # number of parts in which a batch is computed: the same step, less memory
    rates: StepRates = field(default_factory=StepRates)  # factors of the steps of a round


def batch_length(total: int, work: LocalWork) -> int:
    """Return the number of examples per batch, except for the last of a pass."""
    return min(work.batch_size or total, total)


def batches_per_pass(total: int, work: LocalWork) -> int:
    """Return the number of batches in a pass over ``total`` examples: at least one.

    >>> work = LocalWork(lr=0.1, batch_size=3, drop_last=True)
    >>> [batches_per_pass(total, work) for total in (1, 2, 3, 7)]
    [1, 1, 1, 2]
    """
    size = batch_length(total, work)
    return total // size if work.drop_last else -(-total // size)


def count_steps(total: int, work: LocalWork) -> int:
    """Return the number of steps of a client with ``total`` examples in a round.

    >>> count_steps(7, LocalWork(lr=0.1, epochs=2, batch_size=3))
    6
    """
    return work.steps or (work.epochs or 0) * batches_per_pass(total, work)


def batches(
    total: int, work: LocalWork, seed: int, round_: int, client: int
) -> Iterator[NDArray[np.int64]]:
    """Yield the positions of every batch: pass after pass over the shuffled examples.

    >>> [len(b) for b in batches(7, LocalWork(lr=0.1, batch_size=3), 0, 0, 0)]
    [3, 3, 1]
    """
    size, step, epoch = batch_length(total, work), 0, 0
    stop = batches_per_pass(total, work) * size
    while work.steps is not None or epoch < (work.epochs or 0):
        order = generator(seed, "batches", round_, client, epoch).permutation(total)
        for start in range(0, stop, size):
            if step == work.steps:
                return
            yield order[start : start + size]
            step += 1
        epoch += 1


Step = Callable[[int, Inputs, Tensor], tuple[Tensor, Gradients]]
"""(number, inputs, targets) -> the loss, and its gradient for every trained parameter."""


def forward_context(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """Return a context in which forward passes have this precision."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


@dataclass(frozen=True)
class LocalResult:
    """The result of training one sub-model."""

    loss: float  # the mean over all targets that count in the batches
    examples_used: int  # with repetitions
    examples_counted: float  # examples that the loss averages; a fraction if not all targets count
    slots: Mapping[str, Tensor] | None = None  # final state of the optimiser, if it is kept


def trainable_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that training changes.

    >>> list(trainable_parameters(nn.Linear(2, 1)))
    ['weight', 'bias']
    """
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def plain_step(module: nn.Module, work: LocalWork, loss: Loss) -> Step:
    """Return the step with the loss of the module itself."""
    parameters = list(trainable_parameters(module).values())

    def step(_number: int, x: Inputs, y: Tensor) -> tuple[Tensor, Gradients]:
        with forward_context(y.device, work.precision):
            value = loss(call(module, x), y)
        return value.detach(), torch.autograd.grad(value, parameters, allow_unused=True)

    return step


def in_pieces(step: Step, loss: CountingLoss, pieces: int) -> Step:
    """Return a step that computes a batch in pieces, each weighted by its counted terms.

    Gradient and loss equal those of the whole batch, except for the order of floating-point sums;
    norms over the batch are computed per piece.
    """

    def combine(number: int, x: Inputs, y: Tensor) -> tuple[Tensor, Gradients]:
        size = -(-len(y) // pieces)
        total, mean = 0.0, torch.zeros((), device=y.device)
        sums: list[Tensor | None] = []
        for part_x, part_y in zip(split_rows(x, size), torch.split(y, size), strict=True):
            value, gradients = step(number, part_x, part_y)
            count = len(part_y) if loss.last is None else loss.last
            if not count:
                continue
            total += count
            mean = mean + (value - mean) * (count / total)
            weighted_gradients = [None if g is None else g * count for g in gradients]
            sums = (
                [_add(*pair) for pair in zip(sums, weighted_gradients, strict=True)]
                if sums
                else weighted_gradients
            )
        loss.last = total
        return mean, [None if g is None else g / total for g in sums]

    return combine


def _add(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    if first is None or second is None:
        return second if first is None else first
    return first + second


def train_module(
    module: nn.Module,
    examples: Examples,
    order: Iterator[NDArray[np.int64]],
    work: LocalWork,
    loss: Loss,
    masks: Mapping[str, Tensor] | None = None,
    step: Step | None = None,
    augment: Callable[[Tensor, int], Tensor] | None = None,
    earlier: Mapping[str, Tensor] | None = None,
) -> LocalResult:
    """Train ``module`` in place: w <- w - eta m (.) grad f(m (.) w; xi), batch after batch.

    With ``masks``, w is masked on arrival and only masked gradients are applied, so that m (.) w =
    w holds throughout and needs no further product. ``step`` replaces the gradient of the module's
    own loss; ``loss`` is then the loss that it computes, for the number of averaged terms. A batch
    in which no target counts is passed through the module, but takes no step: weights are neither
    moved nor decayed, and the state of the optimiser stays. ``augment`` changes the inputs of a
    step, given its number. ``earlier`` is the state of the optimiser from an earlier round; the
    final state is then part of the result.
    """
    module.train()
    loss = loss if isinstance(loss, CountingLoss) else CountingLoss(loss)
    step = step or plain_step(module, work, loss)
    if work.pieces > 1:
        step = in_pieces(step, loss, work.pieces)
    by_name = trainable_parameters(module)
    parameters = list(by_name.values())
    mask_at = {
        i: masks[n].to(p) for i, (n, p) in enumerate(by_name.items()) if masks and n in masks
    }
    slots = work.optimiser.begin(parameters)
    if earlier is not None:
        slots = restore_slots(work.optimiser, slots, by_name, earlier)
    total_steps = count_steps(len(examples), work)
    device = parameters[0].device if parameters else examples.y.device
    loss_sums = LossSums()
    steps = examples_used = 0
    for positions in order:
        batch = examples.take(torch.from_numpy(positions).to(examples.y.device))
        if batch.y.device != device:  # examples are too large to be kept there
            batch = Examples(map_inputs(lambda t: t.to(device), batch.x), batch.y.to(device))
        x = batch.x if augment is None else augment(first_column(batch.x), steps)
        value, gradients = step(steps, x, batch.y)
        count = len(positions) if loss.last is None else loss.last
        if count:
            gradients = [
                g * mask_at[i] if g is not None and i in mask_at else g
                for i, g in enumerate(gradients)
            ]
            if work.clip is not None:
                gradients = clip_gradients(gradients, work.clip)
            lr = work.lr * work.rates.factor(steps, total_steps)
            work.optimiser.step(parameters, gradients, slots, lr)
        loss_sums.add(value.reshape(1), [count])
        steps, examples_used = steps + 1, examples_used + len(positions)
        del gradients  # free them before the next ones are computed
    kept_slots = None if earlier is None else name_slots(work.optimiser, slots, by_name)
    return LocalResult(loss_sums.means()[0], examples_used, loss_sums.counts[0], kept_slots)


def clip_gradients(gradients: Gradients, largest: float, clients: int = 1) -> list[Tensor | None]:
    """Scale the gradient of each of ``clients`` (first dimension: clients x rows) to a norm.

    >>> clip_gradients([torch.tensor([3.0, 4.0]), None], 1.0)
    [tensor([0.6000, 0.8000]), None]
    """
    rows = [None if g is None else g.reshape(clients, -1) for g in gradients]
    norms = [torch.linalg.vector_norm(g, dim=1) for g in rows if g is not None]
    total = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    factor = (largest / (total + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
    scaled_rows = (None if g is None else g * factor[:, None] for g in rows)
    return [
        None if s is None or g is None else s.view(g.shape)
        for s, g in zip(scaled_rows, gradients, strict=True)
    ]
