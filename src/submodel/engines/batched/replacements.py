"""Layers of `transformers` that are written out in many operators, as the one of torch they equal.

In a stack each operator is a walk through memory, so that one in place of eight counts. Results are
the same but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

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
