"""Own problems of a user: a torch module, a function in a file, or arrays in an .npz file."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile, is_zipfile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap

from submodel.core import SubmodelError, find, generator
from submodel_lab.theory.problems import (
    FloatArray,
    Logistic,
    Problem,
    Quadratic,
    Ridge,
    TheoryError,
    largest_curvature,
    pad_examples,
)

_MOST_WEIGHTS = 4096  # masked objectives take thousands of points of d numbers
_MEMBERS = ("clients", "dimension", "smoothness", "convexity", "losses", "gradients", "draw",
            "stochastic_gradients")  # fmt: skip
_QUADRATIC_KEYS = {"A", "b", "c", "noise", "w0"}
_EXAMPLE_KEYS = {"x", "y", "client", "loss", "l2", "w0"}


class ModuleProblem:
    """A small net in float64; clients may have different numbers of examples.

    L has no closed form: ``smoothness`` is the largest curvature at points around the module's own
    weights, a lower bound. Dropout and similar layers are off (``eval``).
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        x: Sequence[Tensor],
        y: Sequence[Tensor],
        radius: float = 1.0,
    ) -> None:
        """Copy a net of a few thousand weights; ``loss`` is the mean over examples.

        ``radius`` is the radius of the ball around its weights for the search of curvature.
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
        """Number of clients, N."""
        return len(self._x)

    @property
    def dimension(self) -> int:
        """Number of weights, d."""
        return sum(shape.numel() for shape in self._shapes.values())

    @property
    def start(self) -> FloatArray:
        """Weights of the module for w_0; at 0 many nets have no gradient."""
        flat = [p.detach().reshape(-1) for p in self._module.parameters()]
        return np.asarray(torch.cat(flat).numpy(), np.float64).copy()

    @cached_property
    def smoothness(self) -> float:
        """Largest curvature of any f_i near the module's weights."""
        return largest_curvature(self, self._radius, self.start)

    @property
    def convexity(self) -> float:
        """Strong convexity, mu; unknown, therefore 0."""
        return 0.0

    def losses(self, w: FloatArray) -> FloatArray:
        """Return f_i at each point."""
        of_points = vmap(self._value, in_dims=(0, None, None))
        return self._stack(
            of_points(torch.tensor(w[i]), self._x[i], self._y[i]) for i in range(self.clients)
        )

    def gradients(self, w: FloatArray) -> FloatArray:
        """Return the gradients of f_i at each point."""
        return self._stack(
            _slopes(vmap(self._value, in_dims=(0, None, None)), w[i], self._x[i], self._y[i])
            for i in range(self.clients)
        )

    def draw(self, seed: int, round_: int, steps: int, trials: int) -> NDArray[Any]:
        """Draw one example per step, uniformly and with replacement."""
        counts = np.array([len(part) for part in self._x])[:, None]
        rng = generator(seed, "samples", round_)
        return rng.integers(counts, size=(steps, self.clients, trials))

    def stochastic_gradients(self, w: FloatArray, xi: NDArray[Any]) -> FloatArray:
        """Return the gradients at one example."""
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
    """Differentiate the sum of values by all points at once, as each value has its own point."""
    points = torch.tensor(w, requires_grad=True)
    (slopes,) = torch.autograd.grad(values(points, x, y).sum(), points)
    return slopes


@dataclass(frozen=True, eq=False)
class PosedProblem:
    """A problem with its start; None: 0."""

    problem: Problem
    start: FloatArray | None = None


