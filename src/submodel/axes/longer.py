"""Longer examples: whether a loop over the steps of an input feeds back what it writes.

With a single step, a loop of the user's own reads its first state and writes another, and nothing
tells that the two are one. So where an input is short along some dimension and the module also runs
on a longer one, the trace watches that forward as well.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from submodel.axes.forward import Inputs, run, tensors_in, undisturbed

SHORT = 4
"""Up to this size, a dimension of an input may be too few steps: it is tried with more."""


def longer_inputs(module: nn.Module, inputs: Inputs, steps: Collection[int]) -> Iterator[Inputs]:
    """The example with more steps along each short dimension along which the module runs then.

    The first dimension counts examples, unless single positions were taken out of a dimension of
    its size, of which ``steps`` tells.

    >>> [x.shape for x in longer_inputs(nn.ReLU(), torch.ones(9, 1, 5), ())]
    [torch.Size([9, 3, 5])]
    """
    tensors = {id(t): t for t in tensors_in(inputs, strict=False)}
    depth = max((t.dim() for t in tensors.values()), default=0)
    for d in range(depth):
        sizes = {t.shape[d] for t in tensors.values() if t.dim() > d}
        for size in sorted(n for n in sizes if n <= SHORT and (d > 0 or n in steps)):
            short = [t for t in tensors.values() if t.dim() > d and t.shape[d] == size]
            for chosen in [short, *([t] for t in short)] if len(short) > 1 else [short]:
                longer = _replaced(inputs, {id(t): _repeated(t, d) for t in chosen})
                if _runs(module, longer):
                    yield longer
                    break


def _repeated(tensor: Tensor, d: int) -> Tensor:
    """More steps, with values that the input has: twice as many, and one."""
    more = torch.arange(2 * tensor.shape[d] + 1, device=tensor.device) % max(tensor.shape[d], 1)
    return tensor.index_select(d, more) if tensor.shape[d] else tensor


def _replaced(value: Any, new: Mapping[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return new.get(id(value), value)
    if isinstance(value, Mapping):
        return {key: _replaced(item, new) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_replaced(item, new) for item in value)
    return value


def _runs(module: nn.Module, inputs: Inputs) -> bool:
    with undisturbed(module), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run(module, inputs)
        except Exception:  # whatever a module says to an input that it is not made for
            return False
    return True
