"""Tasks of a round for other contenders, cut by our code and trained by plain PyTorch.

The code is optimised: images are in memory in channels-last order, modules are made beforehand, and
merging uses sums and counts per coordinate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from submodel.algorithm.dispatch import cut_of
from submodel.algorithm.rounds import plan
from submodel.algorithm.types import Setup
from submodel.model.build import build_module
from submodel.model.cut import Cut
from submodel.tasks.training import batches

Tensors = Mapping[str, Tensor]
Shapes = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Job:
    """A client in a round."""

    round: int
    client: int
    capacity: float
    cut: Cut


def jobs_of(setup: Setup, round_: int) -> list[Job]:
    """List the jobs of a round."""
    return [Job(round_, a.client, a.capacity, cut_of(setup, a)) for a in plan(setup, round_)]


def channels_last(module: nn.Module) -> nn.Module:
    """Convert the weights of a module to channels-last order."""
    return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _skip(stride: tuple[int, ...]) -> Callable[[nn.Module, tuple[Tensor]], Tensor]:
    def hook(_: nn.Module, inputs: tuple[Tensor]) -> Tensor:
        return inputs[0][:, :, :: stride[0], :: stride[1]]

    return hook


def _without_strided_points(module: nn.Module) -> nn.Module:
    """Replace strides of 1 x 1 convolutions by a selection of every second pixel.

    The result is the same. The gradient of a strided one, in channels-last order and with fewer
    than 8 channels, writes out of bounds (torch 2.13 on x86: heap corruption).
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1) and max(layer.stride) > 1:
            layer.register_forward_pre_hook(_skip(layer.stride))
            layer.stride = (1, 1)
    return module


class Trainer:
    """Train sub-models one after another, with images and modules in memory."""

    def __init__(self, setup: Setup, channels_last: bool = True) -> None:
        train = setup.clients.dataset.train
        self._setup = setup
        self._channels_last = channels_last and train.x.dim() == 4
        # images as (N, H, W, C), so that a batch viewed as (N, C, H, W) is channels-last
        self._x = train.x.permute(0, 2, 3, 1).contiguous() if self._channels_last else train.x
        self._y = train.y
        self._positions: dict[int, NDArray[np.int64]] = {}
        self._modules: dict[Shapes, nn.Module] = {}

    def make_ready(self, jobs: Iterable[Job]) -> None:
        """Build the modules and look up the images of these jobs."""
        for job in jobs:
            self.module(job.cut)
            if job.client not in self._positions:
                indices = self._setup.clients.indices(job.client)
                self._positions[job.client] = indices

    def module(self, cut: Cut) -> nn.Module:
        """Return the module for cuts of these shapes."""
        if cut.shape_key not in self._modules:
            made = build_module(self._setup.module, cut).train()
            if self._channels_last:
                made = _without_strided_points(channels_last(made))
            self._modules[cut.shape_key] = made
        return self._modules[cut.shape_key]

    @torch.no_grad()
    def load(self, job: Job, tensors: Tensors) -> None:
        """Copy values into the job's module."""
        for name, parameter in self.module(job.cut).named_parameters():
            parameter.copy_(tensors[name])

    def train(self, job: Job, limit: int | None = None) -> tuple[Tensors, float]:
        """Train the loaded module; return its tensors, which the next job reuses, and the loss."""
        module, work = self.module(job.cut), self._setup.work
        indices = self._positions[job.client]
        parameters = list(module.parameters())
        optimizer = torch.optim.SGD(parameters, lr=work.lr, **vars(work.optimiser))
        total, steps = torch.zeros(()), 0
        for xi in batches(len(indices), work, self._setup.seed, job.round, job.client):
            if steps == limit:
                break
            chosen = torch.from_numpy(indices[xi])
            x = self._x[chosen]
            if self._channels_last:
                x = x.permute(0, 3, 1, 2)
            loss = functional.cross_entropy(module(x), self._y[chosen])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            total += loss.detach()
            steps += 1
        return {n: p.detach() for n, p in module.named_parameters()}, float(total) / steps


class Average:
    """Plain mean of every weight over its holders."""

    def __init__(self, tensors: Tensors) -> None:
        self._old = tensors
        self._sums = {n: torch.zeros_like(t) for n, t in tensors.items()}
        self._counts = {n: torch.zeros_like(t) for n, t in tensors.items()}

    def add(self, cut: Cut, tensors: Tensors) -> None:
        """Add the sub-model of a client."""
        for name, tensor in tensors.items():
            cut.add(name, self._sums[name], tensor)
            cut.add(name, self._counts[name], 1.0)

    def result(self) -> dict[str, Tensor]:
        """Return the next global model; weights without a holder stay."""
        return {
            name: torch.where(count > 0, self._sums[name] / count.clamp(min=1), self._old[name])
            for name, count in self._counts.items()
        }


def seconds_of(trainer: Trainer, jobs: Iterable[Job], tensors: Tensors, limit: int) -> float:
    """Return the time of a few steps of every job."""
    start = time.perf_counter()
    for job in jobs:
        trainer.load(job, {n: job.cut.part(n, t) for n, t in tensors.items()})
        trainer.train(job, limit)
    return time.perf_counter() - start
