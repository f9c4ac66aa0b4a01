"""Where data comes from, a file for each source."""

from __future__ import annotations

from typing import Any

from submodel.data.dataset import Dataset, limit
from submodel.data.sources.base import SourceContext
from submodel.plugins import Kind, Offer

__all__ = ["SOURCES", "SourceContext", "load_dataset"]

SOURCES: Kind[Dataset] = Kind(
    noun="data source",
    key="data.name",
    group="submodel.data",
    wants="a submodel.Dataset",
    is_one=lambda thing: isinstance(thing, Dataset),
    offers={
        "digits": Offer("submodel.data.sources.digits:Digits", "scikit-learn's 1,797 images"),
        "cifar10": Offer("submodel.data.sources.cifar.component:Cifar10"),
        "cifar100": Offer("submodel.data.sources.cifar.component:Cifar100"),
        "hf": Offer(
            "submodel.data.sources.hub:Hub", "any image dataset of the Hugging Face hub", "NAME"
        ),
        "folder": Offer(
            "submodel.data.sources.folder:Folder",
            "train/CLASS/*.png, test/CLASS/*.png",
            "PATH",
        ),
        "own": Offer("submodel.data.sources.stand_in:DataStandIn", is_hidden=True),
    },
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
