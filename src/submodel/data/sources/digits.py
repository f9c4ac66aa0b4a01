"""The default data: scikit-learn's 1,797 images of handwritten digits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from submodel.core.extras import needs_extra
from submodel.core.options import Section
from submodel.core.randomness import generator
from submodel.data.examples import About, Dataset, dataset
from submodel.data.sources import SourceContext


def digits() -> Dataset:
    """Load scikit-learn's 1,797 digits of 8 x 8 pixels; every fifth of a class is for testing.

    >>> data = digits()
    >>> len(data.train), len(data.test), data.inputs
    (1442, 355, (1, 8, 8))
    """
    pixels, target = _digits()
    images = torch.from_numpy(pixels.astype(np.float32)).view(-1, 1, 8, 8) / 16
    mean, deviation = 0.305, 0.376  # of the training part
    images = (images - mean) / deviation
    labels = torch.from_numpy(target.astype(np.int64))
    test = np.zeros(len(labels), dtype=np.bool_)
    for label in range(10):
        members = np.flatnonzero(target == label)
        # a fixed key: the test part does not depend on the seed of a run
        test_members = generator(0, "digits-test", label).permutation(members)[: len(members) // 5]
        test[test_members] = True
    split = torch.from_numpy(test)
    about = About("scikit-learn", tuple(map(str, range(10))), (mean,), (deviation,))
    data = dataset((images[~split], labels[~split]), (images[split], labels[split]))
    return replace(data, about=about)


@cache
def _digits() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return pixels and labels from scikit-learn's file; importing it takes a second."""
    package = find_spec("sklearn")
    for place in () if package is None else package.submodule_search_locations or ():
        file = Path(place) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            table = np.loadtxt(file, delimiter=",")
            return table[:, :-1], table[:, -1]
    with needs_extra("server", "the data 'digits'"):
        from sklearn.datasets import load_digits  # the file may move in another version

    bunch = load_digits()
    return bunch.data, bunch.target


class Digits:
    """The digits as a source, without keys."""

    @classmethod
    def configured(cls, options: Section, context: SourceContext) -> Dataset:  # noqa: ARG003
        """Return all digits."""
        return digits()
