"""The tensors of a stack of clients: loading them, one step, unloading them.

Everything here keeps clients apart: gradient norms and what optimisers keep are per client.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from submodel.algorithm.types import Task
from submodel.engines.device import move
from submodel.local.optimisers import Gradients, Slots
from submodel.local.slots import name_slots, restore_slots
from submodel.local.training import clip_gradients
from submodel.local.work import LocalWork


def widen(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Put the clients' tensors below each other; filters channels-last, as the kernels want them.

    >>> widen([torch.zeros(2, 3), torch.ones(2, 3)], torch.device("cpu")).shape
    torch.Size([4, 3])
    """
    wide = torch.stack(list(tensors)) if tensors[0].dim() == 0 else torch.cat(list(tensors))
    wide = move(wide, device)
    return wide.contiguous(memory_format=torch.channels_last) if wide.dim() == 4 else wide


def as_numbers(counts: Tensor | list[float]) -> list[float]:
    """What losses are means of, client by client.

    >>> as_numbers(torch.tensor([2.0, 1.0]))
    [2.0, 1.0]
    """
    numbers: list[float] = counts.tolist() if isinstance(counts, Tensor) else counts
    return numbers


@dataclass(frozen=True)
class StepOutcome:
    """What a step of a stack computes before weights move."""

    losses: Tensor  # of each client
    counts: Tensor | list[float]  # what each is the mean of
    gradients: Gradients  # of their sum

    @property
    def tensors(self) -> list[Tensor]:
        """Everything in it that is a tensor."""
        counts = [self.counts] if isinstance(self.counts, Tensor) else []
        return [self.losses, *counts, *(g for g in self.gradients if g is not None)]


@dataclass(frozen=True)
class Share:
    """Some neighbouring clients of a stack: views of its tensors."""

    clients: int
    tensors: dict[str, Tensor]
    parameters: list[Tensor]
    slots: Slots  # what the optimiser keeps
    client_slots: Sequence[Slots]  # of optimisers that need a client's tensors by themselves
    masks: list[Tensor]  # empty without masks
    scales: dict[str, Tensor]  # of unbiased sub-models

    def effective_tensors(self) -> dict[str, Tensor]:
        """The tensors that clients compute with: s (.) w where there are scales."""
        if not self.scales:
            return self.tensors
        return self.tensors | {n: self.tensors[n] * scale for n, scale in self.scales.items()}

    def outcome(self, losses: Tensor, counts: Tensor | list[float]) -> StepOutcome:
        """What the losses of the clients come to; they are each other's business in no way."""
        return StepOutcome(losses.detach(), counts, self.gradients(losses.sum()))

    def step(self, outcome: StepOutcome, work: LocalWork, lr: float) -> tuple[Tensor, list[float]]:
        """Take w <- w - eta m (.) grad of every client, as `local.training.train_module` does it.

        Clients whose losses count nothing stay as they are. Losses and counts are returned.
        """
        counts = as_numbers(outcome.counts)
        still = [client for client, count in enumerate(counts) if not count]
        if len(still) < self.clients:
            self.move(outcome.gradients, still, work, lr)
        return outcome.losses, counts

    def gradients(self, total: Tensor) -> Gradients:
        """Of the sum of the clients' losses."""
        return torch.autograd.grad(total, self.parameters, allow_unused=True)

    def move(self, gradients: Gradients, still: Sequence[int], work: LocalWork, lr: float) -> None:
        """Take the optimiser's step along the gradients, but for those who stay as they are."""
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


class Stack:
    """Clients of equal shape; `share` gives those of a step, `unstack` the results."""

    def __init__(
        self,
        module: nn.Module,
        tasks: Sequence[Task],
        device: torch.device,
        shared_names: Collection[str] = (),
        local_names: Collection[str] = (),
    ) -> None:
        """How the tensors of a stack lie.

        Args:
            module: the whole one.
            tasks: of the clients, in their order.
            device: where they are trained.
            shared_names: tensors that are the same for all, and not trained: one copy does.
            local_names: buffers that are cut with the others, but stay where they are.
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
        self._shares: dict[tuple[int, int], Share] = {}

    def _widen_masks(self, tasks: Sequence[Task], device: torch.device) -> list[Tensor]:
        """The masks as factors; none at all where the tensors themselves are smaller."""
        cuts = {id(task.cut): task.cut for task in tasks}.values()  # many clients may have one
        if all(cut.mask(name) is None for cut in cuts for name in self._trainable):
            return []

        def factor(task: Task, name: str) -> Tensor:
            mask, tensor = task.cut.mask(name), task.tensors[name]
            return torch.ones_like(tensor) if mask is None else mask.to(tensor)

        return [widen([factor(t, name) for t in tasks], device) for name in self._trainable]

    def share(self, start: int, stop: int) -> Share:
        """The clients from ``start`` up to ``stop``."""
        if (start, stop) not in self._shares:
            tensors = {
                n: t if n in self._shared_names else self._rows(t, start, stop)
                for n, t in (self._tensors | self._local).items()
            }
            parameters = [tensors[n].detach().requires_grad_() for n in self._trainable]
            tensors |= dict(zip(self._trainable, parameters, strict=True))
            self._shares[start, stop] = Share(
                stop - start,
                tensors,
                parameters,
                [[self._rows(t, start, stop) for t in slot] for slot in self._slots],
                self._client_slots[start:stop],
                [self._rows(t, start, stop) for t in self._masks],
                {n: self._rows(t, start, stop) for n, t in self._scales.items()},
            )
        return self._shares[start, stop]

    def _rows(self, wide: Tensor, start: int, stop: int) -> Tensor:
        rows = len(wide) // self._clients
        return wide[start * rows : stop * rows]

    def unstack(self) -> Iterator[dict[str, Tensor]]:
        """Every client's tensors, on the CPU; those that are not trained stay where they are."""
        apart = {
            name: wide.to("cpu").contiguous().view(self._clients, *self._shapes[name])
            for name, wide in self._tensors.items()
            if name not in self._untrained_names and name not in self._shared_names
        }
        for client in range(self._clients):
            yield {name: tensor[client] for name, tensor in apart.items()}

    def unstack_slots(self) -> Iterator[dict[str, Tensor] | None]:
        """What every client's optimiser is to go on with; None: it begins afresh."""
        if not self._keeps_slots:
            yield from [None] * self._clients
            return
        by_name = {name: self._tensors[name] for name in self._trainable}
        apart = {
            key: wide.to("cpu").contiguous().view(self._clients, *self._shapes[_parameter(key)])
            for key, wide in name_slots(self._optimiser, self._slots, by_name).items()
        }
        for client in range(self._clients):
            yield {key: tensor[client] for key, tensor in apart.items()}


def _local_parts(module: nn.Module, task: Task, names: Collection[str]) -> Mapping[str, Tensor]:
    """A client's part of buffers that are never exchanged."""
    if task.local is not None:
        return task.local
    return {name: task.cut.part(name, module.get_buffer(name)) for name in names}


def _parameter(key: str) -> str:
    """The parameter of a slot, by number and name."""
    return key.partition("/")[2]
