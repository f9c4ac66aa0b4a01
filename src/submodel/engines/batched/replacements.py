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


_EQUALS: dict[str, Callable[[Any], _Compute]] = {
    "NewGELUActivation": _gelu,
    "FastGELUActivation": _gelu,
}
"""By the name of the class."""
Replacements = list[tuple[nn.Module, _Compute]]


def find_replacements(module: nn.Module) -> Replacements:
    """The layers that have an equal, each with it.

    Args:
        module: any.

    >>> find_replacements(nn.GELU())
    []
    """
    return [
        (layer, _EQUALS[type(layer).__name__](layer))
        for layer in module.modules()
        if type(layer).__name__ in _EQUALS and type(layer).__module__.startswith("transformers.")
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
