"""Server steps: use the merged change as it is, or as a gradient (FedOpt).

With Delta = merged - w, for every parameter that some client held in the round:

    plain      w <- w + lr Delta
    momentum   m <- momentum m + Delta;  w <- w + lr m
    adam       m <- beta1 m + (1 - beta1) Delta;  v <- beta2 v + (1 - beta2) Delta^2
               w <- w + lr m / (sqrt(v) + tau)
    yogi       as adam, but v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)

from m = 0 and v = tau^2, without bias correction, as published. A parameter that no client held
has no Delta: its bits and its moments stay.

momentum is FedAvgM (Hsu, Qi, Brown 2019, "Measuring the effects of non-identical data distribution
for federated visual classification"); adam and yogi are FedAdam and FedYogi (Reddi, Charles,
Zaheer, Garrett, Rush, Konecny, Kumar, McMahan 2021, "Adaptive federated optimization"), whose
Algorithm 2 begins with any v >= tau^2: we take the least.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch
from pydantic import Field
from torch import Tensor

from submodel.core.options import Decay, Positive, Section
from submodel.model.cut import Tensors

StepResult = tuple[dict[str, Tensor], dict[str, Tensor]]
"""The new parameters and the new memory."""


class ServerStep(Protocol):
    """A rule that turns the merged change into the next global model; it may have a memory.

    It applies to parameters only: buffers take their merged values, as a gradient step makes no
    sense for them. A rule that uses nothing but ``target`` sets ``forgets_old = True``, so that a
    large model before the round need not be kept.
    """

    def begin(self, parameters: Tensors) -> dict[str, Tensor]:
        """Return the initial memory; its names and shapes stay the same over the run."""
        ...

    def step(self, old: Tensors, target: Tensors, coverage: Tensors, memory: Tensors) -> StepResult:
        """Take the step from ``old``, given the merged model as ``target``.

        A weight that no client held (``coverage`` is false) stays.
        """
        ...


@dataclass(frozen=True)
class Plain:
    """A step of the fraction ``lr`` towards the merged model; ``lr = 1`` is FedAvg.

    >>> w, target = {"w": torch.tensor([1.0, 1.0])}, {"w": torch.tensor([2.0, 1.0])}
    >>> Plain(lr=0.5).step(w, target, {"w": torch.tensor([True, False])}, {})
    ({'w': tensor([1.5000, 1.0000])}, {})
    """

    lr: float = 1.0

    class Options(Section):
        """The keys of ``plain``."""

        lr: Positive = Field(1.0, description="factor of the merged change")

    @property
    def forgets_old(self) -> bool:
        """Whether it takes the merged model as it is."""
        return self.lr == 1

    def begin(self, parameters: Tensors) -> dict[str, Tensor]:  # noqa: ARG002
        """Return an empty memory."""
        return {}

    def step(
        self,
        old: Tensors,
        target: Tensors,
        coverage: Tensors,
        memory: Tensors,  # noqa: ARG002
    ) -> StepResult:
        """Return the merged tensors, or points before or beyond them."""
        if self.lr == 1:
            return dict(target), {}
        return {
            n: _move_covered(w, target[n], coverage[n], self.lr * _change(w, target[n]))
            for n, w in old.items()
        }, {}


@dataclass(frozen=True)
class Momentum:
    """FedAvgM: a speed accumulates changes, with decaying weights.

    >>> w, target = {"w": torch.tensor([1.0])}, {"w": torch.tensor([2.0])}
    >>> Momentum().step(w, target, {"w": torch.tensor([True])}, {"speed/w": torch.tensor([1.0])})
    ({'w': tensor([2.9000])}, {'speed/w': tensor([1.9000])})
    """

    lr: float = 1.0
    momentum: float = 0.9

    class Options(Section):
        """The keys of ``momentum``."""

        lr: Positive = Field(1.0, description="factor of the speed")
        momentum: Decay = Field(0.9, description="decay of the speed")

    def begin(self, parameters: Tensors) -> dict[str, Tensor]:
        """Return a speed of zero."""
        return {
            f"speed/{n}": torch.zeros_like(t, dtype=_memory_dtype(t)) for n, t in parameters.items()
        }

    def step(self, old: Tensors, target: Tensors, coverage: Tensors, memory: Tensors) -> StepResult:
        """Take one step with the new speed."""
        tensors, memory_after = {}, {}
        for n, w in old.items():
            before = memory[f"speed/{n}"]
            speed = self.momentum * before.double() + _change(w, target[n])
            tensors[n] = _move_covered(w, target[n], coverage[n], self.lr * speed)
            memory_after[f"speed/{n}"] = torch.where(coverage[n], speed.to(before.dtype), before)
        return tensors, memory_after


@dataclass(frozen=True)
class _Adaptive(ABC):
    """Steps with a rate per coordinate: the first moment over the root of the second."""

    lr: float = 0.003
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    class Options(Section):
        """The keys of ``adam`` and ``yogi``."""

        lr: Positive = Field(0.003, description="factor of the step")
        beta1: Decay = Field(0.9, description="decay of the mean of changes")
        beta2: Decay = Field(0.99, description="decay of the mean of their squares")
        tau: Positive = Field(0.001, description="added to the root of the latter")

    @abstractmethod
    def _second(self, second: Tensor, square: Tensor) -> Tensor:
        """Return the new second moment, given the previous one and Delta^2."""

    def begin(self, parameters: Tensors) -> dict[str, Tensor]:
        """Return a first moment of zero, and a second of tau^2."""
        memory = {}
        for n, t in parameters.items():
            memory[f"first/{n}"] = torch.zeros_like(t, dtype=_memory_dtype(t))
            memory[f"second/{n}"] = torch.full_like(t, self.tau**2, dtype=_memory_dtype(t))
        return memory

    def step(self, old: Tensors, target: Tensors, coverage: Tensors, memory: Tensors) -> StepResult:
        """Take one step with the new moments."""
        tensors, memory_after = {}, {}
        for n, w in old.items():
            change = _change(w, target[n])
            first, second = memory[f"first/{n}"], memory[f"second/{n}"]
            mean = self.beta1 * first.double() + (1 - self.beta1) * change
            scale = self._second(second.double(), change.square())
            move = self.lr * mean / (scale.sqrt() + self.tau)
            tensors[n] = _move_covered(w, target[n], coverage[n], move)
            memory_after[f"first/{n}"] = torch.where(coverage[n], mean.to(first.dtype), first)
            memory_after[f"second/{n}"] = torch.where(coverage[n], scale.to(second.dtype), second)
        return tensors, memory_after


@dataclass(frozen=True)
class Adam(_Adaptive):
    """FedAdam: the second moment is an average of squares.

    >>> w, target = {"w": torch.tensor([0.0])}, {"w": torch.tensor([7.0])}
    >>> adam = Adam(lr=6.0, beta1=0.5, beta2=0.5, tau=1.0)  # m = 3.5, v = 0.5 + 24.5
    >>> adam.step(w, target, {"w": torch.tensor([True])}, adam.begin(w))
    ({'w': tensor([3.5000])}, {'first/w': tensor([3.5000]), 'second/w': tensor([25.])})
    """

    def _second(self, second: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * second + (1 - self.beta2) * square


@dataclass(frozen=True)
class Yogi(_Adaptive):
    """FedYogi: the second moment moves towards the square by at most a fraction of the square.

    >>> w, target = {"w": torch.tensor([0.0])}, {"w": torch.tensor([4.0])}
    >>> yogi = Yogi(lr=1.0, beta1=0.5, beta2=0.5, tau=1.0)  # m = 2, v = 1 + 8
    >>> yogi.step(w, target, {"w": torch.tensor([True])}, yogi.begin(w))
    ({'w': tensor([0.5000])}, {'first/w': tensor([2.]), 'second/w': tensor([9.])})
    """

    def _second(self, second: Tensor, square: Tensor) -> Tensor:
        return second - (1 - self.beta2) * square * torch.sign(second - square)


def _memory_dtype(parameter: Tensor) -> torch.dtype:
    """Return the type of moments: the parameter's, but at least float32, to hold squares."""
    return torch.promote_types(parameter.dtype, torch.float32)


