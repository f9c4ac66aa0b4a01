"""The partition that data asks for: natural clients, labels, or equal parts."""

from __future__ import annotations

from pydantic import Field

from submodel.data.partitions.base import Partition, PartitionContext
from submodel.data.partitions.iid import Iid
from submodel.data.partitions.labels import ByLabel
from submodel.data.partitions.natural import Natural
from submodel.errors import ConfigError
from submodel.options import Count, Section


class PartitionOfData:
    """As ``natural`` where the data names clients, as ``labels`` where it has any, else ``iid``."""

    class Options(Section):
        """The keys of ``labels``, none of which is set by itself: a run's file says it, too."""

        labels_per_client: Count | None = Field(
            None,
            description="of labels: L, how many labels a client has (default: 3, or all if fewer)",
        )
        examples_per_client: Count | None = Field(
            None, description="let every client draw so many examples, shared with others"
        )

        @property
        def asks_for_natural(self) -> bool:
            """Whether nothing is set that clients named by the data have no use for."""
            return self.labels_per_client is None and self.examples_per_client is None

    @classmethod
    def configured(cls, options: Options, context: PartitionContext) -> Partition:
        """The same keys as ``labels``; those that mean nothing for the data are refused."""
        if context.owners is not None and options.asks_for_natural:
            return Natural.configured(options, context)
        each = options.examples_per_client
        if context.labels is not None:
            count = options.labels_per_client
            keys = ByLabel.Options(labels_per_client=count, examples_per_client=each)
            return ByLabel.configured(keys, context)
        if options.labels_per_client is not None:
            raise ConfigError(
                ["data.labels_per_client: the targets are no class labels; leave it out"]
            )
        return Iid.configured(Iid.Options(examples_per_client=each), context)
