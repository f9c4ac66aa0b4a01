"""Where data comes from, a file for each source."""

from __future__ import annotations

from typing import Any

from submodel.data.examples import Dataset, limit
from submodel.data.registry import SOURCES
from submodel.data.sources.base import SourceContext

__all__ = ["SourceContext", "load_dataset"]


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
