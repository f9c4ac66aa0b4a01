"""Examples, who has them, and who takes part."""

from submodel.data.catalogue import DATA_NAMES, DATA_PATTERN, Source, load
from submodel.data.partitions import Dirichlet, Partition, make_partition
from submodel.data.population import Population
from submodel.data.sources import Dataset, Examples, dataset, digits, limit

__all__ = [
    "DATA_NAMES",
    "DATA_PATTERN",
    "Dataset",
    "Dirichlet",
    "Examples",
    "Partition",
    "Population",
    "Source",
    "dataset",
    "digits",
    "limit",
    "load",
    "make_partition",
]
