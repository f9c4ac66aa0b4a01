"""Products of groups of rows with a matrix each, as experts have them, at any width.

Torch's kernel wants rows of a multiple of 16 bytes, which the widths of the full model are and
those of a cut need not be. A sub-model's module that multiplies so pads both operands with zeros,
which add nothing to the sums, and cuts the padding off the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

BYTES = 16


def pad_groups(module: nn.Module, small: nn.Module, paths: Iterable[str]) -> None:
    """Let the modules of ``small`` at ``paths`` pad, where their tensors are cut."""
    for path in paths:
        layer, whole = small.get_submodule(path), module.get_submodule(path)
        pairs = zip(layer.parameters(), whole.parameters(), strict=True)
        if any(p.shape != q.shape for p, q in pairs):
            layer.forward = PaddedForward(layer)


class PaddedForward:
    """The forward of a module, with products of groups padded."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes."""
        with _Padding():
            return type(self.layer).forward(self.layer, *args, **kwargs)


class _Padding(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        is_grouped_product = func is torch._grouped_mm
        return (_padded_product if is_grouped_product else func)(*args, **(kwargs or {}))


def _padded_product(rows: Tensor, matrices: Tensor, **options: Any) -> Tensor:
    """``torch._grouped_mm`` of operands of any width."""
    step = BYTES // rows.element_size()
    width = matrices.shape[-1]
    inner, outer = -rows.shape[-1] % step, -width % step
    if inner or outer:
        rows = functional.pad(rows, (0, inner))
        matrices = functional.pad(matrices, (0, outer, 0, inner))
    product: Tensor = torch._grouped_mm(rows, matrices, **options)
    return product[..., :width]
