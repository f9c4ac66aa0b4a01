"""The partition that data asks for: natural clients, labels, or equal parts."""

from __future__ import annotations

from submodel.data.partitions.base import Partition, PartitionContext
from submodel.data.partitions.iid import Iid
from submodel.data.partitions.labels import ByLabel
from submodel.data.partitions.natural import Natural
from submodel.errors import ConfigError


class PartitionOfData:
    """As ``natural`` where the data names clients, as ``labels`` where it has any, else ``iid``."""

    Options = ByLabel.Options

    @classmethod
    def configured(cls, options: ByLabel.Options, context: PartitionContext) -> Partition:
        """The same keys as ``labels``; those that mean nothing for the data are refused."""
        keys = options.model_fields_set & set(ByLabel.Options.model_fields)
        if context.owners is not None and not keys:
            return Natural.configured(options, context)
        if context.labels is not None:
            return ByLabel.configured(options, context)
        if "labels_per_client" in keys:
            raise ConfigError(
                ["data.labels_per_client: the targets are no class labels; leave it out"]
            )
        each = options.examples_per_client
        return Iid.configured(Iid.Options(examples_per_client=each), context)
