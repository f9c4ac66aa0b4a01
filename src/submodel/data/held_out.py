"""A part of the training examples that nobody trains on: what choices are made by, not on test."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from submodel.data.examples import Dataset
from submodel.errors import ConfigError
from submodel.randomness import generator


def hold_out(data: Dataset, share: float | None, seed: int) -> Dataset:
    """The dataset with a share of its training part held out, of every class or client alike.

    Which examples these are follows from the seed alone. Of every class (client, where the data
    names them; all examples, where targets are no labels) the share is held out, rounded to whole
    examples, and at least one is left to train on.

    Args:
        data: all of it; the test part stays as it is.
        share: of the training part; None: nothing is held out.
        seed: of the run.

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
            [
                f"data.held_out: {share:g} of {len(data.train):,} training examples is less than "
                "one of any class or client: hold out more, or nothing"
            ]
        )
    rest = np.flatnonzero(~is_out)
    return replace(
        data,
        train=data.train.take(torch.from_numpy(rest)),
        held_out=data.train.take(torch.from_numpy(np.flatnonzero(is_out))),
        owners=None if data.owners is None else data.owners.of_part(rest, None),
    )


def _strata(data: Dataset) -> list[NDArray[np.int64]]:
    """The places of training examples that are held out in equal shares."""
    if data.owners is not None:
        return [data.owners.positions(client) for client in range(len(data.owners))]
    if data.classes is None:
        return [np.arange(len(data.train))]
    labels = data.train.y.numpy()
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]
