"""Whether examples can be trained on: finite numbers, a target for every input, labels from 0."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from submodel.errors import DataError

_MOST_CLASSES = 10_000_000  # more are numbers of another kind: identifiers, seconds, prices


def check_lengths(name: str, inputs: Mapping[str, Tensor], targets: Tensor) -> None:
    """Raise unless there is a target for every input, and an input at all."""
    for tensor in inputs.values():
        if not len(tensor) or len(tensor) != len(targets):
            counts = f"{len(tensor)} inputs and {len(targets)} targets"
            raise DataError(f"{name} data: {counts}; want as many, not 0")


def check_tensor(name: str, what: str, tensor: object) -> Tensor:
    """The tensor, if it holds finite numbers, one entry per example, here on the CPU."""
    if not isinstance(tensor, Tensor):
        kind = f"{type(tensor).__name__} of {getattr(tensor, 'dtype', '')}".removesuffix(" of ")
        raise DataError(
            f"{name} data: {what} are a {kind}; give tensors or arrays of numbers, by "
            "torch.tensor(...) or numpy.array(...)"
        )
    if tensor.layout is not torch.strided:
        raise DataError(f"{name} data: {what} are {tensor.layout}; give dense tensors, .to_dense()")
    if tensor.device.type != "cpu":
        raise DataError(
            f"{name} data: {what} are on {tensor.device}; give them on the cpu: engine.device says "
            "where to train"
        )
    if tensor.dim() == 0:
        raise DataError(f"{name} data: {what} are a single number; want one entry per example")
    if not _is_finite(tensor):
        wrong = (~tensor.isfinite()).flatten(1 if tensor.dim() > 1 else 0)
        raise DataError(
            f"{name} data: {what} of example {int(wrong.nonzero()[0, 0])} are not finite"
        )
    return tensor.detach()


def _is_finite(tensor: Tensor) -> bool:
    """Whether all numbers are finite: two of them tell, as what is none is passed on by both."""
    if tensor.is_complex():
        return _is_finite(torch.view_as_real(tensor.resolve_conj()))
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    return all(math.isfinite(float(extreme)) for extreme in torch.aminmax(tensor.detach()))


def are_labels(y: Tensor) -> bool:
    """Whether targets are class labels: one whole number per example."""
    return y.dim() == 1 and not y.is_floating_point() and not y.is_complex()


def count_classes(train: Tensor, test: Tensor) -> int:
    """How many classes the labels speak of."""
    least = min(int(train.min()), int(test.min()))
    if least < 0:
        raise DataError("class labels must be 0, 1, 2, ...; a negative one was given")
    classes = max(int(train.max()), int(test.max())) + 1
    if classes > _MOST_CLASSES:
        raise DataError(
            f"class labels must be 0, 1, 2, ...; {classes - 1:,} was given, for "
            f"{len(torch.unique(train)):,} different labels; number them, by "
            "torch.unique(y, return_inverse=True)[1]"
        )
    return classes
