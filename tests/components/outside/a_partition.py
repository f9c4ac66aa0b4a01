"""A partition as a plain function that lists the examples of clients in blocks, the last one
larger.
"""

from submodel.data.partitions import PartitionContext


def blocks(context: PartitionContext, size: int) -> list[list[int]]:
    starts = [client * size for client in range(context.clients)]
    ends = [*starts[1:], context.total]
    return [list(range(a, b)) for a, b in zip(starts, ends, strict=True)]
