"""Forward passes for inspection: in evaluation mode, without changes to the module.

Modules of kinds that cannot be cut are refused before. If a forward pass fails, the error names the
inputs, the layer, and a change of the inputs that would run.
"""

from __future__ import annotations

import contextlib
import inspect
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from submodel.core.errors import ConfigError, SubmodelError, refuse
from submodel.core.randomness import seed_torch, seeded
from submodel.model.axes.keep import temporary_copy
from submodel.model.inputs import Inputs, arguments
from submodel.model.norm import StaticBatchNorm

_INSIDE = "; give the module inside it, its `.module`"


def refuse_kinds(module: nn.Module) -> None:
    """Raise a `ConfigError` that names every part of ``module`` that cannot be cut.

    >>> refuse_kinds(nn.Sequential(nn.DataParallel(nn.Linear(2, 2))))
    Traceback (most recent call last):
    submodel.core.errors.ConfigError: 0 (DataParallel): it spreads a module over devices; ...
    """
    problems = []
    for path, layer in _parts(module):
        if problem := _problem(type(layer)):
            problems.append(f"{path or 'the model'} ({type(layer).__name__}): {problem}")
        elif type(layer) not in weakref.ProxyTypes:
            problems += [
                f"{path}.{name}".lstrip(".") + " has no shape yet: run the module once first"
                for name, parameter in layer._parameters.items()
                if parameter is not None and is_lazy(parameter)
            ]
    refuse(problems)


def _parts(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers, without the inner layers of those that cannot be cut."""
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
    """The reason why modules of this type cannot be cut; empty if they can."""
    return next((words for is_such, words in _KINDS if is_such(kind)), "")


def _from(*files: str) -> Callable[[type], bool]:
    """A predicate for types defined in these modules, without importing them."""
    return lambda kind: any(k.__module__.startswith(files) for k in kind.__mro__)


_KINDS: tuple[tuple[Callable[[type], bool], str], ...] = (
    (
        lambda kind: issubclass(kind, torch.jit.ScriptModule),
        "TorchScript compiles weights and sizes into it; give the original module",
    ),
    (
        _from("torch._dynamo.eval_frame"),
        "torch.compile made it; give the original module, and compile the result",
    ),
    (lambda kind: issubclass(kind, nn.DataParallel), f"it spreads a module over devices{_INSIDE}"),
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
        "a weakref.proxy is indistinguishable from its module; store a weakref.ref",
    ),
)


_SHORT = {
    torch.float32: "x.float()",
    torch.float64: "x.double()",
    torch.float16: "x.half()",
    torch.bfloat16: "x.bfloat16()",
}
_IMAGE_DIMENSIONS = 3


class ForwardError(SubmodelError, RuntimeError):
    """Raised if a model does not run on its inputs; a `RuntimeError`, like PyTorch's errors."""


def explain(module: nn.Module, inputs: Any, error: Exception) -> str:
    """A message with the inputs, the failing layer, the reason, and a change that would run."""
    positional, keywords = arguments(inputs)
    given = [_describe(value) for value in positional]
    given += [f"{name} = {_describe(value)}" for name, value in keywords.items()]
    text = f"{type(module).__name__} does not run on {', '.join(given) or 'no inputs'}"
    if (misfit := _signature_misfit(module, positional, keywords)) is not None:
        return f"{text}: {misfit}"
    path, layer = innermost(module, error.__traceback__)
    where = f" in {path!r} ({type(layer).__name__})" if path else ""
    reason = next((line for line in str(error).splitlines() if line.strip()), "no reason given")
    text += f": {type(error).__name__}{where}: {reason}"
    tensors = [value for value in (*positional, *keywords.values()) if isinstance(value, Tensor)]
    if (hint := _placement(module, tensors)) is not None:
        return f"{text}; {hint}"
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and isinstance(error, IndexError):
        text += f"; it has the entries 0 to {layer.num_embeddings - 1}"
        return text + _describe_lookup(layer, tensors, error.__traceback__)
    if len(positional) == 1 and isinstance(positional[0], Tensor) and not keywords:
        for change, other_input in _changes(module, positional[0]):
            if _runs(module, other_input):
                return f"{text}; it would run on {change}"
    return text


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        return f"an input of shape {tuple(value.shape)} and type {kind}"
    return _kind(value)


def _signature_misfit(
    module: nn.Module, positional: tuple[Any, ...], keywords: Mapping[str, Any]
) -> str | None:
    """A message if the arguments do not fit the signature of the forward; else None."""
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):  # not written in Python
        return None
    try:
        signature.bind(*positional, **keywords)
    except TypeError as misfit:
        return f"its forward takes ({', '.join(map(str, signature.parameters.values()))}): {misfit}"
    return None


def innermost(module: nn.Module, trail: TracebackType | None) -> tuple[str, nn.Module]:
    """The innermost layer in a traceback, with its path."""
    paths = {id(layer): path for path, layer in module.named_modules()}
    innermost = module
    for frame, _ in traceback.walk_tb(trail):
        running = frame.f_locals.get("self")
        if isinstance(running, nn.Module) and id(running) in paths:
            innermost = running
    return paths[id(innermost)], innermost


