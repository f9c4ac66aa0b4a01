"""What computes the layers of transformers of a stack: torch's operators, or kernels of our own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.nn import functional

from submodel.engines.batched.folded_attention import attend_small_heads
from submodel.engines.batched.folded_gelu import fold_gelu
from submodel.engines.batched.folded_layers import fold_layer_norm, fold_linear, fold_rms_norm


class Attend(Protocol):
    """Attention of (batch, heads, places, values) without a mask; None: torch's own is to do it."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float | None
    ) -> Tensor | None:
        """Keys and values may be of fewer heads, each of which several share."""
        ...


@dataclass(frozen=True)
class LayerKernels:
    """Functions of tensors with the clients first; each as torch's of its name."""

    linear: Callable[[Tensor, Tensor, Tensor | None, bool], Tensor]
    layer_norm: Callable[[Tensor, Tensor, Tensor | None, float], Tensor]
    rms_norm: Callable[[Tensor, Tensor, float | None], Tensor]
    attend: Attend
    activations: Mapping[str, Callable[[Tensor], Tensor]]  # gelu_tanh, gelu, silu: as far as any
    cross_entropy: Callable[
        [Tensor, Tensor, int, float], Tensor
    ]  # (rows, labels, no_label, smooth)
    fuses_norms: bool = False  # whether norms that are written out are computed as one


def _cross_entropy(rows: Tensor, labels: Tensor, no_label: int, smoothing: float) -> Tensor:
    return functional.cross_entropy(
        rows, labels, ignore_index=no_label, label_smoothing=smoothing, reduction="none"
    )


TORCH_KERNELS = LayerKernels(
    fold_linear,
    fold_layer_norm,
    fold_rms_norm,
    attend_small_heads,
    {"gelu_tanh": fold_gelu},
    _cross_entropy,
)
