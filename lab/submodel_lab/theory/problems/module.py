"""Any torch module as a problem: its weights are w, its loss on each client's examples is f_i."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap

from submodel.randomness import generator
from submodel_lab.theory.problems.base import FloatArray, TheoryError
from submodel_lab.theory.problems.curvature import largest_curvature

_MOST_WEIGHTS = 4096  # masked objectives take thousands of points of d numbers


class ModuleProblem:
    """A small net in float64, for the lab; clients may have different numbers of examples.

    L has no closed form: ``smoothness`` is the largest curvature met at points around the module's
    own weights, and so a lower bound of it. Dropout and the like are off (``eval``).
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        x: Sequence[Tensor],
        y: Sequence[Tensor],
        radius: float = 1.0,
    ) -> None:
        """Take the module as it is; it is copied.

        Args:
            module: A net of a few thousand weights at most.
            loss: Of outputs and targets, the mean over examples.
            x: Every client's inputs, examples first.
            y: Every client's targets.
            radius: Of the ball around the module's weights in which curvature is looked for.
        """
        if len(x) != len(y) or not len(x) or any(len(a) != len(b) or not len(a)
                                                 for a, b in zip(x, y, strict=True)):  # fmt: skip
            raise TheoryError("x and y must have as many examples for each client, at least one")
        self._module = deepcopy(module).double().eval()
        self._loss, self._radius = loss, radius
        self._x = [part.double() if part.is_floating_point() else part for part in x]
        self._y = [part.double() if part.is_floating_point() else part for part in y]
        self._shapes = {n: p.shape for n, p in self._module.named_parameters()}
        if not 0 < self.dimension <= _MOST_WEIGHTS:
            raise TheoryError(f"{self.dimension} weights: the lab takes 1 to {_MOST_WEIGHTS}")

    @property
    def clients(self) -> int:
        """N."""
        return len(self._x)

    @property
    def dimension(self) -> int:
        """The number of weights."""
        return sum(shape.numel() for shape in self._shapes.values())

    @property
    def start(self) -> FloatArray:
        """The module's own weights, for w_0: at 0 many nets have no gradient."""
        flat = [p.detach().reshape(-1) for p in self._module.parameters()]
        return np.asarray(torch.cat(flat).numpy(), np.float64).copy()

    @cached_property
    def smoothness(self) -> float:
        """The largest curvature of any f_i near the module's weights."""
        return largest_curvature(self, self._radius, self.start)

    @property
    def convexity(self) -> float:
        """Nothing is known: 0."""
        return 0.0

    def losses(self, w: FloatArray) -> FloatArray:
        """f_i at each point."""
        of_points = vmap(self._value, in_dims=(0, None, None))
        return self._stack(
            of_points(torch.tensor(w[i]), self._x[i], self._y[i]) for i in range(self.clients)
        )

    def gradients(self, w: FloatArray) -> FloatArray:
        """The gradients of f_i at each point."""
        return self._stack(
            _slopes(vmap(self._value, in_dims=(0, None, None)), w[i], self._x[i], self._y[i])
            for i in range(self.clients)
        )

    def draw(self, seed: int, round_: int, steps: int, trials: int) -> NDArray[Any]:
        """One example per step, uniformly and with replacement."""
        counts = np.array([len(part) for part in self._x])[:, None]
        rng = generator(seed, "samples", round_)
        return rng.integers(counts, size=(steps, self.clients, trials))

    def stochastic_gradients(self, w: FloatArray, xi: NDArray[Any]) -> FloatArray:
        """The gradient at one example."""
        rows = [torch.as_tensor(index)[:, None] for index in xi]
        return self._stack(
            _slopes(vmap(self._value), w[i], self._x[i][rows[i]], self._y[i][rows[i]])
            for i in range(self.clients)
        )

    def _value(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        weights, begin = {}, 0
        for name, shape in self._shapes.items():
            weights[name] = w[begin : begin + shape.numel()].view(shape)
            begin += shape.numel()
        return self._loss(functional_call(self._module, weights, (x,)), y)

    @staticmethod
    def _stack(parts: Any) -> FloatArray:
        return np.stack([np.asarray(part.detach().numpy(), np.float64) for part in parts])


def _slopes(values: Callable[..., Tensor], w: FloatArray, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of every point's value by its own weights: points do not mix in the sum."""
    points = torch.tensor(w, requires_grad=True)
    (slopes,) = torch.autograd.grad(values(points, x, y).sum(), points)
    return slopes
