"""A loss as a plain function."""

from torch import Tensor
from torch.nn import functional


def doubled(outputs: Tensor, targets: Tensor) -> Tensor:
    return 2 * functional.cross_entropy(outputs, targets)
