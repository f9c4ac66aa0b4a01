"""What a client does with its sub-model: K steps or E epochs of SGD on its own examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from submodel.counting import Counted, LossBook
from submodel.data import Examples
from submodel.randomness import generator

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> the mean loss over the batch.

Where not all examples count alike, ``loss.count(targets)``, if it has that, tells how many terms it
is the mean of (`submodel.counting`)."""
Gradients = Sequence[Tensor | None]
Step = Callable[[int, Tensor, Tensor], tuple[Tensor, Gradients]]
"""(number, inputs, targets) -> the loss, and its gradient for every trained parameter."""
Precision = Literal["float32", "bfloat16"]
"""Of products and convolutions; weights, sums and everything exchanged stay as they are."""
AbsentLabels = Literal["keep", "zero", "leave_out"]


@dataclass(frozen=True)
class LocalWork:
    """How a client trains in one round. Exactly one of ``epochs`` and ``steps`` is given."""

    lr: float
    epochs: int | None = 1
    steps: int | None = None
    batch_size: int | None = None  # None: all examples at once
    drop_last: bool = False  # leave out a pass's last batch where it is smaller than the others
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None  # the largest norm of a gradient
    precision: Precision = "float32"
    widths: tuple[float, ...] = ()  # ascending; each step draws one of them (`submodel.nested`)
    distill: float = 0.0  # the weight of what narrower widths learn from the widest


@dataclass(frozen=True)
class Schedule:
    """The learning rate as a function of the round."""

    name: Literal["constant", "step", "cosine"] = "constant"
    milestones: tuple[int, ...] = ()
    decay: float = 0.1
    rounds: int = 1

    def factor(self, round_: int) -> float:
        """What the learning rate is multiplied with.

        >>> Schedule("step", milestones=(10, 20), decay=0.1).factor(15)
        0.1
        """
        if self.name == "step":
            return self.decay ** sum(round_ >= m for m in self.milestones)
        if self.name == "cosine":
            return 0.5 * (1 + math.cos(math.pi * round_ / self.rounds))
        return 1.0


def batch_length(total: int, work: LocalWork) -> int:
    """How many examples a client's batches have, but for the last of a pass."""
    return min(work.batch_size or total, total)


def batches_per_pass(total: int, work: LocalWork) -> int:
    """How many batches a pass over so many examples has: at least one.

    >>> work = LocalWork(lr=0.1, batch_size=3, drop_last=True)
    >>> [batches_per_pass(total, work) for total in (1, 2, 3, 7)]
    [1, 1, 1, 2]
    """
    size = batch_length(total, work)
    return total // size if work.drop_last else -(-total // size)


def batches(
    total: int, work: LocalWork, seed: int, round_: int, client: int
) -> Iterator[NDArray[np.int64]]:
    """The positions of every batch: pass after pass over the shuffled examples.

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


class MaskedCrossEntropy:
    """Cross-entropy for a client that lacks some labels.

    ``zero`` sets the absent logits to zero, as HeteroFL and FedRolex do: they still count in the
    softmax. ``leave_out`` takes them out of it. Works on the logits of all classes or, where the
    classifier's rows are cut, on those that are left.

    >>> loss = MaskedCrossEntropy(torch.tensor([2, 5]), classes=10, absent="leave_out")
    >>> round(float(loss(torch.zeros(1, 10), torch.tensor([5]))), 4) == round(math.log(2), 4)
    True
    """

    def __init__(self, present: Tensor, classes: int, absent: AbsentLabels) -> None:
        self.present = present
        self.padding = classes - len(present) if absent == "zero" else 0

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean over the batch."""
        return functional.cross_entropy(
            self.logits(logits), torch.searchsorted(self.present, targets)
        )

    def count(self, targets: Tensor) -> int:
        """Every example."""
        return len(targets)

    def logits(self, logits: Tensor) -> Tensor:
        """Those that enter the softmax."""
        if logits.shape[1] != len(self.present):
            logits = logits[:, self.present]
        return functional.pad(logits, (0, self.padding)) if self.padding else logits


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
    weights are neither moved nor decayed, momenta stay.
    """
    module.train()
    loss = loss if isinstance(loss, Counted) else Counted(loss)
    step = step or plain_step(module, work, loss)
    names, parameters = list(trained(module)), list(trained(module).values())
    masked = {i: masks[n].to(parameters[i]) for i, n in enumerate(names) if masks and n in masks}
    momenta = [torch.zeros_like(p) for p in parameters] if work.momentum else []
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
            sgd(parameters, found, momenta, work)
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


@torch.no_grad()
def sgd(
    parameters: Sequence[Tensor], found: Gradients, momenta: Sequence[Tensor], work: LocalWork
) -> None:
    """One step of SGD, as `torch.optim.SGD` takes it, with a fraction of its overhead.

    ``momenta`` begin as zeros; empty without momentum. A parameter without gradient stays.
    """
    used = [i for i, gradient in enumerate(found) if gradient is not None]
    gradients = [gradient for gradient in found if gradient is not None]
    moved = [parameters[i] for i in used]
    if work.weight_decay:
        gradients = list(torch._foreach_add(gradients, moved, alpha=work.weight_decay))
    if momenta:
        kept = [momenta[i] for i in used]
        torch._foreach_mul_(kept, work.momentum)
        torch._foreach_add_(kept, gradients)
        gradients = kept
    torch._foreach_add_(moved, gradients, alpha=-work.lr)