def _describe_lookup(layer: nn.Module, tensors: list[Tensor], trail: TracebackType | None) -> str:
    """A message about the indices passed to an embedding: the inputs, or their positions."""
    numbers = None
    for frame, _ in traceback.walk_tb(trail):
        names = frame.f_locals
        if names.get("self") is layer and isinstance(names.get("input"), Tensor):
            numbers = names["input"]
    if numbers is None or not numbers.numel():
        return ""
    least, most = int(numbers.min()), int(numbers.max())
    if any(t.shape == numbers.shape and bool((t == numbers).all()) for t in tensors):
        return f", and the inputs range from {least} to {most}"
    lengths = {t.shape[1] for t in tensors if t.dim() > 1}
    longer = f": sequences of {most + 1} are too long for it" if {most + 1} == lengths else ""
    return f", and gets {least} to {most}{longer}"


def _placement(module: nn.Module, tensors: list[Tensor]) -> str | None:
    """A message if devices are the reason; else None."""
    devices = {t.device.type for t in (*module.parameters(), *module.buffers())}
    theirs = {t.device.type for t in tensors}
    if devices and theirs and devices != theirs:
        ours, other = " and ".join(sorted(devices)), " and ".join(sorted(theirs))
        return f"the model is on {ours}, the inputs are on {other}: put both on one device"
    if "meta" in devices | theirs:
        return (
            "tensors on the meta device have no values, and the code reads some (in a branch, a "
            "loop, .item()): put model and inputs on the cpu"
        )
    return None


def _changes(module: nn.Module, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Common changes of inputs, with the changed input."""
    kind = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    if x.dtype != kind and kind in _SHORT:
        pixels = x.dtype == torch.uint8 and x.dim() >= _IMAGE_DIMENSIONS
        yield _SHORT[kind] + (" / 255" if pixels else ""), x.to(kind)
    if x.is_floating_point():
        yield "x.long()", x.long()
    if x.dim() > 2:
        yield "x.flatten(1)", x.flatten(1)
    if x.dim() >= 1:
        yield "x.unsqueeze(1)", x.unsqueeze(1)
    if x.dim() >= _IMAGE_DIMENSIONS:
        yield "x.movedim(-1, 1)", x.movedim(-1, 1)


def _runs(module: Callable[[Tensor], Any], x: Tensor) -> bool:
    try:
        module(x)
    except Exception:
        return False
    return True


SEED = 0
"""Seed for forward passes, so that each draws the same random numbers."""


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by name, a shared one under each of its names."""
    tensors: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    tensors |= dict(module.named_buffers(remove_duplicate=False))
    return tensors


def run(module: nn.Module, inputs: Inputs) -> Any:
    """Run the module on the inputs; call this within `isolate`.

    Raises `ForwardError` if it does not run.
    """
    seed_torch(SEED)
    positional, keywords = arguments(inputs)
    try:
        return module(*positional, **keywords)
    except SubmodelError:
        raise
    except Exception as error:  # the model's code may raise any exception
        raise ForwardError(explain(module, inputs, error)) from error


@contextlib.contextmanager
def isolate(module: nn.Module, in_place: bool = False) -> Iterator[nn.Module]:
    """A copy to run within the block, which changes neither the module nor the random state.

    All layers are in evaluation mode, so that nothing is dropped at random, except static batch
    norms, which have no statistics for evaluation before calibration. The fused kernels of
    recurrent nets and transformer layers are off, as they hide operators. ``in_place`` runs the
    module itself, for temporary modules.
    """
    fast_attention = torch.backends.mha.get_fastpath_enabled()
    with contextlib.ExitStack() as stack:
        running = module if in_place else stack.enter_context(temporary_copy(module))
        layers = list(running.modules())
        recurrent = any(isinstance(layer, nn.RNNBase) for layer in layers)
        stack.enter_context(torch.no_grad())
        stack.enter_context(seeded(None))
        if recurrent:
            stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
            torch._C._set_mkldnn_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast_attention)
        torch.backends.mha.set_fastpath_enabled(False)
        for layer in layers:
            layer.training = isinstance(layer, StaticBatchNorm)
            layer._compiled_call_impl = None  # compiled layers hide operators
        yield running


def outputs_of(result: Any, outputs: Callable[[Any], Any] | None) -> list[Tensor]:
    """The tensors selected by ``outputs``, or all tensors."""
    selection = result
    if outputs is not None:
        try:
            selection = outputs(result)
        except Exception as error:  # the caller's code may raise any exception
            reason = f"fails on the result of the forward, {_kind(result)}: {error}"
            raise ConfigError(f"outputs: {reason}") from error
    tensors = list(tensors_in(selection))
    if not tensors:
        raise ConfigError(f"outputs: no tensor in the result of the forward, {_kind(result)}")
    return tensors


def tensors_in(value: Any, where: str = "outputs", strict: bool = True) -> Iterator[Tensor]:
    """The tensors in nested dicts, lists, tuples and dataclasses.

    Other objects may hide tensors; with ``strict`` they are errors.
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
            f"{where} is {_kind(value)}, which may hold tensors; select the outputs that must "
            "keep their dimensions, as in outputs=lambda result: result.logits"
        )


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"
