"""A stack of clients: its tensors, losses, steps and results.

Clients stay independent: gradient norms and optimiser states are per client.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional

from submodel.algorithm.types import Setup, Task
from submodel.engines.batched.layers import TORCH_KERNELS, LayerKernels
from submodel.engines.device import move
from submodel.model.inputs import Inputs, split_rows
from submodel.tasks.loss import NO_LABEL, TokenCrossEntropy, flat_logits, smoothing_of, value_of
from submodel.tasks.optimisers import Gradients, Slots, name_slots, restore_slots
from submodel.tasks.training import LocalWork, clip_gradients


def widen(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Concatenate the clients' tensors along the first dimension; filters are channels-last.

    >>> widen([torch.zeros(2, 3), torch.ones(2, 3)], torch.device("cpu")).shape
    torch.Size([4, 3])
    """
    wide = torch.stack(list(tensors)) if tensors[0].dim() == 0 else torch.cat(list(tensors))
    wide = move(wide, device)
    return wide.contiguous(memory_format=torch.channels_last) if wide.dim() == 4 else wide


def as_numbers(counts: Tensor | list[float]) -> list[float]:
    """The counts of which losses are means, by client, as Python numbers.

    >>> as_numbers(torch.tensor([2.0, 1.0]))
    [2.0, 1.0]
    """
    numbers: list[float] = counts.tolist() if isinstance(counts, Tensor) else counts
    return numbers


Compute = Callable[[Inputs, Tensor], tuple[Tensor, Tensor | list[float]]]
"""Inputs and targets of shape (batch, clients, ...) -> loss and count of every client."""


@dataclass(frozen=True)
class StepOutcome:
    """The results of a step of a stack before weights change."""

    losses: Tensor  # of each client
    counts: Tensor | list[float]  # the number of terms in each mean
    gradients: Gradients  # of the sum of the losses

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors in it."""
        counts = [self.counts] if isinstance(self.counts, Tensor) else []
        return [self.losses, *counts, *(g for g in self.gradients if g is not None)]


@dataclass(frozen=True)
class StackSlice:
    """Several neighbouring clients of a stack, with views of its tensors."""

    clients: int
    tensors: dict[str, Tensor]
    parameters: list[Tensor]
    slots: Slots  # state of the optimiser
    client_slots: Sequence[Slots]  # of optimisers that need separate tensors per client
    masks: list[Tensor]  # empty without masks
    scales: dict[str, Tensor]  # of unbiased sub-models

    def effective_tensors(self) -> dict[str, Tensor]:
        """The tensors for computing: s (.) w if there are scales."""
        if not self.scales:
            return self.tensors
        return self.tensors | {n: self.tensors[n] * scale for n, scale in self.scales.items()}

    def outcome(self, losses: Tensor, counts: Tensor | list[float]) -> StepOutcome:
        """The outcome for these losses; clients are independent."""
        return StepOutcome(losses.detach(), counts, self.gradients(losses.sum()))

    def step(self, outcome: StepOutcome, work: LocalWork, lr: float) -> tuple[Tensor, list[float]]:
        """Take w <- w - eta m (.) grad of every client, as `tasks.training.train_module` does.

        Clients whose loss has no terms do not change. Return losses and counts.
        """
        counts = as_numbers(outcome.counts)
        still = [client for client, count in enumerate(counts) if not count]
        if len(still) < self.clients:
            self.move(outcome.gradients, still, work, lr)
        return outcome.losses, counts

    def gradients(self, total: Tensor) -> Gradients:
        """Gradients of the sum of the clients' losses."""
        return torch.autograd.grad(total, self.parameters, allow_unused=True)

    def move(self, gradients: Gradients, still: Sequence[int], work: LocalWork, lr: float) -> None:
        """Take the optimiser's step, except for the clients in ``still``."""
        if self.masks:
            gradients = [
                None if g is None else g * mask
                for g, mask in zip(gradients, self.masks, strict=True)
            ]
        if work.clip is not None:
            gradients = clip_gradients(gradients, work.clip, self.clients)
        if self.client_slots:
            for client in set(range(self.clients)) - set(still):
                parameters = [self._rows(p, client) for p in self.parameters]
                parts = [None if g is None else self._rows(g, client) for g in gradients]
                work.optimiser.step(parameters, parts, self.client_slots[client], lr)
            return
        still_parts = [
            self._rows(tensor, client)
            for tensor in (*self.parameters, *chain.from_iterable(self.slots))
            for client in still
        ]
        before = [part.clone() for part in still_parts]
        work.optimiser.step(self.parameters, gradients, self.slots, lr)
        for part, value in zip(still_parts, before, strict=True):
            part.copy_(value)

    def _rows(self, wide: Tensor, client: int) -> Tensor:
        """One client's part of a wide tensor."""
        rows = len(wide) // self.clients
        return wide.detach()[client * rows : (client + 1) * rows]


