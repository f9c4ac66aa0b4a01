"""The mapped forward: `torch.func.vmap` over a module, for modules without a wide form.

vmap computes attention client by client, with a warning, and decomposes linear layers and norms
into many operators. Within a `Folding`, calls of these functions by any module under vmap are
computed for all clients at once (`layers.py`).
"""

# ruff: noqa: A002 - arguments have torch's names, as they may be passed by name

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _functorch as functorch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from submodel.engines.batched.forward import UnstackableError, Wide
from submodel.engines.batched.layers import TORCH_KERNELS, LayerKernels
from submodel.model.axes.record import storage
from submodel.model.build import release, tensors_of
from submodel.model.build.checks import Reads
from submodel.model.inputs import Inputs, arguments, call, map_inputs

_Rule = Callable[..., Any]
"""(folding, the function's arguments) -> its result, or NotImplemented to leave it to vmap."""


class DisagreementError(Exception):
    """Raised if the code branches on a condition that holds for some clients only."""

    def __init__(self, answers: Tensor) -> None:
        super().__init__("clients take different branches of the code")
        self.answers = answers


class Folding(TorchFunctionMode):
    """Mode within vmap that computes functions of torch by their rules.

    With ``decides``, code may also branch on a condition, such as that no place is masked, if it
    holds for all clients or for none.
    """

    def __init__(self, clients: int, level: int, decides: bool, kernels: LayerKernels) -> None:
        super().__init__()
        self.clients, self._level, self.decides = clients, level, decides
        self.kernels = kernels

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Apply the rule of the function, if any."""
        keywords = kwargs or {}
        rule = _RULES.get(func)
        if rule is not None:
            result = rule(self, *args, **keywords)
            if result is not NotImplemented:
                return result
        elif func in _COMPOSITIONS:
            with self:
                return _COMPOSITIONS[func](*args, **keywords)
        return func(*args, **keywords)

    def client_axis(self, tensor: Tensor) -> int | None:
        """The dimension of the clients in the underlying tensor; None: it is common to all."""
        if functorch.maybe_get_level(tensor) != self._level:
            return None
        axis: int = functorch.maybe_get_bdim(tensor)
        return axis

    def fold(self, compute: Callable[..., Tensor], *tensors: Tensor | None) -> Tensor:
        """Apply a function to the underlying tensors with the clients first."""
        parts = [None if t is None else self._apart(t) for t in tensors]
        below = functorch.pop_dynamic_layer_stack()
        try:
            out = compute(*parts)
        finally:
            functorch.push_dynamic_layer_stack(below)
        return self.wrap(out)

    def wrap(self, tensor: Tensor) -> Tensor:
        """Turn a tensor with the clients first into one client's tensor under vmap."""
        view: Tensor = functorch._add_batch_dim(tensor, 0, self._level)
        return view

    def _apart(self, tensor: Tensor) -> Tensor:
        axis = self.client_axis(tensor)
        if axis is None:
            return tensor.expand(self.clients, *tensor.shape)
        below: Tensor = functorch.get_unwrapped(tensor)
        return below.movedim(axis, 0) if axis else below