def _change(old: Tensor, target: Tensor) -> Tensor:
    """Return Delta in float64."""
    return target.double() - old.double()


def _move_covered(old: Tensor, target: Tensor, coverage: Tensor, move: Tensor) -> Tensor:
    """Return the parameter after the move where some client held it, rounded once.

    A move by Delta itself gives the merged value, bit for bit: adding Delta to w would not, not
    even in float64, as Delta has lost the last bits of a value far smaller than w.
    """
    new = torch.where(move == _change(old, target), target, (old.double() + move).to(old.dtype))
    return torch.where(coverage, new, old)


class Projection(Protocol):
    """The projection P_W onto a convex set W."""

    def __call__(self, parameters: Tensors) -> dict[str, Tensor]:
        """Return the nearest point of the set."""
        ...


class NoProjection:
    """The whole space as W."""

    def __call__(self, parameters: Tensors) -> dict[str, Tensor]:
        """Return the point itself."""
        return dict(parameters)


class Ball:
    """The ball of a radius around the origin, over all parameters together.

    >>> Ball(1.0)({"w": torch.tensor([3.0, 4.0])})
    {'w': tensor([0.6000, 0.8000])}
    """

    class Options(Section):
        """The keys of ``ball``."""

        radius: Positive = Field(description="of the ball")

    def __init__(self, radius: float) -> None:
        self.radius = radius

    def __call__(self, parameters: Tensors) -> dict[str, Tensor]:
        """Scale a point outside onto the sphere."""
        norm = math.sqrt(sum(float(t.double().square().sum()) for t in parameters.values()))
        if norm <= self.radius:
            return dict(parameters)
        factor = float(shrinkage(torch.tensor(norm, dtype=torch.float64), self.radius))
        return {name: t * factor for name, t in parameters.items()}


def shrinkage(norms: Tensor, radius: float) -> Tensor:
    """Return the factors that bring points of these norms into the ball.

    >>> shrinkage(torch.tensor([0.5, 4.0]), 1.0)
    tensor([1.0000, 0.2500])
    """
    return torch.where(norms <= radius, torch.ones_like(norms), radius / norms)


class Box:
    """The box of weights within [-bound, bound].

    >>> Box(1.0)({"w": torch.tensor([3.0, -0.5])})
    {'w': tensor([ 1.0000, -0.5000])}
    """

    class Options(Section):
        """The keys of ``box``."""

        radius: Positive = Field(description="the bound of every weight")

    def __init__(self, radius: float) -> None:
        self.radius = radius

    def __call__(self, parameters: Tensors) -> dict[str, Tensor]:
        """Clamp every weight."""
        return {name: t.clamp(-self.radius, self.radius) for name, t in parameters.items()}
