"""Where examples come from: the embedded digits, or any tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from submodel.errors import DataError
from submodel.randomness import generator

DataName = Literal["digits", "own"]


@dataclass(frozen=True)
class Examples:
    """Inputs and targets of equal length."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Dataset:
    """A training part, shared out among clients, and a test part that no client sees."""

    train: Examples
    test: Examples
    classes: int | None  # None: the targets are not class labels

    @property
    def inputs(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train.x.shape[1:])

    @property
    def example(self) -> Tensor:
        """A batch of two inputs, to run a model on for its own sake."""
        return self.train.x[:2]


def dataset(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> Dataset:
    """A dataset from tensors, checked; one integer per example is taken as its class label.

    >>> x, y = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    >>> dataset((x, y), (x, y)).classes
    3
    """
    parts = []
    for name, (x, y) in {"training": train, "test": test}.items():
        if not len(x) or len(x) != len(y):
            raise DataError(
                f"{name} data: {len(x)} inputs and {len(y)} targets; want as many, not 0"
            )
        for what, tensor in {"inputs": x, "targets": y}.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                bad = int(
                    (~torch.isfinite(tensor)).flatten(1 if tensor.dim() > 1 else 0).nonzero()[0, 0]
                )
                raise DataError(f"{name} data: {what} of example {bad} are not finite")
        parts.append(Examples(x, y))
    labels = train[1].dim() == 1 and not train[1].is_floating_point()
    if labels and min(int(train[1].min()), int(test[1].min())) < 0:
        raise DataError("class labels must be 0, 1, 2, ...; a negative one was given")
    classes = max(int(train[1].max()), int(test[1].max())) + 1 if labels else None
    return Dataset(parts[0], parts[1], classes)


def digits() -> Dataset:
    """scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, every fifth of a class for testing.

    >>> data = digits()
    >>> len(data.train), len(data.test), data.inputs
    (1442, 355, (1, 8, 8))
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(bunch.images.astype(np.float32)).unsqueeze(1) / 16
    images = (images - 0.305) / 0.376  # mean and deviation of the training part
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    test = np.zeros(len(labels), dtype=np.bool_)
    for label in range(10):
        members = np.flatnonzero(bunch.target == label)
        # a fixed key: the held-out part is the same whatever the seed of a run
        chosen = generator(0, "digits-test", label).permutation(members)[: len(members) // 5]
        test[chosen] = True
    split = torch.from_numpy(test)
    return dataset((images[~split], labels[~split]), (images[split], labels[split]))


def load(name: DataName) -> Dataset:
    """A dataset by name."""
    return {"digits": digits}[name]()
