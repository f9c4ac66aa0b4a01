"""The mapped forward: `torch.func.vmap` over a module, for what has no wide form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from submodel.engines.batched.folding import DisagreementError, fold_calls
from submodel.engines.batched.forward import UnstackableError, Wide
from submodel.engines.batched.layers import TORCH_KERNELS, LayerKernels
from submodel.model.axes.record import storage
from submodel.model.build import release, tensors_of
from submodel.model.build.checks import Reads
from submodel.model.inputs import Inputs, arguments, call, map_inputs

_warn_of_fallbacks = torch._C._functorch._set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]
_Place = tuple[dict[str, Any], str]
"""A layer's parameters or buffers, and a name among them."""


class MappedForward:
    """The module under `torch.func.vmap`; tried once, so that a refusal comes at once.

    ``local_names`` are the buffers that are cut but never exchanged, as rotary frequencies: a stack
    has every client's own part of them.
    """

    def __init__(
        self,
        module: nn.Module,
        whole: nn.Module,
        example: Inputs,
        kernels: LayerKernels = TORCH_KERNELS,
    ) -> None:
        distinct, all_ = (
            len(list(module.named_modules(remove_duplicate=once))) for once in (True, False)
        )
        if distinct != all_:
            raise UnstackableError("a layer that stands in two places cannot be swapped out")
        if any(isinstance(x, _BatchNorm) and x.momentum is None for x in module.modules()):
            raise UnstackableError("a cumulative average counts the batches of one client")
        self.module = module
        by_name = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        exchanged_names = tensors_of(module).keys()
        self.local_names = [
            name
            for name, buffer in module.named_buffers()
            if name not in exchanged_names and buffer.shape != whole.get_buffer(name).shape
        ]
        self._tensors = {name: by_name[name] for name in (*exchanged_names, *self.local_names)}
        # statistics that a call changes in place must not be changed by the calls of groups as well
        self._decides = not any(name in exchanged_names for name, _ in module.named_buffers())
        self._kernels = kernels
        self._replacements = find_replacements(module, kernels.fuses_norms)
        self._places = _places(module, self._tensors)
        self._shapes = {n: t.shape for n, t in self._tensors.items()}
        self._largest = 0
        hooks = [layer.register_forward_hook(self._see) for layer in module.modules()]
        try:
            with torch.no_grad():
                call(module, example)
                for hook in hooks:
                    hook.remove()
                two = {n: torch.stack([t, t]).flatten(0, min(t.dim(), 1)) for n, t in
                       self._tensors.items()}  # fmt: skip
                captured_names: list[str] = []
                memories = {storage(t): n for n, t in self._tensors.items() if t.numel()}
                with Reads(memories, captured_names.append):
                    out = self(two, 2, map_inputs(lambda t: torch.stack([t, t], 1), example))
                if captured_names:
                    raise UnstackableError(
                        f"its code holds {captured_names[0]} itself, which cannot be swapped out"
                    )
                if not isinstance(out, Tensor) or out.dim() < 2:
                    raise UnstackableError("it returns something else than one batch of outputs")
        except UnstackableError:
            raise
        except Exception as error:
            raise UnstackableError(f"vmap refuses it: {str(error).splitlines()[0]}") from error
        release(module)  # every call brings its tensors

    def _see(self, _layer: nn.Module, _inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            self._largest = max(self._largest, math.prod(output.shape[1:]))

    def largest(self, rows: Mapping[str, int]) -> int:  # noqa: ARG002 - one shape only
        """The largest output of a layer."""
        return self._largest

    def __call__(self, wide: Wide, clients: int, x: Inputs) -> Tensor:
        """One call over all clients; what comes in the shape of one client is everybody's.

        Clients for which the module's code takes different ways are computed in one call for each.
        """
        try:
            return self._map(wide, clients, x)
        except DisagreementError as error:
            answers = error.answers
        groups = [answers.nonzero().flatten(), (~answers).nonzero().flatten()]
        parts = [
            self(self._take(wide, clients, g), len(g), map_inputs(partial(_columns, members=g), x))
            for g in groups
        ]
        return torch.cat(parts, 1).index_select(1, torch.cat(groups).argsort())

    def _take(self, wide: Wide, clients: int, members: Tensor) -> Wide:
        """The tensors of some of the clients."""
        return {
            n: wide[n]
            if wide[n].shape == shape
            else wide[n].view(clients, *shape)[members].flatten(0, min(len(shape), 1))
            for n, shape in self._shapes.items()
        }

    def _map(self, wide: Wide, clients: int, x: Inputs) -> Tensor:
        place = {n: None if wide[n].shape == s and clients > 1 else 0
                 for n, s in self._shapes.items()}  # fmt: skip
        tensors_by_client = {
            n: wide[n] if place[n] is None else wide[n].view(clients, *shape)
            for n, shape in self._shapes.items()
        }

        def one(inputs: Inputs) -> Tensor:
            with (
                fold_calls(clients, self._decides, self._kernels) as folding,
                use_replacements(self._replacements),
            ):
                for name, tensor in tensors_by_client.items():
                    part = tensor if place[name] is None else folding.wrap(tensor)
                    for holder, key in self._places[name]:
                        holder[key] = part
                positional, by_name = arguments(inputs)
                out: Tensor = self.module(*positional, **by_name)
            return out

        _warn_of_fallbacks(False)  # a slow operator is no user's affair
        try:
            outputs: Tensor = torch.func.vmap(one, in_dims=1, out_dims=1, randomness="error")(x)
        finally:
            _warn_of_fallbacks(True)
            for name, tensor in self._tensors.items():
                for holder, key in self._places[name]:
                    holder[key] = tensor
        return outputs


def _columns(tensor: Tensor, members: Tensor) -> Tensor:
    """Some clients of a tensor of shape (batch, clients, ...)."""
    return tensor.index_select(1, members)


def _places(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, list[_Place]]:
    """Where the module has each tensor: in several places where weights are tied."""
    places: dict[str, list[_Place]] = {name: [] for name in tensors}
    names = {id(tensor): name for name, tensor in tensors.items()}
    for layer in module.modules():
        for holder in (layer._parameters, layer._buffers):
            for key, tensor in holder.items():
                if id(tensor) in names:
                    places[names[id(tensor)]].append((holder, key))
    return places


# Layers of `transformers` that are written out in many operators, as the one of torch they equal.
# In a stack each operator is a walk through memory; results are the same but for rounding.

_Compute = Callable[[Tensor], Tensor]


def _gelu(_layer: Any) -> _Compute:
    return lambda x: functional.gelu(x, approximate="tanh")


def _rms_norm(layer: Any) -> _Compute:
    def compute(x: Tensor) -> Tensor:
        return functional.rms_norm(x, layer.weight.shape, layer.weight, layer.variance_epsilon)

    return compute


_EQUALS: dict[str, Callable[[Any], _Compute]] = {
    "NewGELUActivation": _gelu,
    "FastGELUActivation": _gelu,
}
"""By the name of the class."""
_FAMILIES = ("Llama", "Mistral", "Mixtral", "Phi3", "Qwen2", "Qwen3")
_NORMS = {f"{family}RMSNorm": _rms_norm for family in _FAMILIES}
"""Norms whose equal pays only where one kernel computes it."""
Replacements = list[tuple[nn.Module, _Compute]]


def find_replacements(module: nn.Module, with_norms: bool = False) -> Replacements:
    """The layers that have an equal, each with it.

    Args:
        module: any.
        with_norms: RMS norms as well.

    >>> find_replacements(nn.GELU())
    []
    """
    equals = _EQUALS | _NORMS if with_norms else _EQUALS
    return [
        (layer, equals[type(layer).__name__](layer))
        for layer in module.modules()
        if type(layer).__name__ in equals and type(layer).__module__.startswith("transformers.")
        if "forward" not in vars(layer)
    ]


@contextmanager
def use_replacements(replacements: Replacements) -> Iterator[None]:
    """While entered, these layers compute their equal.

    Args:
        replacements: of `find_replacements`.
    """
    for layer, compute in replacements:
        vars(layer)["forward"] = compute
    try:
        yield
    finally:
        for layer, _ in replacements:
            del vars(layer)["forward"]
