"""Problems of one's own: made by a function in a file, or arrays in an .npz file."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile, is_zipfile

import numpy as np
from numpy.typing import NDArray

from submodel.errors import SubmodelError
from submodel.plugins import find
from submodel_lab.theory.problems.base import FloatArray, Problem, TheoryError
from submodel_lab.theory.problems.examples import Logistic, Ridge, pad_examples
from submodel_lab.theory.problems.quadratic import Quadratic

_MEMBERS = ("clients", "dimension", "smoothness", "convexity", "losses", "gradients", "draw",
            "stochastic_gradients")  # fmt: skip
_QUADRATIC_KEYS = {"A", "b", "c", "noise", "w0"}
_EXAMPLE_KEYS = {"x", "y", "client", "loss", "l2", "w0"}


@dataclass(frozen=True, eq=False)
class PosedProblem:
    """A problem, and where to start; None: at 0."""

    problem: Problem
    start: FloatArray | None = None


def load_problem(source: str) -> PosedProblem:
    """The problem that a file has.

    Args:
        source: ``file.py:make`` or ``package.module:make``, a function without arguments that
            returns a problem, or a problem and w_0; or ``file.npz`` with ``A`` (clients x d x d)
            and ``b`` (clients x d), also ``c``, ``noise``; or with ``x`` and ``y`` (clients x n x
            features; or rows of all, and ``client``, whose each row is), also ``loss`` (logistic,
            the default where all labels are -1 and 1; ridge, the default elsewhere) and ``l2``. In
            either, ``w0`` is where to start.
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
    try:
        check_problem(result.problem, source)
    except SubmodelError:
        raise
    except Exception as error:  # whatever the problem's own code raises
        raise TheoryError(f"{source} fails: {type(error).__name__}: {error}") from error
    if result.start is not None and result.start.shape != (result.problem.dimension,):
        raise TheoryError(
            f"{source}: w0 has shape {result.start.shape}, the problem {result.problem.dimension} "
            "coordinates"
        )
    return result


def check_problem(problem: Problem, name: str) -> None:
    """Refuse what is no problem, or whose gradients are not those of its losses.

    Args:
        problem: What to look at.
        name: What to call it.
    """
    if missing := [member for member in _MEMBERS if not hasattr(problem, member)]:
        raise TheoryError(
            f"{name}: a {type(problem).__name__} has no {', '.join(missing)}: it is no problem of "
            "the lab (submodel_lab.theory.Problem)"
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
        raise TheoryError(f"{name}: stochastic gradients have another shape than gradients")
    if not problem.smoothness > 0 or not 0 <= problem.convexity <= problem.smoothness:
        raise TheoryError(
            f"{name}: L = {problem.smoothness:g} and mu = {problem.convexity:g}; L > 0 and 0 <= mu "
            "<= L are needed"
        )


def _load_function(path: Path, name: str) -> Any:
    if not path.is_file():
        raise TheoryError(f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location(f"own_problem_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SubmodelError:
        raise
    except Exception as error:  # whatever the file's own code raises
        raise TheoryError(f"{path} fails: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise TheoryError(f"{path} has no function {name!r}")
    return function


def _from_function(function: Any, source: str) -> PosedProblem:
    try:
        thing = function()
    except SubmodelError:
        raise
    except Exception as error:  # whatever the function's own code raises
        raise TheoryError(f"{source} fails: {type(error).__name__}: {error}") from error
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
        raise TheoryError(f"{path}: nothing is made of {', '.join(sorted(extra_keys))}")
    start = arrays.pop("w0", None)
    return PosedProblem(make(arrays, path), None if start is None else _floats(start, "w0", path))


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise TheoryError(f"{path}: there is no such file")
    if not is_zipfile(path):
        raise TheoryError(f"{path} is no .npz file: write it with numpy.savez")
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, BadZipFile) as error:
        raise TheoryError(f"{path}: {error}") from None


def _one_number(arrays: dict[str, NDArray[Any]], name: str, path: Path) -> float:
    """A number that is 0 or more; 0 where there is none."""
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
        raise TheoryError(f"{path}: c of shape {problem.constants.shape}: one for each client")
    if problem.eigenvalues.min() < -1e-9 * abs(problem.smoothness):
        raise TheoryError(f"{path}: a matrix of A has a negative eigenvalue: not convex")
    return problem


def _examples(arrays: dict[str, NDArray[Any]], path: Path) -> Problem:
    x, y = (_floats(arrays[name], name, path) for name in ("x", "y"))
    if "client" in arrays:
        client = arrays["client"]
        if x.ndim != 2 or not y.shape == client.shape == x.shape[:1]:
            raise TheoryError(f"{path}: with client, x is rows x features, y and client one a row")
        groups = [client == one for one in np.unique(client)]
        all_x, all_y, sizes = pad_examples([x[g] for g in groups], [y[g] for g in groups])
    elif x.ndim == 3 and y.shape == x.shape[:2]:
        all_x, all_y, sizes = pad_examples(list(x), list(y))
    else:
        raise TheoryError(
            f"{path}: x of shape {x.shape}, y of {y.shape}: N x n x features and N x n, or rows "
            "and client, whose each is"
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
