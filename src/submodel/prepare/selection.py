"""Models that return more than one tensor: which of it is trained on and scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from submodel.errors import ConfigError, SubmodelError
from submodel.model.axes.forward import isolate, run
from submodel.model.build.copying import copy_module
from submodel.model.inputs import Inputs

Selector = Callable[[Any], Tensor]
"""From what a forward returns to the tensor of outputs that counts."""


@dataclass(frozen=True)
class Selection:
    """A forward hook: lets a module return what ``outputs`` selects from what it returns."""

    outputs: Selector

    def __call__(self, module: nn.Module, inputs: object, result: Any) -> Tensor:  # noqa: ARG002
        """The selected tensor."""
        kind = type(result).__name__
        try:
            tensor = self.outputs(result)
        except Exception as error:  # whatever the user's own code raises
            raise ConfigError(
                [f"outputs: fails on what the model returns, a {kind}: {error!r}"]
            ) from error
        if not isinstance(tensor, Tensor):
            raise ConfigError(
                [
                    f"outputs: returns a {type(tensor).__name__} of what the model returns, a "
                    f"{kind}; want one tensor, as lambda returned: returned.logits"
                ]
            )
        return tensor


def select_outputs(module: nn.Module, outputs: Selector) -> nn.Module:
    """A copy of the module that returns what counts; it has the same weights, not copies.

    >>> import torch
    >>> pair = nn.LSTM(2, 3)
    >>> select_outputs(pair, lambda returned: returned[0])(torch.ones(1, 2)).shape
    torch.Size([1, 3])
    """
    copy = copy_module(module, {**dict(module.named_parameters()), **dict(module.named_buffers())})
    copy.register_forward_hook(Selection(outputs))
    return copy


def logits_of(result: Any) -> Tensor:
    """The logits among what models of `transformers` return."""
    logits: Tensor = result.logits
    return logits


def returns_logits(module: nn.Module, example: Inputs) -> bool:
    """Whether the module returns an object that has logits, and not a tensor.

    Args:
        module: any module; it is not changed.
        example: a batch of inputs; one that it does not run on is left for others to refuse.

    >>> import torch
    >>> returns_logits(nn.Identity(), torch.ones(1))
    False
    """
    try:
        with isolate(module) as running:
            result = run(running, example)
    except SubmodelError:
        return False
    return not isinstance(result, Tensor) and isinstance(getattr(result, "logits", None), Tensor)


def selection_of(module: nn.Module) -> Selection | None:
    """What `select_outputs` gave the module, if it did."""
    hooks = module._forward_hooks.values()
    return next((hook for hook in hooks if isinstance(hook, Selection)), None)


def without_selection(module: nn.Module) -> nn.Module:
    """The module itself, which from now on returns all that its forward does."""
    for number, hook in list(module._forward_hooks.items()):
        if isinstance(hook, Selection):
            del module._forward_hooks[number]
    return module