def load_problem(source: str) -> PosedProblem:
    """Load a problem from a file.

    ``file.py:make`` or ``package.module:make`` is a function without arguments that returns a
    problem, or a problem and w_0. ``file.npz`` has ``A`` (clients x d x d) and ``b`` (clients x d),
    optionally ``c`` and ``noise``; or ``x`` and ``y`` (clients x n x features, or rows of all
    clients with ``client``, the client of each row), optionally ``l2`` and ``loss`` (logistic or
    ridge; the default is logistic if all labels are -1 and 1). Both may have the start ``w0``.
    """
    path, colon, name = source.rpartition(":")
    if source.endswith(".npz"):
        result = _from_arrays(Path(source))
    elif colon and path.endswith(".py"):
        result = _from_function(_load_function(Path(path), name), source)
    elif colon:
        result = _from_function(find(source, "--problem"), source)
    else:
        raise TheoryError(f"{source!r}: give file.py:make, package.module:make or a file.npz")
    with _user_code(source):
        check_problem(result.problem, source)
    if result.start is not None and result.start.shape != (result.problem.dimension,):
        raise TheoryError(
            f"{source}: w0 has shape {result.start.shape}, the problem {result.problem.dimension} "
            "coordinates"
        )
    return result


def check_problem(problem: Problem, name: str) -> None:
    """Raise an error for an incomplete problem, or for gradients that contradict the losses."""
    if missing := [member for member in _MEMBERS if not hasattr(problem, member)]:
        raise TheoryError(
            f"{name}: a {type(problem).__name__} has no {', '.join(missing)}, which "
            "submodel_lab.theory.Problem needs"
        )
    n, d = problem.clients, problem.dimension
    rng = np.random.Generator(np.random.Philox(key=0))
    w, v = rng.standard_normal((2, n, 2, d)) / np.sqrt(d)
    h = 1e-5
    losses, gradients = problem.losses(w), problem.gradients(w)
    if losses.shape != (n, 2) or gradients.shape != (n, 2, d):
        raise TheoryError(
            f"{name}: at clients x 2 x d points, losses have shape {losses.shape} and gradients "
            f"{gradients.shape}; ({n}, 2) and ({n}, 2, {d}) are needed"
        )
    slopes = (problem.losses(w + h * v) - problem.losses(w - h * v)) / (2 * h)
    along = (gradients * v).sum(-1)
    scale = np.abs(losses).max() + np.abs(along).max()
    if not np.isfinite(scale) or np.abs(slopes - along).max() > 1e-4 * scale:
        raise TheoryError(f"{name}: its gradients are not the slopes of its losses")
    xi = problem.draw(0, 0, 1, 2)[0]
    if problem.stochastic_gradients(w, xi).shape != (n, 2, d):
        raise TheoryError(f"{name}: stochastic gradients and gradients differ in shape")
    if not problem.smoothness > 0 or not 0 <= problem.convexity <= problem.smoothness:
        raise TheoryError(
            f"{name}: L = {problem.smoothness:g} and mu = {problem.convexity:g}; L > 0 and 0 <= mu "
            "<= L are needed"
        )


@contextmanager
def _user_code(source: object) -> Iterator[None]:
    """Report any failure of a user's code as an error of its source."""
    try:
        yield
    except SubmodelError:
        raise
    except Exception as error:
        raise TheoryError(f"{source} fails: {type(error).__name__}: {error}") from error


