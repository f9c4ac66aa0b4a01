"""All steps of the clients of a stack in a round, in one call of the kernels.

Batches, passes, the cross-entropy and SGD are computed client by client, so that a client's weights
stay in a core's cache from its first step to its last, with a single call from Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from submodel.algorithm.types import Setup, Task
from submodel.engines.batched.engine import StackedClient
from submodel.engines.batched.stack import Stack, StackedLoss, StackSlice
from submodel.engines.native.forward import NativeForward, StackView
from submodel.engines.native.library import LANES, TrainingPlan, TrainingTensor, load_library
from submodel.model.inputs import columns
from submodel.tasks.loss import LossSums
from submodel.tasks.optimisers import Sgd
from submodel.tasks.training import LocalWork, count_steps


class WholeTraining:
    """Trains stacks by the kernels alone, if all parts of a step are supported."""

    def __init__(self, forward: NativeForward, setup: Setup) -> None:
        self._forward = forward
        self._has_augmentation = bool(setup.augment)
        self._names = [n for n, p in setup.module.named_parameters() if p.requires_grad]
        self._images, self._labels = _images_and_labels(setup)
        self._gradients = torch.empty(0)

    def can_train(self, task: Task, loss: StackedLoss) -> bool:
        """Return whether clients with this task can be trained; depends on shapes and settings."""
        work = task.work
        if self._images is None or self._has_augmentation or task.scales or not loss.is_of_labels:
            return False
        if type(work.optimiser) is not Sgd or work.pieces > 1 or work.precision != "float32":
            return False
        rows = {name: len(t) for name, t in task.tensors.items() if t.dim()}
        return work.batch_size is not None and self._forward.is_for(rows, work.batch_size)

    def train(self, stack: Stack, clients: Sequence[StackedClient], loss: StackedLoss) -> LossSums:
        """Take all steps of all clients; return their losses."""
        loss_sums, work = LossSums(len(clients)), clients[0].task.work
        total = count_steps(clients[0].total, work)
        lengths = [tuple(map(len, client.batches)) for client in clients]
        for batch_lengths, numbers in groupby(range(len(clients)), key=lengths.__getitem__):
            members = list(numbers)
            start, stop = members[0], members[-1] + 1
            part, present = stack.select(start, stop), loss.present(start, stop)
            first = 0
            for batch, run in groupby(batch_lengths):
                steps = range(first, first + len(list(run)))
                first = steps.stop
                positions = np.stack(
                    [client.batches[steps.start : first] for client in clients[start:stop]]
                )
                rates = np.array([work.lr * work.rates.factor(s, total) for s in steps], np.float32)
                losses = self._take_steps(part, positions, rates, work, loss, present)
                for values in torch.from_numpy(losses).unbind(1):
                    loss_sums.add(values, [batch] * len(members), start)
        return loss_sums

    def _take_steps(
        self,
        part: StackSlice,
        positions: NDArray[np.int64],
        rates: NDArray[np.float32],
        work: LocalWork,
        loss: StackedLoss,
        present: Tensor | None,
    ) -> NDArray[np.float32]:
        """Take steps on batches of one size, at positions [client][step][example]: losses."""
        assert self._images is not None
        assert isinstance(work.optimiser, Sgd)
        clients, steps, batch = positions.shape
        view = StackView(part.tensors, self._forward.names, clients)
        net = self._forward.prepare(view, batch)
        buffers = self._forward.workspace.reserve(net, 1)
        targets, classes = self._labels[positions], 0
        if present is not None:
            classes = present.shape[1]
            pairs = zip(present.numpy(), targets, strict=True)
            targets = np.stack([np.searchsorted(own, labels) for own, labels in pairs])
            if targets.max() >= classes + loss.padding:
                raise IndexError("an example has a label that its client does not have")
        gathers = present is not None and classes != net.layout.outputs
        losses = np.empty((clients, steps), np.float32)
        training = TrainingPlan(
            steps=steps, images=self._images.data_ptr(), positions=positions.ctypes.data,
            targets=targets.ctypes.data,
            present=present.data_ptr() if gathers and present is not None else None,
            classes=classes, zeros=loss.padding,
            rates=rates.ctypes.data, losses=losses.ctypes.data,
            nesterov=work.optimiser.nesterov, momentum=work.optimiser.momentum,
            decay=work.optimiser.weight_decay, clip=work.clip or 0.0, smoothing=loss.smoothing,
        )  # fmt: skip
        sizes = [len(t) // clients * t.stride(0) for t in view.tensors]
        gradients = self._gradient_buffers(view.tensors, sizes)
        tensors = (TrainingTensor * len(sizes))(*self._training_tensors(part, sizes))
        net.plan.clients = clients
        load_library().train(
            net.ops, len(net.ops), ctypes.byref(net.plan), view.describe(gradients),
            tensors, len(sizes), ctypes.byref(training), *(buffer.data_ptr() for buffer in buffers),
        )  # fmt: skip
        return losses

    def _gradient_buffers(
        self, tensors: Sequence[Tensor], sizes: Sequence[int]
    ) -> list[Tensor | None]:
        """Memory for the gradients of one client, which the next client reuses."""
        starts = list(accumulate((-(-size // LANES) * LANES for size in sizes), initial=0))
        if len(self._gradients) < starts[-1] + LANES:
            self._gradients = torch.empty(starts[-1] + LANES)
        return [
            self._gradients[start:] if tensor.requires_grad else None
            for start, tensor in zip(starts, tensors, strict=False)
        ]

    def _training_tensors(self, part: StackSlice, sizes: Sequence[int]) -> Iterator[TrainingTensor]:
        """The momentum and mask of every tensor of the net."""
        numbers = {name: number for number, name in enumerate(self._names)}
        for name, size in zip(self._forward.names, sizes, strict=True):
            number, parameter = numbers.get(name), part.tensors[name]
            companions = [part.slots[0] if part.slots else (), part.masks]
            pointers = [
                None if number is None or not tensors else _pointer(tensors[number], parameter)
                for tensors in companions
            ]
            yield TrainingTensor(momentum=pointers[0], mask=pointers[1], size=size)


def _images_and_labels(setup: Setup) -> tuple[Tensor | None, NDArray[np.int64]]:
    """All examples for the kernels; None unless they are images with one label each."""
    examples, classes = setup.clients.dataset.train, setup.clients.dataset.classes
    images, labels = columns(examples.x), examples.y
    image = next(iter(images.values()))
    nothing = np.empty(0, np.int64)
    if len(images) > 1 or image.dtype != torch.float32 or labels.dtype != torch.int64:
        return None, nothing
    if labels.dim() != 1 or not len(labels) or classes is None:
        return None, nothing
    if int(labels.min()) < 0 or int(labels.max()) >= classes or not image.is_contiguous():
        return None, nothing
    return image, labels.numpy()


def _pointer(tensor: Tensor, like: Tensor) -> int:
    """The address of a tensor, which must have the same memory layout as another one."""
    strides = [
        [step for step, size in zip(t.stride(), t.shape, strict=True) if size > 1]
        for t in (tensor, like)
    ]
    assert tensor.shape == like.shape
    assert strides[0] == strides[1]
    return tensor.data_ptr()
