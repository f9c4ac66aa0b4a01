"""Running a module once for its own sake: in evaluation mode, and leaving it as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from submodel.errors import ConfigError, SubmodelError
from submodel.model.axes.failure import ForwardError, explain
from submodel.model.axes.keep import preserve
from submodel.model.inputs import Inputs, arguments
from submodel.model.norm import StaticBatchNorm
from submodel.model.seeding import seed_torch, seeded

SEED = 0
"""Forwards that draw random numbers draw the same ones each time."""


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by name, a shared one under each of its names.

    >>> list(weights_of(nn.BatchNorm1d(3, affine=False)))
    ['running_mean', 'running_var', 'num_batches_tracked']
    """
    tensors: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    tensors |= dict(module.named_buffers(remove_duplicate=False))
    return tensors


def run(module: nn.Module, inputs: Inputs) -> Any:
    """What the module returns for the inputs; call it within `isolate`.

    Raises `ForwardError` where it does not run.

    >>> run(nn.Identity(), (torch.ones(1),))
    tensor([1.])
    """
    seed_torch(SEED)
    positional, keywords = arguments(inputs)
    try:
        return module(*positional, **keywords)
    except SubmodelError:
        raise
    except Exception as error:  # whatever a model's own code raises
        raise ForwardError(explain(module, inputs, error)) from error


@contextlib.contextmanager
def isolate(module: nn.Module, ours: bool = False) -> Iterator[None]:
    """A forward in here changes nothing: neither what the module holds nor the random state.

    Everything is in evaluation mode, so that nothing is dropped at random, except static batch
    norms, which have no statistics to evaluate with before they are calibrated. The fused kernels
    of recurrent nets and of transformer layers are off, as they hide what they compute. Nothing
    need be put back in a module of ours, which nobody else will see.
    """
    layers = list(module.modules())
    recurrent = any(isinstance(layer, nn.RNNBase) for layer in layers)
    fast_attention = torch.backends.mha.get_fastpath_enabled()
    with contextlib.ExitStack() as stack:
        if not ours:
            stack.enter_context(preserve(module))
        stack.enter_context(torch.no_grad())
        stack.enter_context(seeded(None))
        if recurrent:
            stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
            torch._C._set_mkldnn_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast_attention)
        torch.backends.mha.set_fastpath_enabled(False)
        for layer in layers:
            layer.training = isinstance(layer, StaticBatchNorm)
            layer._compiled_call_impl = None  # compiled layers hide what they compute
        yield


def outputs_of(result: Any, outputs: Callable[[Any], Any] | None) -> list[Tensor]:
    """The tensors that the caller cares about.

    >>> len(outputs_of({"logits": torch.ones(1), "extra": (torch.ones(1), None)}, None))
    2
    """
    selection = result
    if outputs is not None:
        try:
            selection = outputs(result)
        except Exception as error:  # whatever the caller's own code raises
            reason = f"fails on what the forward returned, {_kind(result)}: {error}"
            raise ConfigError([f"outputs: {reason}"]) from error
    tensors = list(tensors_in(selection))
    if not tensors:
        raise ConfigError([f"outputs: no tensor in what the forward returned, {_kind(result)}"])
    return tensors


def tensors_in(value: Any, where: str = "outputs", strict: bool = True) -> Iterator[Tensor]:
    """The tensors in nested dicts, lists, tuples and dataclasses.

    Other objects may hide tensors; where that matters (``strict``), the caller has to say which.
    """
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors_in(item, f"{where}.{key}", strict)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from tensors_in(item, f"{where}[{number}]", strict)
    elif is_dataclass(value) and not isinstance(value, type):
        for entry in fields(value):
            yield from tensors_in(getattr(value, entry.name), f"{where}.{entry.name}", strict)
    elif strict and not isinstance(value, bool | int | float | complex | str | bytes | None):
        raise ConfigError(
            [
                f"{where} is {_kind(value)}, which may hold tensors; say which outputs must keep "
                "their dimensions, as in outputs=lambda result: result.logits"
            ]
        )


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"