def _load_function(path: Path, name: str) -> Any:
    if not path.is_file():
        raise TheoryError(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(f"own_problem_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _user_code(path):
        spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise TheoryError(f"{path} has no function {name!r}")
    return function


def _from_function(function: Any, source: str) -> PosedProblem:
    with _user_code(source):
        thing = function()
    problem, start = thing if isinstance(thing, tuple) and len(thing) == 2 else (thing, None)
    if start is None:
        start = getattr(problem, "start", None)  # as ModuleProblem has
    return PosedProblem(problem, None if start is None else np.asarray(start, np.float64))


def _from_arrays(path: Path) -> PosedProblem:
    arrays = _read_arrays(path)
    if {"A", "b"} <= arrays.keys():
        extra_keys = arrays.keys() - _QUADRATIC_KEYS
        make = _quadratic
    elif {"x", "y"} <= arrays.keys():
        extra_keys = arrays.keys() - _EXAMPLE_KEYS
        make = _examples
    else:
        has = ", ".join(sorted(arrays)) or "nothing"
        raise TheoryError(f"{path} has {has}: A and b, or x and y, are needed")
    if extra_keys:
        raise TheoryError(f"{path}: unknown arrays {', '.join(sorted(extra_keys))}")
    start = arrays.pop("w0", None)
    return PosedProblem(make(arrays, path), None if start is None else _floats(start, "w0", path))


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise TheoryError(f"{path}: no such file")
    if not is_zipfile(path):
        raise TheoryError(f"{path} is not an .npz file: write it with numpy.savez")
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, BadZipFile) as error:
        raise TheoryError(f"{path}: {error}") from None


def _one_number(arrays: dict[str, NDArray[Any]], name: str, path: Path) -> float:
    """Read a number that is 0 or more; 0 by default."""
    value = _floats(arrays.get(name, np.zeros(())), name, path)
    if value.size != 1 or value.item() < 0:
        raise TheoryError(f"{path}: {name} must be one number, 0 or more")
    return float(value.item())


def _floats(array: NDArray[Any], name: str, path: Path) -> FloatArray:
    if not np.issubdtype(array.dtype, np.number) or not np.isfinite(array).all():
        raise TheoryError(f"{path}: {name} must be finite numbers")
    return np.asarray(array, np.float64)


def _quadratic(arrays: dict[str, NDArray[Any]], path: Path) -> Problem:
    values = {name: _floats(array, name, path) for name, array in arrays.items()}
    a, b = values["A"], values["b"]
    if a.ndim != 3 or a.shape[1] != a.shape[2] or b.shape != a.shape[:2] or not a.size:
        raise TheoryError(f"{path}: A of shape {a.shape}, b of {b.shape}: N x d x d and N x d")
    if np.abs(a - a.swapaxes(1, 2)).max() > 1e-9 * np.abs(a).max():
        raise TheoryError(f"{path}: the matrices of A must be symmetric")
    problem = Quadratic(a, b, _one_number(arrays, "noise", path), values.get("c"))
    if problem.constants is not None and problem.constants.shape != (len(a),):
        raise TheoryError(f"{path}: c of shape {problem.constants.shape}: one number per client")
    if problem.eigenvalues.min() < -1e-9 * abs(problem.smoothness):
        raise TheoryError(f"{path}: a matrix of A has a negative eigenvalue: not convex")
    return problem


def _examples(arrays: dict[str, NDArray[Any]], path: Path) -> Problem:
    x, y = (_floats(arrays[name], name, path) for name in ("x", "y"))
    if "client" in arrays:
        client = arrays["client"]
        if x.ndim != 2 or not y.shape == client.shape == x.shape[:1]:
            raise TheoryError(
                f"{path}: with client, x is rows x features, y and client one per row"
            )
        groups = [client == one for one in np.unique(client)]
        all_x, all_y, sizes = pad_examples([x[g] for g in groups], [y[g] for g in groups])
    elif x.ndim == 3 and y.shape == x.shape[:2]:
        all_x, all_y, sizes = pad_examples(list(x), list(y))
    else:
        raise TheoryError(
            f"{path}: x of shape {x.shape}, y of {y.shape}: N x n x features and N x n are needed, "
            "or rows with the array client"
        )
    is_label = bool(np.isin(y, (-1.0, 1.0)).all())
    loss = str(arrays.get("loss", "logistic" if is_label else "ridge"))
    if loss not in ("logistic", "ridge"):
        raise TheoryError(f"{path}: loss {loss!r} is not one of logistic, ridge")
    if loss == "logistic" and not is_label:
        raise TheoryError(f"{path}: logistic regression needs labels -1 and 1")
    l2 = _one_number(arrays, "l2", path)
    kind = Logistic if loss == "logistic" else Ridge
    even = len(set(sizes)) == 1
    return cast(Problem, kind(all_x, all_y, l2, sizes=None if even else sizes))
