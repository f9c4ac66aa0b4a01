"""Modules that cannot be cut, told by their kind: compiled, quantised, wrapped, or without a shape.

Their weights are not where the forward reads them, so that a copy would run at full size, or on
another's weights, without a word.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from submodel.errors import ConfigError

_INSIDE = "; give the module inside it, its `.module`"


def refuse_kinds(module: nn.Module) -> None:
    """Raise a `ConfigError` that names every part of ``module`` of a kind that cannot be cut.

    >>> refuse_kinds(nn.Sequential(nn.DataParallel(nn.Linear(2, 2))))
    Traceback (most recent call last):
    submodel.errors.ConfigError: 0 (DataParallel): it spreads a module over devices; ...
    """
    problems = []
    for path, layer in _parts(module):
        if problem := _problem(type(layer)):
            problems.append(f"{path or 'the model'} ({type(layer).__name__}): {problem}")
        elif type(layer) not in weakref.ProxyTypes:
            problems += [
                f"{path}.{name}".lstrip(".") + " has no shape yet: run the module once before"
                for name, parameter in layer._parameters.items()
                if parameter is not None and is_lazy(parameter)
            ]
    if problems:
        raise ConfigError(problems)


def _parts(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers, not looking into those that cannot be cut, which may hide theirs."""
    parts, visited_ids = [], set()
    waiting = [("", module)]
    while waiting:
        path, layer = waiting.pop()
        if id(layer) in visited_ids:
            continue
        visited_ids.add(id(layer))
        parts.append((path, layer))
        if type(layer) not in weakref.ProxyTypes and not _problem(type(layer)):
            children = reversed(list(layer._modules.items()))
            waiting += [(f"{path}.{n}" if path else n, c) for n, c in children if c is not None]
    return parts


def _problem(kind: type) -> str:
    """Why modules of this type cannot be cut; empty if they can."""
    return next((words for is_such, words in _KINDS if is_such(kind)), "")


def _from(*files: str) -> Callable[[type], bool]:
    """Types by the file that defines them, without importing it."""
    return lambda kind: any(k.__module__.startswith(files) for k in kind.__mro__)


_KINDS: tuple[tuple[Callable[[type], bool], str], ...] = (
    (
        lambda kind: issubclass(kind, torch.jit.ScriptModule),
        "TorchScript compiles weights and sizes in; give the module that it was made from",
    ),
    (
        _from("torch._dynamo.eval_frame"),
        "torch.compile made it; give the module that it was made from, and compile what comes out",
    ),
    (
        lambda kind: issubclass(kind, nn.DataParallel),
        f"it spreads a module over devices{_INSIDE}",
    ),
    (
        _from("torch.nn.parallel.distributed", "torch.distributed.fsdp"),
        f"it spreads a module over processes{_INSIDE}",
    ),
    (
        _from(
            "torch.ao.nn.quantized",
            "torch.nn.quantized",
            "torch.ao.nn.sparse",
            "torch.ao.nn.intrinsic.quantized",
        ),
        "quantised weights are packed and do not train; give the module before quantisation",
    ),
    (
        lambda kind: kind in weakref.ProxyTypes,
        "a weakref.proxy takes the place of the module that it stands for; keep a weakref.ref",
    ),
)
