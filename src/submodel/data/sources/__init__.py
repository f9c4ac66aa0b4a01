"""Where data comes from, a file for each source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from submodel.core.errors import ConfigError
from submodel.data.builtin_data import SOURCES
from submodel.data.examples import Dataset, limit
from submodel.data.facts import TableFacts
from submodel.data.images import Images, ImageSet, channel_statistics, to_dataset


@dataclass(frozen=True)
class Encoding:
    """How the data of a run became numbers, for data of others that is to become the same ones."""

    mean: tuple[float, ...] = ()  # of every channel of images, where they are
    deviation: tuple[float, ...] = ()
    tokens: str | None = None  # the tokeniser, as `submodel.data.text.tokens.read_tokens` reads it
    table: TableFacts | None = None  # how columns became numbers


@dataclass(frozen=True)
class SourceContext:
    """What is asked of a source."""

    argument: str = ""  # what follows the colon in the name, as in folder:PATH
    examples: int | None = None  # how many of the training part; None: all
    test_examples: int | None = None
    encoding: Encoding | None = None
    """Of the run, where the data is a device's own. Nobody tests on it: of files of one's own,
    all is for training."""

    def normalise_images(self, images: ImageSet) -> Dataset:
        """Images as a dataset, every channel normalised by the statistics of the training part."""
        if self.encoding is not None:
            return self.image_dataset(images, (), ())
        mean, deviation = channel_statistics(images.train.pixels)
        flat = tuple(value or 1.0 for value in deviation)  # a channel of one value stays zero
        return self.image_dataset(images, mean, flat)

    def image_dataset(
        self, images: ImageSet, mean: tuple[float, ...], deviation: tuple[float, ...]
    ) -> Dataset:
        """Images as a dataset, every channel normalised as given, or as those of the run."""
        if self.encoding is None:
            return to_dataset(images, mean, deviation, self.examples, self.test_examples)
        mean, deviation = self.encoding.mean, self.encoding.deviation
        train = images.train
        if train.pixels.shape[1] == 1 and len(mean) == 3:
            train = Images(np.repeat(train.pixels, 3, axis=1), train.labels)
        if len(mean) != train.pixels.shape[1]:  # the run's images come as they are
            mean, deviation = (0.0,) * train.pixels.shape[1], (1.0,) * train.pixels.shape[1]
        one = Images(train.pixels[:1], train.labels[:1])  # nobody tests on it
        return to_dataset(replace(images, train=train, test=one), mean, deviation)


class OwnDataset:
    """Stands in a configuration for data that `submodel.train` was given."""

    @classmethod
    def configured(cls, options: object, context: object) -> NoReturn:  # noqa: ARG003
        """Not from a configuration."""
        raise ConfigError(
            "data.name: 'own' stands for what submodel.train(model, data) is given in Python"
        )


def load_dataset(
    name: str, examples: int | None = None, test_examples: int | None = None, **keys: Any
) -> Dataset:
    """A dataset by name.

    Args:
        name: as the key ``data.name`` of a configuration.
        examples: how many training examples to use, balanced over classes; None: all.
        test_examples: likewise of the test part.
        keys: the keys of the source, as ``path`` or ``size``.

    >>> load_dataset("digits", examples=100).train.x.shape
    torch.Size([100, 1, 8, 8])
    """
    source = SOURCES.find(name)
    context = SourceContext(source.argument, examples, test_examples)
    return limit(source.make(source.options(**keys), context), examples, test_examples)
