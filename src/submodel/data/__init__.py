"""Data: examples, their sources, partitions over clients, and the population of clients."""

from typing import TYPE_CHECKING

from submodel.core.lazy import lazily

if TYPE_CHECKING:
    from submodel.data.augmentations import AugmentContext
    from submodel.data.examples import Dataset, Examples, dataset, limit
    from submodel.data.partitions import DEFAULT_LABELS, Partition
    from submodel.data.population import Population
    from submodel.data.sources import SourceContext, load_dataset
    from submodel.data.sources.digits import digits
    from submodel.data.text.tokens import TokensContext

__all__ = [
    "DEFAULT_LABELS", "AugmentContext", "Dataset", "Examples", "Partition", "Population",
    "SourceContext", "TokensContext", "dataset", "digits", "limit", "load_dataset",
]  # fmt: skip
__getattr__ = lazily(__name__)