def step_in_pieces(
    part: StackSlice, x: Inputs, y: Tensor, compute: Compute, work: LocalWork, lr: float
) -> tuple[Tensor, list[float]]:
    """A step whose batch is computed in pieces, one after another, to save memory.

    It corresponds to `submodel.tasks.training.in_pieces` for several clients.
    """
    size = -(-len(y) // work.pieces)
    totals = [0.0] * part.clients
    means = torch.zeros(part.clients, device=y.device)
    sums: list[Tensor | None] = [None] * len(part.parameters)
    for part_x, part_y in zip(split_rows(x, size), torch.split(y, size), strict=True):
        values, terms = compute(part_x, part_y)
        counts = as_numbers(terms)
        moving = [client for client, count in enumerate(counts) if count]
        if not moving:
            continue
        weights = values.new_tensor([counts[client] for client in moving])
        gradients = part.gradients((values[moving] * weights).sum())
        for place, gradient in enumerate(gradients):
            if gradient is not None:
                total = sums[place]
                sums[place] = gradient if total is None else total + gradient
        for client in moving:
            totals[client] += counts[client]
            step = counts[client] / totals[client]
            means[client] += (values[client].detach() - means[client]) * step
    still = [client for client, total in enumerate(totals) if not total]
    if len(still) < part.clients:
        part.move([_divide(total, totals) for total in sums], still, work, lr)
    return means, totals


def _divide(total: Tensor | None, counts: list[float]) -> Tensor | None:
    """Divide each client's rows by the count of its batch."""
    if total is None:
        return None
    divisor = total.new_tensor([count or 1.0 for count in counts])
    return (total.reshape(len(counts), -1) / divisor[:, None]).view(total.shape)


class Stack:
    """Clients of equal shape; `select` returns those of a step, `unstack` the results."""

    def __init__(
        self,
        module: nn.Module,
        tasks: Sequence[Task],
        device: torch.device,
        shared_names: Collection[str] = (),
        local_names: Collection[str] = (),
    ) -> None:
        """Concatenate the tensors of the tasks.

        ``shared_names`` are names of tensors that are equal for all and not trained, of which one
        copy suffices. Buffers in ``local_names`` are cut with the others but not returned.
        """
        self._clients = len(tasks)
        self._shared_names = shared_names
        self._shapes = {name: tensor.shape for name, tensor in tasks[0].tensors.items()}
        trains = {name: p.requires_grad for name, p in module.named_parameters()}
        self._untrained_names = {name for name, does in trains.items() if not does}
        self._trainable = [name for name, does in trains.items() if does]
        self._tensors = {
            n: move(tasks[0].tensors[n], device)
            if n in shared_names
            else widen([t.tensors[n] for t in tasks], device)
            for n in self._shapes
        }
        local_parts = [_local_parts(module, task, local_names) for task in tasks]
        self._local = {n: widen([parts[n] for parts in local_parts], device) for n in local_names}
        optimiser, wide = tasks[0].work.optimiser, [self._tensors[n] for n in self._trainable]
        apart = getattr(optimiser, "whole_tensors", False)
        self._slots: Slots = [] if apart else optimiser.begin(wide)
        self._optimiser = optimiser
        self._keeps_slots = tasks[0].slots is not None
        if earlier := [task.slots for task in tasks if task.slots is not None]:
            by_name = dict(zip(self._trainable, wide, strict=True))
            wide_slots = {n: widen([s[n] for s in earlier], device) for n in earlier[0]}
            self._slots = restore_slots(optimiser, self._slots, by_name, wide_slots)
        self._client_slots: list[Slots] = [
            optimiser.begin([self._rows(tensor, client, client + 1) for tensor in wide])
            for client in range(self._clients if apart else 0)
        ]
        self._masks = self._widen_masks(tasks, device)
        self._scales = {
            name: widen([t.scales[name].expand_as(t.tensors[name]) for t in tasks], device)
            for name in tasks[0].scales
        }
        self._slices: dict[tuple[int, int], StackSlice] = {}

    def _widen_masks(self, tasks: Sequence[Task], device: torch.device) -> list[Tensor]:
        """The masks as factors; empty if no cut has masks."""
        cuts = {id(task.cut): task.cut for task in tasks}.values()  # clients may share cuts
        if all(cut.mask(name) is None for cut in cuts for name in self._trainable):
            return []

        def factor(task: Task, name: str) -> Tensor:
            mask, tensor = task.cut.mask(name), task.tensors[name]
            return torch.ones_like(tensor) if mask is None else mask.to(tensor)

        return [widen([factor(t, name) for t in tasks], device) for name in self._trainable]

    def select(self, start: int, stop: int) -> StackSlice:
        """The clients from ``start`` up to ``stop``."""
        if (start, stop) not in self._slices:
            tensors = {
                n: t if n in self._shared_names else self._rows(t, start, stop)
                for n, t in (self._tensors | self._local).items()
            }
            parameters = [tensors[n].detach().requires_grad_() for n in self._trainable]
            tensors |= dict(zip(self._trainable, parameters, strict=True))
            self._slices[start, stop] = StackSlice(
                stop - start,
                tensors,
                parameters,
                [[self._rows(t, start, stop) for t in slot] for slot in self._slots],
                self._client_slots[start:stop],
                [self._rows(t, start, stop) for t in self._masks],
                {n: self._rows(t, start, stop) for n, t in self._scales.items()},
            )
        return self._slices[start, stop]

    def _rows(self, wide: Tensor, start: int, stop: int) -> Tensor:
        rows = len(wide) // self._clients
        return wide[start * rows : stop * rows]

    def unstack(self) -> Iterator[dict[str, Tensor]]:
        """The trained tensors of every client, on the CPU."""
        apart = {
            name: wide.to("cpu").contiguous().view(self._clients, *self._shapes[name])
            for name, wide in self._tensors.items()
            if name not in self._untrained_names and name not in self._shared_names
        }
        for client in range(self._clients):
            yield {name: tensor[client] for name, tensor in apart.items()}

    def unstack_slots(self) -> Iterator[dict[str, Tensor] | None]:
        """The optimiser state of every client for its next task; None if it is not kept."""
        if not self._keeps_slots:
            yield from [None] * self._clients
            return
        by_name = {name: self._tensors[name] for name in self._trainable}
        shapes = self._shapes  # keys below are number/name of a parameter
        apart = {
            key: wide.to("cpu").contiguous().view(self._clients, *shapes[key.partition("/")[2]])
            for key, wide in name_slots(self._optimiser, self._slots, by_name).items()
        }
        for client in range(self._clients):
            yield {key: tensor[client] for key, tensor in apart.items()}


def _local_parts(module: nn.Module, task: Task, names: Collection[str]) -> Mapping[str, Tensor]:
    """A client's part of buffers that are never exchanged."""
    if task.local is not None:
        return task.local
    return {name: task.cut.part(name, module.get_buffer(name)) for name in names}


class StackedLoss:
    """The mean loss of every client over its batch, and the number of its terms.

    The cross-entropy of all clients' labels, or of all their tokens, is computed at once.
    ``padding`` is the number of absent classes that count with logits of zero.
    """

    def __init__(
        self,
        setup: Setup,
        tasks: Sequence[Task],
        device: torch.device,
        kernels: LayerKernels = TORCH_KERNELS,
    ) -> None:
        self._kernels = kernels
        self._loss, self.smoothing = setup.loss, smoothing_of(setup.loss)
        self._present: Tensor | None = None
        self.padding = 0
        classes = setup.clients.dataset.classes
        class_lists = [t.classes for t in tasks if t.classes is not None]
        if class_lists and classes is not None:
            self._present = torch.stack([torch.from_numpy(c) for c in class_lists]).to(device)
            if setup.absent_labels == "zero":
                self.padding = classes - self._present.shape[1]

    @property
    def is_own(self) -> bool:
        """Return whether the loss is built in and calls no function of the user."""
        return self.is_of_labels or type(self._loss) is TokenCrossEntropy

    @property
    def is_of_labels(self) -> bool:
        """Return whether it is the cross-entropy of one label per example."""
        return self._loss is functional.cross_entropy or self._present is not None

    def present(self, start: int, stop: int) -> Tensor | None:
        """The classes of neighbouring clients; None without lists of classes."""
        return None if self._present is None else self._present[start:stop]

    def __call__(
        self, outputs: Tensor, targets: Tensor, present: Tensor | None
    ) -> tuple[Tensor, Tensor | list[float]]:
        """Map outputs and targets of shape (batch, clients, ...) to a loss and count per client."""
        if present is not None:  # see `submodel.tasks.loss.MaskedCrossEntropy`
            if outputs.shape[2] != present.shape[1]:
                outputs = outputs.gather(2, present.expand(len(outputs), -1, -1))
            if self.padding:
                outputs = functional.pad(outputs, (0, self.padding))
            targets = torch.searchsorted(present, targets.t().contiguous()).t()
        elif type(self._loss) is TokenCrossEntropy:
            smoothing = self._loss.label_smoothing
            return _token_losses(outputs, targets, smoothing, self._kernels)
        elif (
            self._loss is not functional.cross_entropy
            or outputs.dim() != 3
            or targets.dim() != 2
            or targets.is_floating_point()
        ):
            apart = zip(outputs.unbind(1), targets.unbind(1), strict=True)
            values = [value_of(self._loss, o, t) for o, t in apart]
            return torch.stack([value.mean for value in values]), [value.count for value in values]
        flat = functional.cross_entropy(
            outputs.flatten(0, 1),
            targets.reshape(-1),
            reduction="none",
            label_smoothing=self.smoothing,
        )
        return flat.view(len(outputs), -1).mean(0), [len(outputs)] * outputs.shape[1]


def _token_losses(
    outputs: Tensor, targets: Tensor, smoothing: float, kernels: LayerKernels
) -> tuple[Tensor, Tensor]:
    """`TokenCrossEntropy` of every client, in one pass over the logits."""
    clients = targets.shape[1]
    rows, labels = flat_logits(
        outputs.transpose(0, 1).flatten(0, 1), targets.transpose(0, 1).flatten(0, 1)
    )
    flat = kernels.cross_entropy(rows, labels.long(), NO_LABEL, smoothing)
    terms = (labels != NO_LABEL).view(clients, -1).sum(1)
    return flat.view(clients, -1).sum(1) / terms.clamp(min=1), terms.to(torch.float64)
