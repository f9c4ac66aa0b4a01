"""Examples, who has them, and who takes part."""

from submodel.data.partitions import Partition, make_partition
from submodel.data.population import Population
from submodel.data.sources import DataName, Dataset, Examples, dataset, digits, load

__all__ = [
    "DataName",
    "Dataset",
    "Examples",
    "Partition",
    "Population",
    "dataset",
    "digits",
    "load",
    "make_partition",
]
