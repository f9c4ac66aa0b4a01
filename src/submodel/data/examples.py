"""Examples and their targets: any tensors, checked; balanced and held-out parts of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from submodel.core.errors import ConfigError, DataError
from submodel.core.randomness import generator
from submodel.data.facts import Owners, TableFacts, TextFacts
from submodel.data.parts import are_labels, count_classes, is_hub_part, read_part
from submodel.model.inputs import Inputs, columns, count_rows, first_column, take_rows


@dataclass(frozen=True, repr=False)
class Examples:
    """Inputs and targets of equal length.

    Args:
        x: the inputs: a tensor, or several by position or name, with a row for every example.
        y: the targets.
    """

    x: Any  # `Inputs`; a single tensor may be used directly
    y: Tensor

    def __len__(self) -> int:
        return count_rows(self.x)

    def __repr__(self) -> str:
        inputs = {**columns(self.x), "targets": self.y}
        shapes = (f"{name} {_describe(tensor)}".lstrip() for name, tensor in inputs.items())
        return f"Examples({len(self):,}: {', '.join(shapes)})"

    def take(self, rows: Tensor | slice) -> Examples:
        """Return some of the examples.

        Args:
            rows: their positions.
        """
        return Examples(take_rows(self.x, rows), self.y[rows])


@dataclass(frozen=True)
class About:
    """Facts about images: origin, names of the classes, normalisation of the channels."""

    origin: str
    names: tuple[str, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]


@dataclass(frozen=True, repr=False)
class Dataset:
    """A training part, which is divided among clients, and a test part that no client has.

    Args:
        train: the training examples.
        test: the test examples.
        classes: the number of classes; None if the targets are not labels.
        about: the origin of images.
        text: facts about the tokens, if examples are text.
        owners: the clients that the data assigns examples to, if it does.
        table: the conversion of columns to numbers, if examples are rows of a table.
        held_out: training examples that are kept out of training, if any.
    """

    train: Examples
    test: Examples
    classes: int | None
    about: About | None = None
    text: TextFacts | None = None
    owners: Owners | None = None
    table: TableFacts | None = None
    held_out: Examples | None = None

    def __repr__(self) -> str:
        facts = [f"train={self.train!r}", f"test={self.test!r}", f"classes={self.classes}"]
        if self.held_out is not None:
            facts.append(f"held_out={self.held_out!r}")
        if self.owners is not None:
            facts.append(f"owners={len(self.owners)}")
        return f"Dataset({', '.join(facts)})"

    @property
    def inputs(self) -> tuple[int, ...]:
        """The shape of one input, the first if there are several."""
        return tuple(first_column(self.train.x).shape[1:])

    @property
    def example(self) -> Inputs:
        """A batch of two inputs, to trace or measure a model."""
        return take_rows(self.train.x, slice(2))

    @property
    def outputs(self) -> int:
        """Number of a model's outputs: one per class, token or number to predict."""
        if self.classes is not None:
            return self.classes
        if self.text is not None:
            return self.text.vocabulary
        targets = self.train.y
        return targets.shape[1] if targets.is_floating_point() and targets.dim() == 2 else 1


def dataset(train: Any, test: Any) -> Dataset:
    """Make a dataset from tensors or arrays, checked; integer targets are class labels.

    Args:
        train: the training part: a pair (inputs, targets), one row per example, the inputs being a
            tensor or a NumPy array, a tuple or a dictionary of them; a dictionary with ``labels``,
            as Hugging Face's models take it; a map-style torch dataset of such examples; or a
            ``datasets.Dataset`` with a column ``label``, of images or of numbers.
        test: the test part, likewise.

    >>> x, y = torch.randn(6, 4), np.array([0, 1, 2, 0, 1, 2])
    >>> dataset((x, y), (x, y))
    Dataset(train=Examples(6: float32 4, targets int64), test=Examples(6: ...), classes=3)
    """
    if is_hub_part(train) and is_hub_part(test):
        from submodel.data.sources.hub import read_in_memory  # avoids a circular import

        return read_in_memory(train, test)
    (x, y), (test_x, test_y) = read_part("training", train), read_part("test", test)
    classes = None
    if are_labels(y):
        if not are_labels(test_y):
            raise DataError(
                f"training targets are class labels, test targets are {test_y.dtype} of shape "
                f"{tuple(test_y.shape)}; want both alike"
            )
        classes = count_classes(y, test_y)
        y, test_y = y.long(), test_y.long()  # the type that losses require
    return Dataset(Examples(x, y), Examples(test_x, test_y), classes)


