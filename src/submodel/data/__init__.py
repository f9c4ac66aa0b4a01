"""Examples, where they come from, who has them, who takes part. May import model and below."""

from submodel.data.dataset import Dataset, Examples, dataset, limit
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
