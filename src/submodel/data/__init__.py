"""Examples, where they come from, who has them, who takes part. May import model and below."""

from typing import TYPE_CHECKING

from submodel.lazy import lazily

if TYPE_CHECKING:
    from submodel.data.examples import Dataset, Examples, dataset, limit
    from submodel.data.partitions import Partition
    from submodel.data.population import Population
    from submodel.data.sources import load_dataset
    from submodel.data.sources.digits import digits

__all__ = [
    "Dataset",
    "Examples",
    "Partition",
    "Population",
    "dataset",
    "digits",
    "limit",
    "load_dataset",
]
__getattr__ = lazily(
    __name__,
    {
        **dict.fromkeys(("Dataset", "Examples", "dataset", "limit"), "submodel.data.examples"),
        "Partition": "submodel.data.partitions",
        "Population": "submodel.data.population",
        "load_dataset": "submodel.data.sources",
        "digits": "submodel.data.sources.digits",
    },
)