def as_dataset(data: Any) -> Any:
    """Convert data given to `submodel.train` to a `Dataset`; return other objects unchanged.

    Args:
        data: a dataset; a pair of parts, training and test, as `dataset` takes them; or a
            ``datasets.DatasetDict`` with the splits train and test.
    """
    if is_hub_part(data):
        raise DataError(
            "data: one part alone; give a training and a test part, as by train_test_split(0.2)"
        )
    if isinstance(data, Mapping) and data and all(map(is_hub_part, data.values())):
        from submodel.data.sources.hub import two_parts

        return dataset(*two_parts(data, "data"))
    return dataset(*data) if isinstance(data, tuple | list) and len(data) == 2 else data


def choose_balanced(labels: NDArray[np.int64], count: int | None, key: str) -> NDArray[np.int64]:
    """Return positions of ``count`` examples with balanced classes; None means all of them.

    They follow from a fixed key, not from a run's seed: every seed trains on the same examples. The
    examples of a smaller count are among those of a larger one.

    >>> labels = np.array([0, 0, 0, 0, 1, 1, 2])
    >>> np.bincount(labels[choose_balanced(labels, 5, "data.examples")]).tolist()
    [2, 2, 1]
    """
    if count is None:
        return np.arange(len(labels))
    if count > len(labels):
        raise ConfigError(f"{key}: {count:,} is more than the {len(labels):,} available examples")
    turn = np.empty(len(labels), dtype=np.int64)  # rank of an example in its class
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        turn[generator(0, key, int(label)).permutation(members)] = np.arange(len(members))
    order = np.lexsort((generator(0, key).random(len(labels)), turn))
    return np.sort(order[:count])


def limit(data: Dataset, examples: int | None, test_examples: int | None) -> Dataset:
    """Limit the numbers of examples, balanced over the classes; None leaves a part unchanged.

    >>> from submodel.data import digits
    >>> data = limit(digits(), 100, None)
    >>> np.bincount(data.train.y).tolist(), len(data.test)
    ([10, 10, 10, 10, 10, 10, 10, 10, 10, 10], 355)
    """
    parts: list[Examples] = []
    places: list[NDArray[np.int64] | None] = []
    for part, count, key in (
        (data.train, examples, "data.examples"),
        (data.test, test_examples, "data.test_examples"),
    ):
        if count is None or count == len(part):  # the whole part: no copy
            parts.append(part)
            places.append(None)
            continue
        labels = np.zeros(len(part), dtype=np.int64) if data.classes is None else part.y.numpy()
        positions = choose_balanced(labels, count, key)
        parts.append(part.take(torch.from_numpy(positions)))
        places.append(positions)
    owners = None if data.owners is None else data.owners.of_part(*places)
    return replace(data, train=parts[0], test=parts[1], owners=owners)


def _describe(tensor: Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind} {' x '.join(map(str, tensor.shape[1:]))}".rstrip()


def hold_out(data: Dataset, share: float | None, seed: int) -> Dataset:
    """Hold out a share of the training part, the same of every class or client.

    The choice follows from the seed alone. The share is taken of every class (of every client if
    the data names them; of all examples if targets are not labels), rounded to whole examples, and
    at least one is left for training.

    Args:
        data: the whole dataset; the test part is unchanged.
        share: of the training part; None means none.
        seed: the seed of the run.

    >>> from submodel.data import digits, limit
    >>> data = hold_out(limit(digits(), 100, None), 0.2, seed=0)
    >>> len(data.train), np.bincount(data.held_out.y).tolist()
    (80, [2, 2, 2, 2, 2, 2, 2, 2, 2, 2])
    """
    if share is None:
        return data
    is_out = np.zeros(len(data.train), dtype=bool)
    for stratum, places in enumerate(_strata(data)):
        count = min(int(share * len(places) + 0.5), len(places) - 1)
        is_out[generator(seed, "held-out", stratum).permutation(places)[:count]] = True
    if not is_out.any():
        raise ConfigError(
            f"data.held_out: {share:g} of {len(data.train):,} training examples is less than "
            "one of any class or client: hold out more, or nothing"
        )
    rest = np.flatnonzero(~is_out)
    return replace(
        data,
        train=data.train.take(torch.from_numpy(rest)),
        held_out=data.train.take(torch.from_numpy(np.flatnonzero(is_out))),
        owners=None if data.owners is None else data.owners.of_part(rest, None),
    )


def _strata(data: Dataset) -> list[NDArray[np.int64]]:
    """Return the groups of training examples from which equal shares are held out."""
    if data.owners is not None:
        return [data.owners.positions(client) for client in range(len(data.owners))]
    if data.classes is None:
        return [np.arange(len(data.train))]
    labels = data.train.y.numpy()
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]
