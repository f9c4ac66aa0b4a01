"""A metric, a function of outputs and targets, where less is better."""

from torch import Tensor


def misses(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) != targets).double().mean()


misses.higher_is_better = False  # type: ignore[attr-defined]
