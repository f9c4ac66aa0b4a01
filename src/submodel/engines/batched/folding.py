"""How a mapped forward computes the layers of transformers: by rules of ours, not by vmap's.

`torch.func.vmap` takes attention client by client, with a warning, and decomposes linear layers
and norms into many operators. While a `Folding` is entered, calls of these functions by a module
under vmap are computed for all clients at once (`layers.py`), whoever wrote the module.
"""

# ruff: noqa: A002 - arguments have torch's names, as they may be given by name

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from submodel.engines.batched.layers import LayerKernels

_Rule = Callable[..., Any]
"""(the folding, the function's own arguments) -> its result, or NotImplemented: vmap's own way."""


class DisagreementError(Exception):
    """Code asks whether something holds, and it does for some clients only."""

    def __init__(self, answers: Tensor) -> None:
        super().__init__("clients take different ways through the code")
        self.answers = answers


class Folding(TorchFunctionMode):
    """Inside vmap: functions of torch that have a rule are computed by it.

    With ``decides``, code may also ask whether a condition holds, such as that no place is masked,
    as long as it holds for all clients or for none.
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
        """Take the rule where there is one."""
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
        """Where the clients are in the memory below a tensor; None: it is everybody's."""
        if functorch.maybe_get_level(tensor) != self._level:
            return None
        axis: int = functorch.maybe_get_bdim(tensor)
        return axis

    def fold(self, compute: Callable[..., Tensor], *tensors: Tensor | None) -> Tensor:
        """What a function makes of the tensors with the clients first."""
        parts = [None if t is None else self._apart(t) for t in tensors]
        below = functorch.pop_dynamic_layer_stack()
        try:
            out = compute(*parts)
        finally:
            functorch.push_dynamic_layer_stack(below)
        return self.wrap(out)

    def wrap(self, tensor: Tensor) -> Tensor:
        """A tensor with the clients first, as a client's code sees it."""
        view: Tensor = functorch._add_batch_dim(tensor, 0, self._level)
        return view

    def _apart(self, tensor: Tensor) -> Tensor:
        axis = self.client_axis(tensor)
        if axis is None:
            return tensor.expand(self.clients, *tensor.shape)
        below: Tensor = functorch.get_unwrapped(tensor)
        return below.movedim(axis, 0) if axis else below


def _linear(folding: Folding, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if folding.client_axis(weight) is None:
        return NotImplemented  # one product for everybody's rows
    linear = folding.kernels.linear
    return folding.fold(lambda x, w, b: linear(x, w, b, False), input, weight, bias)


def _addmm(folding: Folding, input: Tensor, mat1: Tensor, mat2: Tensor, **factors: float) -> Any:
    if factors or input.dim() != 1 or folding.client_axis(mat2) is None:
        return NotImplemented

    def compute(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return folding.kernels.linear(x, weight, bias, True)

    return folding.fold(compute, input, mat1, mat2)


def _layer_norm(
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


def _rms_norm(
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
        raise NotImplementedError("such an embedding has no form for stacks")
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
        raise NotImplementedError("every client draws its own dropout")
    if all(folding.client_axis(t) is None for t in (query, key, value)):
        return NotImplemented
    options = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    common = attn_mask is not None and folding.client_axis(attn_mask) is None

    def compute(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        mask = mask[:1] if common and mask is not None else mask
        return folding.kernels.attention(q, k, v, mask, **options)

    return folding.fold(compute, query, key, value, attn_mask)


def _gelu(folding: Folding, input: Tensor, approximate: str = "none") -> Any:
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
    functional.linear: _linear,
    torch.addmm: _addmm,
    functional.layer_norm: _layer_norm,
    torch.layer_norm: _layer_norm,
    functional.rms_norm: _rms_norm,
    torch.rms_norm: _rms_norm,
    functional.embedding: _embedding,
    functional.scaled_dot_product_attention: _attention,
    functional.gelu: _gelu,
    functional.silu: _silu,
    functional.dropout: _dropout,
    torch.dropout: _dropout,
    Tensor.__bool__: _bool,
}
"""By function: how all clients' calls are computed as one."""


def _without_overrides(function: Any) -> Callable[..., Any]:
    """A function of `torch.nn.functional` that does not offer itself to modes again.

    It is computed in its parts, which are offered, as they are no Python functions.
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
"""Functions that are made of such with a rule."""


@contextmanager
def fold_calls(clients: int, decides: bool, kernels: LayerKernels) -> Iterator[Folding]:
    """Within a function under vmap: what has a rule is computed by it.

    Args:
        clients: how many vmap maps over.
        decides: whether code may ask for what holds for all clients or for none.
        kernels: what computes the layers.
    """
    with Folding(clients, functorch.current_level(), decides, kernels) as folding:
        yield folding
