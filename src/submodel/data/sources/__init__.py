"""Data sources, one per file."""

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
    """The conversion of a run's data to numbers, for other data that must match it."""

    mean: tuple[float, ...] = ()  # of every channel, for images
    deviation: tuple[float, ...] = ()
    tokens: str | None = None  # the tokeniser, as JSON for `submodel.data.text.tokens.read_tokens`
    table: TableFacts | None = None  # conversion of columns


@dataclass(frozen=True)
class SourceContext:
    """The context in which a source is made."""

    argument: str = ""  # the text after the colon in the name, as in folder:PATH
    examples: int | None = None  # number of training examples; None: all
    test_examples: int | None = None
    encoding: Encoding | None = None
    """Encoding of the run, for a device's own data. Such data has no test part: all files are for
    training."""

    def normalise_images(self, images: ImageSet) -> Dataset:
        """Convert images to a dataset, normalised by the training part's statistics per channel."""
        if self.encoding is not None:
            return self.image_dataset(images, (), ())
        mean, deviation = channel_statistics(images.train.pixels)
        flat = tuple(value or 1.0 for value in deviation)  # a constant channel becomes zero
        return self.image_dataset(images, mean, flat)

    def image_dataset(
        self, images: ImageSet, mean: tuple[float, ...], deviation: tuple[float, ...]
    ) -> Dataset:
        """Convert images to a dataset, normalised by channel with given or the run's statistics."""
        if self.encoding is None:
            return to_dataset(images, mean, deviation, self.examples, self.test_examples)
        mean, deviation = self.encoding.mean, self.encoding.deviation
        train = images.train
        if train.pixels.shape[1] == 1 and len(mean) == 3:
            train = Images(np.repeat(train.pixels, 3, axis=1), train.labels)
        if len(mean) != train.pixels.shape[1]:  # the run's images are not normalised
            mean, deviation = (0.0,) * train.pixels.shape[1], (1.0,) * train.pixels.shape[1]
        one = Images(train.pixels[:1], train.labels[:1])  # placeholder: a device has no test part
        return to_dataset(replace(images, train=train, test=one), mean, deviation)


class OwnDataset:
    """Placeholder in a configuration for data given to `submodel.train`."""

    @classmethod
    def configured(cls, options: object, context: object) -> NoReturn:  # noqa: ARG003
        """Raise: it has no configuration."""
        raise ConfigError(
            "data.name: 'own' refers to the data given to submodel.train(model, data) in Python"
        )


def load_dataset(
    name: str, examples: int | None = None, test_examples: int | None = None, **keys: Any
) -> Dataset:
    """Load a dataset by name.

    Args:
        name: a value of the key ``data.name`` of a configuration.
        examples: the number of training examples, balanced over classes; None means all.
        test_examples: likewise for the test part.
        keys: the keys of the source, such as ``path`` or ``size``.

    >>> load_dataset("digits", examples=100).train.x.shape
    torch.Size([100, 1, 8, 8])
    """
    source = SOURCES.find(name)
    context = SourceContext(source.argument, examples, test_examples)
    return limit(source.make(source.options(**keys), context), examples, test_examples)