def _fold_linear(
    folding: Folding, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Any:
    if folding.client_axis(weight) is None:
        return NotImplemented  # one product for the rows of all clients
    linear = folding.kernels.linear
    return folding.fold(lambda x, w, b: linear(x, w, b, False), input, weight, bias)


def _addmm(folding: Folding, input: Tensor, mat1: Tensor, mat2: Tensor, **factors: float) -> Any:
    if factors or input.dim() != 1 or folding.client_axis(mat2) is None:
        return NotImplemented

    def compute(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return folding.kernels.linear(x, weight, bias, True)

    return folding.fold(compute, input, mat1, mat2)


def _fold_layer_norm(
    folding: Folding,
    input: Tensor,
    normalized_shape: Sequence[int],  # noqa: ARG001 - the weight's
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_rest: Any,
) -> Any:
    if weight is None or folding.client_axis(weight) is None:
        return NotImplemented
    norm = folding.kernels.layer_norm
    return folding.fold(lambda x, w, b: norm(x, w, b, eps), input, weight, bias)


def _fold_rms_norm(
    folding: Folding,
    input: Tensor,
    normalized_shape: Sequence[int],  # noqa: ARG001 - the weight's
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    if weight is None or folding.client_axis(weight) is None:
        return NotImplemented
    norm = folding.kernels.rms_norm
    return folding.fold(lambda x, w: norm(x, w, eps), input, weight)


def _embedding(
    folding: Folding,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,  # noqa: ARG001 - of the largest norm
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if folding.client_axis(weight) is None:
        return NotImplemented
    if max_norm is not None or scale_grad_by_freq or sparse:
        raise NotImplementedError("embeddings with these options are not supported in stacks")
    embed = folding.kernels.embedding
    return folding.fold(lambda ids, table: embed(ids, table, padding_idx), input, weight)


def _attention(
    folding: Folding,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if dropout_p > 0:
        raise NotImplementedError("dropout is not supported in stacks: every client draws its own")
    if all(folding.client_axis(t) is None for t in (query, key, value)):
        return NotImplemented
    options = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    common = attn_mask is not None and folding.client_axis(attn_mask) is None

    def compute(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        mask = mask[:1] if common and mask is not None else mask
        return folding.kernels.attention(q, k, v, mask, **options)

    return folding.fold(compute, query, key, value, attn_mask)


def _fold_gelu(folding: Folding, input: Tensor, approximate: str = "none") -> Any:
    return _activation(folding, input, "gelu_tanh" if approximate == "tanh" else "gelu")


def _silu(folding: Folding, input: Tensor, inplace: bool = False) -> Any:
    return NotImplemented if inplace else _activation(folding, input, "silu")


def _activation(folding: Folding, x: Tensor, name: str) -> Any:
    compute = folding.kernels.activations.get(name)
    if compute is None or folding.client_axis(x) is None:
        return NotImplemented
    if x.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    return folding.fold(compute, x)


def _dropout(
    _folding: Folding,
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    *_rest: Any,
    **_options: Any,
) -> Any:
    return NotImplemented if p > 0 and training else input


def _bool(folding: Folding, condition: Tensor) -> Any:
    axis = folding.client_axis(condition)
    if axis is None or condition.dtype != torch.bool or condition.dim() or not folding.decides:
        return NotImplemented
    answers: Tensor = functorch.get_unwrapped(condition)
    holds_for_all = bool(answers.all())
    if not holds_for_all and bool(answers.any()):
        raise DisagreementError(answers)
    return holds_for_all


_RULES: dict[Callable[..., Any], _Rule] = {
    functional.linear: _fold_linear,
    torch.addmm: _addmm,
    functional.layer_norm: _fold_layer_norm,
    torch.layer_norm: _fold_layer_norm,
    functional.rms_norm: _fold_rms_norm,
    torch.rms_norm: _fold_rms_norm,
    functional.embedding: _embedding,
    functional.scaled_dot_product_attention: _attention,
    functional.gelu: _fold_gelu,
    functional.silu: _silu,
    functional.dropout: _dropout,
    torch.dropout: _dropout,
    Tensor.__bool__: _bool,
}
"""Rules by function, which compute the calls of all clients as one."""


def _without_overrides(function: Any) -> Callable[..., Any]:
    """A copy of a function of `torch.nn.functional` that modes do not intercept.

    The functions that it calls are intercepted, as they are not Python functions.
    """
    checks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    names = vars(functional) | dict.fromkeys(checks, lambda *_tensors: False)
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_COMPOSITIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    function: _without_overrides(function)
    for function in (functional.multi_head_attention_forward,)
}
"""Functions that consist of functions with rules."""


@contextmanager
def fold_calls(clients: int, decides: bool, kernels: LayerKernels) -> Iterator[Folding]:
    """Enter a `Folding` within a function under vmap."""
    with Folding(clients, functorch.current_level(), decides, kernels) as folding:
        yield folding


_warn_of_fallbacks = torch._C._functorch._set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]
_Place = tuple[dict[str, Any], str]
"""A layer's parameters or buffers, and a name among them."""


class MappedForward:
    """The module under `torch.func.vmap`; it runs once, so that an unsupported module fails early.

    ``local_names`` are the buffers that are cut but never exchanged, such as rotary frequencies: a
    stack contains every client's part of them.
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
            raise UnstackableError("a layer that occurs in two places cannot be replaced")
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
        # calls of groups must not change statistics in place a second time
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
                        f"its code refers to {captured_names[0]} directly, so it cannot be replaced"
                    )
                if not isinstance(out, Tensor) or out.dim() < 2:
                    raise UnstackableError("it does not return a single batch of outputs")
        except UnstackableError:
            raise
        except Exception as error:
            raise UnstackableError(f"vmap fails: {str(error).splitlines()[0]}") from error
        release(module)  # every call passes tensors

    def _see(self, _layer: nn.Module, _inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            self._largest = max(self._largest, math.prod(output.shape[1:]))

    def largest(self, rows: Mapping[str, int]) -> int:  # noqa: ARG002 - one shape only
        """The number of values in the largest output of a layer."""
        return self._largest

    def __call__(self, wide: Wide, clients: int, x: Inputs) -> Tensor:
        """Compute all clients in one call; tensors in the shape of one client are common to all.

        Clients for which the module's code takes different branches are computed in separate calls.
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
        """The tensors of some clients."""
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

        _warn_of_fallbacks(False)  # users cannot act on slow operators
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
    """The places of each tensor in the module: several for tied weights."""
    places: dict[str, list[_Place]] = {name: [] for name in tensors}
    names = {id(tensor): name for name, tensor in tensors.items()}
    for layer in module.modules():
        for holder in (layer._parameters, layer._buffers):
            for key, tensor in holder.items():
                if id(tensor) in names:
                    places[names[id(tensor)]].append((holder, key))
    return places


# Layers of `transformers` that consist of many operators are replaced by equal functions of torch,
# as each operator of a stack reads all its memory; results are equal up to rounding.

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
"""Replacements by the name of the class."""
_FAMILIES = ("Llama", "Mistral", "Mixtral", "Phi3", "Qwen2", "Qwen3")
_NORMS = {f"{family}RMSNorm": _rms_norm for family in _FAMILIES}
"""Norms whose replacement is faster only if one kernel computes it."""
Replacements = list[tuple[nn.Module, _Compute]]


def find_replacements(module: nn.Module, with_norms: bool = False) -> Replacements:
    """The layers that have a replacement, with the latter.

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
    """Replace the forward of these layers within the block."""
    for layer, compute in replacements:
        vars(layer)["forward"] = compute
    try:
        yield
    finally:
        for layer, _ in replacements:
            del vars(layer)["forward"]
