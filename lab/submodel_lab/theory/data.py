"""Data for the lab: datasets of scikit-learn split over clients, and a synthetic one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from submodel.core import generator, needs_extra
from submodel_lab.theory.objective import client_distance
from submodel_lab.theory.problems import FloatArray, Logistic, TheoryError

with needs_extra("server", "the lab"):
    from sklearn import datasets

DatasetName = Literal["breast_cancer", "digits"]


@dataclass(frozen=True)
class DataSplit:
    """Training examples by client (clients x 1 x n x features), and a common test set."""

    x: FloatArray
    y: FloatArray
    test_x: FloatArray
    test_y: FloatArray

    @property
    def distance(self) -> float:
        """D_max of the labels, a lower bound of the distance of the clients' distributions."""
        return client_distance(self.logistic(0.0))

    def logistic(self, l2: float) -> Logistic:
        """Make an l2-regularised logistic regression."""
        return Logistic(self.x, self.y, l2)


def load_split(
    name: DatasetName,
    clients: int = 5,
    examples: int | None = None,
    skew: float = 0.0,
    seed: int = 0,
) -> DataSplit:
    """Load two classes (digits: below five or not) with features scaled so that E||x||^2 = 1.

    ``skew`` is the fraction of examples that are sorted by label before the split.
    """
    loaders = {"breast_cancer": datasets.load_breast_cancer, "digits": datasets.load_digits}
    if name not in loaders:
        raise TheoryError(f"data {name!r} is not one of {', '.join(loaders)}")
    raw_x, raw_y = loaders[name](return_X_y=True)
    x = np.asarray(raw_x, float)
    y = np.where(raw_y > (4 if name == "digits" else 0), 1.0, -1.0)
    deviation = x.std(0)
    x = (x - x.mean(0)) / np.where(deviation > 0, deviation, 1)
    x /= np.sqrt(np.square(x).sum(1).mean())
    order = generator(seed, "lab split").permutation(len(x))
    held_out = len(x) // 3
    test, train = order[:held_out], order[held_out:]
    n = len(train) // clients if examples is None else examples
    if n * clients > len(train) or n < 1:
        raise TheoryError(f"{clients} clients with {n} examples each: {name} has {len(train)}")
    train = train[: n * clients]
    first = int(skew * len(train))
    train = np.concatenate([train[:first][np.argsort(y[train[:first]])], train[first:]])
    client_rows = np.concatenate(
        [
            train[:first][: first // clients * clients].reshape(clients, -1),
            np.resize(train[first // clients * clients :], (clients, n - first // clients)),
        ],
        axis=1,
    )
    return DataSplit(x[client_rows][:, None], y[client_rows][:, None], x[test], y[test])


@dataclass(frozen=True)
class Directions:
    """Distributions of clients with known D_max: x uniform on the sphere, y = sign(x'u_i).

    u_i is the client's own direction with probability ``heterogeneity``, else the common one.
    The total variation between two clients is heterogeneity * angle(u_i, u_j) / pi. As ||x|| = 1,
    every logistic loss is 1/4-smooth with gradients of norm at most 1.
    """

    clients: int
    dimension: int
    heterogeneity: float = 0.3
    seed: int = 0

    @property
    def client_directions(self) -> FloatArray:
        """Directions of the clients; the common direction is the first axis."""
        u = generator(self.seed, "directions").standard_normal((self.clients, self.dimension))
        return np.asarray(u / np.linalg.norm(u, axis=1, keepdims=True))

    @property
    def distance(self) -> float:
        """Largest total variation between two clients, D_max."""
        angles = np.arccos(np.clip(self.client_directions @ self.client_directions.T, -1, 1))
        return float(self.heterogeneity * angles.max() / np.pi)

    def draw(self, trials: int, examples: int, purpose: str) -> tuple[FloatArray, FloatArray]:
        """Draw new examples for every trial: clients x trials x n (x features)."""
        rng = generator(self.seed, purpose)
        shape = (self.clients, trials, examples)
        x = rng.standard_normal((*shape, self.dimension))
        x /= np.linalg.norm(x, axis=-1, keepdims=True)
        own_scores = np.einsum("itnd,id->itn", x, self.client_directions)
        scores = np.where(rng.random(shape) < self.heterogeneity, own_scores, x[..., 0])
        return x, np.where(scores > 0, 1.0, -1.0)
