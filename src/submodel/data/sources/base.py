"""What a source of data is told, beside its own keys."""

from __future__ import annotations

from dataclasses import dataclass

from submodel.data.examples import Dataset
from submodel.data.images import ImageSet, channel_statistics, to_dataset


@dataclass(frozen=True)
class SourceContext:
    """What is asked of a source."""

    argument: str = ""  # what follows the colon in the name, as in folder:PATH
    examples: int | None = None  # how many of the training part; None: all
    test_examples: int | None = None

    def normalise_images(self, images: ImageSet) -> Dataset:
        """Images as a dataset, every channel normalised by the statistics of the training part."""
        mean, deviation = channel_statistics(images.train.pixels)
        flat = tuple(value or 1.0 for value in deviation)  # a channel of one value stays zero
        return to_dataset(images, mean, flat, self.examples, self.test_examples)
