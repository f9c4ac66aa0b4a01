"""Longer examples: whether a loop over the steps of an input feeds back what it writes.

With a single step, a loop of the user's own reads its first state and writes another, and nothing
tells that the two are one. So where an input is short along some dimension and the module also runs
on a longer one, the trace watches that forward as well.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from submodel.model.axes.forward import isolate, outputs_of, run, tensors_in
from submodel.model.inputs import Inputs

SHORT = 4
"""Up to this size, a dimension of an input may be too few steps: it is tried with more."""


def longer_inputs(
    module: nn.Module,
    inputs: Inputs,
    steps: Collection[int],
    outputs: Callable[[Any], Any] | None = None,
) -> Iterator[Inputs]:
    """The example with more steps along each short dimension along which the module runs then.

    The first dimension counts examples, unless single positions were taken out of a dimension of
    its size, of which ``steps`` tells. Whole numbers that say how many steps there are say so.

    >>> [x.shape for x in longer_inputs(nn.ReLU(), torch.ones(9, 1, 5), ())]
    [torch.Size([9, 3, 5])]
    """
    tensors = {id(t): t for t in tensors_in(inputs, strict=False)}
    depth = max((t.dim() for t in tensors.values()), default=0)
    for d in range(depth):
        sizes = {t.shape[d] for t in tensors.values() if t.dim() > d}
        for size in sorted(n for n in sizes if 0 < n <= SHORT and (d > 0 or n in steps)):
            short = [t for t in tensors.values() if t.dim() > d and t.shape[d] == size]
            for longer in _lengthen(inputs, short, d, size):
                if _runs(module, longer, outputs):
                    yield longer
                    break


def _lengthen(inputs: Inputs, short: list[Tensor], d: int, size: int) -> Iterator[Inputs]:
    """All inputs of this size with twice as many steps and one; or each on its own."""
    more = 2 * size + 1

    def repeat(tensor: Tensor) -> Tensor:
        return tensor.index_select(d, torch.arange(more, device=tensor.device) % size)

    def recount(value: Any) -> Any:
        if isinstance(value, Tensor):
            whole = not (value.is_floating_point() or value.is_complex() or value.is_meta)
            lengths = whole and value.dim() < 2 and value.numel() and int(value.max()) == size
            return value.masked_fill(value == size, more) if lengths else value
        return more if type(value) is int and value == size else value

    all_longer = {id(t): repeat(t) for t in short}
    yield _replace_tensors(inputs, all_longer, recount)
    yield _replace_tensors(inputs, all_longer)
    for tensor in short if len(short) > 1 else ():
        yield _replace_tensors(inputs, {id(tensor): repeat(tensor)})


def _replace_tensors(
    value: Any, new: Mapping[int, Tensor], other: Callable[[Any], Any] = lambda value: value
) -> Any:
    """Some tensors exchanged, everything else as ``other`` says, in nested containers too."""
    if isinstance(value, Mapping):
        return {key: _replace_tensors(item, new, other) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_replace_tensors(item, new, other) for item in value)
    return new[id(value)] if id(value) in new else other(value)


def _runs(module: nn.Module, inputs: Inputs, outputs: Callable[[Any], Any] | None) -> bool:
    """Whether the module takes the inputs and says something to them."""
    with isolate(module), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            results = outputs_of(run(module, inputs), outputs)
            return all(t.is_meta or bool(t.isfinite().all()) for t in results)
        except Exception:  # whatever a module says to an input that it is not made for
            return False
