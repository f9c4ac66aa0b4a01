"""What computes the outputs of a module that is scored: the module itself, unless an engine can."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from submodel.model.inputs import Inputs, call

Scorer = Callable[[nn.Module], Callable[[Inputs], Tensor]]
"""From a module of the model or of a cut, as it is now, to a function from inputs to outputs."""


def plain_scorer(module: nn.Module) -> Callable[[Inputs], Tensor]:
    """The module itself.

    Args:
        module: any.

    >>> import torch
    >>> plain_scorer(nn.Flatten())(torch.ones(2, 3, 4)).shape
    torch.Size([2, 12])
    """
    return lambda inputs: call(module, inputs)
