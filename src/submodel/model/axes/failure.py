"""Why a forward failed, in words to act on: the inputs, the layer, and what would run instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from submodel.errors import SubmodelError
from submodel.model.inputs import arguments

_SHORT = {
    torch.float32: "x.float()",
    torch.float64: "x.double()",
    torch.float16: "x.half()",
    torch.bfloat16: "x.bfloat16()",
}
_IMAGE_DIMENSIONS = 3


class ForwardError(SubmodelError, RuntimeError):
    """A model that does not run on what it is given; a `RuntimeError`, as PyTorch's own are."""


def explain(module: nn.Module, inputs: Any, error: Exception) -> str:
    """What was given, where it failed and why; and a change to the inputs that makes it run."""
    positional, keywords = arguments(inputs)
    text = f"{type(module).__name__} does not run on {_describe_inputs(inputs)}"
    if (misfit := _signature_misfit(module, positional, keywords)) is not None:
        return f"{text}: {misfit}"
    path, layer = innermost(module, error.__traceback__)
    where = f" in {path!r} ({type(layer).__name__})" if path else ""
    text += f": {type(error).__name__}{where}: {_first_line(error)}"
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


def _describe_inputs(inputs: Any) -> str:
    positional, keywords = arguments(inputs)
    descriptions = [_describe(value) for value in positional]
    descriptions += [f"{name} = {_describe(value)}" for name, value in keywords.items()]
    return ", ".join(descriptions) or "no inputs"


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        return f"an input of shape {tuple(value.shape)} and type {kind}"
    return f"a {type(value).__name__}"


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "no reason given")


def _signature_misfit(
    module: nn.Module, positional: tuple[Any, ...], keywords: Mapping[str, Any]
) -> str | None:
    """Whether the forward takes other arguments than these."""
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
    """The path of the layer that was running last, and the layer."""
    paths = {id(layer): path for path, layer in module.named_modules()}
    innermost = module
    while trail is not None:
        running = trail.tb_frame.f_locals.get("self")
        if isinstance(running, nn.Module) and id(running) in paths:
            innermost = running
        trail = trail.tb_next
    return paths[id(innermost)], innermost


def _describe_lookup(layer: nn.Module, tensors: list[Tensor], trail: TracebackType | None) -> str:
    """What an embedding was asked for: the inputs, or numbers of their places."""
    numbers = None
    while trail is not None:
        names = trail.tb_frame.f_locals
        if names.get("self") is layer and isinstance(names.get("input"), Tensor):
            numbers = names["input"]
        trail = trail.tb_next
    if numbers is None or not numbers.numel():
        return ""
    least, most = int(numbers.min()), int(numbers.max())
    if any(t.shape == numbers.shape and bool((t == numbers).all()) for t in tensors):
        return f", and the inputs go from {least} to {most}"
    lengths = {t.shape[1] for t in tensors if t.dim() > 1}
    longer = f": sequences of {most + 1} are too long for it" if {most + 1} == lengths else ""
    return f", and is asked for {least} to {most}{longer}"


def _placement(module: nn.Module, tensors: list[Tensor]) -> str | None:
    """Whether devices are the reason."""
    devices = {t.device.type for t in (*module.parameters(), *module.buffers())}
    theirs = {t.device.type for t in tensors}
    if devices and theirs and devices != theirs:
        ours, other = " and ".join(sorted(devices)), " and ".join(sorted(theirs))
        return f"the model is on {ours}, the inputs are on {other}: put both on one device"
    if "meta" in devices | theirs:
        return (
            "the meta device holds no values, and the code asks for some (in a branch, a loop, "
            ".item()): put model and inputs on the cpu"
        )
    return None


def _changes(module: nn.Module, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What people forget to do to inputs."""
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
