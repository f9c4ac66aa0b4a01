"""Messages: the values that a cut holds and, if necessary, the mask as bits.

The tensors of a unit cut are dense already. Of a tensor under a coordinate mask only the held
values are sent, in row-major order. A receiver that can repeat the draw needs no mask; any other is
sent the mask, one bit per weight. Packing and unpacking change no bit of `gather`'s tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from submodel.core.errors import PlanError
from submodel.model.cut import CoordinateCut, Cut

Transport = Literal["exact", "half"]
"""Exact values, or float16 with one scale per tensor."""
TensorShapes = Mapping[str, Sequence[int]]
"""Shapes of the whole model's tensors, by name; both sides have them."""
_VALUES, _MASKS = "values/", "masks/"


@dataclass(frozen=True)
class PackedTensors:
    """The tensors of a cut, as they are sent."""

    values: Mapping[str, Tensor]
    masks: Mapping[str, Tensor] = field(default_factory=dict)
    """Masks as bits, eight to a byte; a tensor that is held whole needs none."""

    @property
    def size(self) -> int:
        """Bytes of values and masks, without names and shapes."""
        return sum(
            t.numel() * t.element_size()
            for part in (self.values, self.masks)
            for t in part.values()
        )

    def to_tensors(self) -> dict[str, Tensor]:
        """Return values and masks in one dictionary."""
        values = {_VALUES + n: t for n, t in self.values.items()}
        return values | {_MASKS + n: t for n, t in self.masks.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> PackedTensors:
        """Invert `to_tensors`; other tensors are ignored."""
        values, masks = (
            {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
            for start in (_VALUES, _MASKS)
        )
        return cls(values, masks)


def pack_cut(cut: Cut, tensors: Mapping[str, Tensor], masks: bool = False) -> PackedTensors:
    """Pack the tensors of a cut, of `gather` or a client; with ``masks``, its masks as well.

    >>> cut = CoordinateCut({"w": torch.tensor([True, False, True])})
    >>> packed = pack_cut(cut, {"w": torch.tensor([1.0, 0.0, 2.0])}, masks=True)
    >>> packed.values["w"], packed.masks["w"], packed.size
    (tensor([1., 2.]), tensor([160], dtype=torch.uint8), 9)
    """
    values, bits = {}, {}
    for name, tensor in tensors.items():
        mask = _mask(cut, name, tensor.shape)
        values[name] = (tensor if mask is None else tensor[mask]).contiguous()
        if mask is not None and masks:
            bits[name] = torch.from_numpy(np.packbits(mask.numpy()))
    return PackedTensors(values, bits)


def unpack_cut(
    package: PackedTensors, shapes: TensorShapes, cut: Cut | None = None
) -> tuple[Cut, dict[str, Tensor]]:
    """Unpack the cut and its tensors; without a given cut, its masks must have been sent.

    >>> package = PackedTensors({"w": torch.ones(1)}, {"w": torch.tensor([64], dtype=torch.uint8)})
    >>> unpack_cut(package, {"w": [2]})[1]
    {'w': tensor([0., 1.])}
    """
    if cut is None:
        cut = CoordinateCut(_unpack_masks(package.masks, shapes))
    tensors = {}
    for name, values in package.values.items():
        mask = _mask(cut, name, shapes[name])
        if mask is None:
            tensors[name] = values
        elif values.shape != (count := int(mask.sum()),):
            raise PlanError(f"{name}: values of shape {tuple(values.shape)} for {count:,} weights")
        else:
            tensors[name] = values.new_zeros(tuple(shapes[name]))
            tensors[name][mask] = values
    return cut, tensors


def mask_bytes(cut: Cut, shapes: TensorShapes) -> int:
    """Return the number of bytes of the masks of a cut.

    >>> mask_bytes(CoordinateCut({"w": torch.arange(20) > 3}), {"w": [20], "b": [9]})
    3
    """
    return sum(
        -(-math.prod(shape) // 8)
        for name, shape in shapes.items()
        if _mask(cut, name, shape) is not None
    )


def halve(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Scale floating-point tensors by powers of two to float16 in [-1, 1]; return the scales, too.

    >>> halve({"w": torch.tensor([3.0, 0.5])})
    ({'w': tensor([0.7500, 0.1250], dtype=torch.float16)}, {'w': 4.0})
    """
    small, scales = dict(tensors), {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.element_size() > 2 and tensor.numel():
            largest = float(tensor.abs().max())
            usual = math.isfinite(largest) and largest > 0
            scales[name] = 2.0 ** math.frexp(largest)[1] if usual else 1.0
            small[name] = (tensor / scales[name]).half()
    return small, scales


def restore_values(small: Mapping[str, Tensor], scales: Mapping[str, float]) -> dict[str, Tensor]:
    """Invert `halve`, in float32.

    >>> restore_values(*halve({"w": torch.tensor([3.0, 0.5])}))
    {'w': tensor([3.0000, 0.5000])}
    """
    return {n: t.float() * scales[n] if n in scales else t for n, t in small.items()}


def _mask(cut: Cut, name: str, shape: Sequence[int]) -> Tensor | None:
    """Return the mask of a tensor; None if the cut holds all of it, or a smaller dense tensor."""
    mask = cut.mask(name)
    if mask is None or cut.value_count(name, shape) == math.prod(shape):
        return None
    return mask.bool()


def _unpack_masks(masks: Mapping[str, Tensor], shapes: TensorShapes) -> dict[str, Tensor]:
    mask_by_name = {}
    for name, bits in masks.items():
        size = -(-math.prod(shapes[name]) // 8)
        if bits.dtype != torch.uint8 or bits.shape != (size,):
            raise PlanError(
                f"{name}: a mask of {bits.dtype}, {tuple(bits.shape)}; want {size:,} bytes"
            )
        flat = np.unpackbits(bits.numpy(), count=math.prod(shapes[name])).astype(np.bool_)
        mask_by_name[name] = torch.from_numpy(flat).view(tuple(shapes[name]))
    return mask_by_name
