"""Evaluation of convolutional nets by the compiled kernels: fixed norm statistics, no gradients.

With fixed statistics examples are independent, so a batch is computed in pieces that stay in the
processor's cache. The first examples of every evaluation are also computed by the module itself: if
the results differ by more than rounding, or the kernels do not support a net, the module is used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor, nn

from submodel.algorithm.types import plain_scorer
from submodel.engines.batched.forward import UnstackableError, WideForward
from submodel.engines.native import library
from submodel.engines.native.forward import NativeForward, PreparedNet, StackView
from submodel.engines.native.library import BuildError
from submodel.model.build import build_module
from submodel.model.cut import WHOLE
from submodel.model.inputs import Inputs, call, take_rows
from submodel.model.norm import StaticBatchNorm

# bytes of a piece's largest activation; least number of examples in a piece, and its granularity
_PIECE_BYTES, _LEAST, _STEP = 5 << 17, 16, 4
_TOLERANCE = 1e-3  # relative to the largest output: far above rounding, far below mistakes
_TRIAL_EXAMPLES = 2


class KernelScorer:
    """Computes the outputs of a net and of all its cuts in evaluation."""

    def __init__(self, module: nn.Module, example: Inputs) -> None:
        self._module, self._example = module, take_rows(example, slice(_TRIAL_EXAMPLES))
        self._forward: NativeForward | None = None
        self._is_refused = False

    def __call__(self, module: nn.Module) -> Callable[[Inputs], Tensor]:
        """A function that computes the outputs of a cut's module with its present weights."""
        try:
            pieces = _Pieces(self._kernels(), module)
            is_same = _agree(call(module, self._example), pieces(self._example))
        except (UnstackableError, BuildError):
            is_same = False
        return pieces if is_same else plain_scorer(module)

    def _kernels(self) -> NativeForward:
        """The native forward of the whole net, which serves every cut; made lazily."""
        if self._is_refused:
            raise UnstackableError("the net was refused before")
        if self._forward is None:
            self._is_refused = True  # until the lines below succeed
            whole = build_module(self._module, WHOLE).train()
            self._forward = NativeForward(WideForward(whole, self._example))
            self._is_refused = False
        return self._forward


class _Pieces:
    """Computes the outputs of one module in pieces of some examples."""

    def __init__(self, forward: NativeForward, module: nn.Module) -> None:
        wide = {name: parameter.detach() for name, parameter in module.named_parameters()}
        if missing := [name for name in forward.names if name not in wide]:
            raise UnstackableError(f"{missing[0]} is not in this cut")
        self._forward, self._stack = forward, StackView(wide, forward.names, 1)
        norms = {
            id(layer.weight): layer
            for layer in module.modules()
            if isinstance(layer, StaticBatchNorm)
        }
        parameters = dict(module.named_parameters())
        self._norms = [norms.get(id(parameters[name])) for name in forward.names]
        bytes_of_one = 4 * forward.largest(self._stack.rows)
        self._most = max(_LEAST, _PIECE_BYTES // bytes_of_one)
        if not forward.is_for(self._stack.rows, self._most):
            raise UnstackableError("it is too large for the kernels")

    def __call__(self, x: Inputs) -> Tensor:
        """The outputs of a batch."""
        if not isinstance(x, Tensor) or x.dtype != torch.float32 or x.device.type != "cpu":
            raise UnstackableError("the kernels only compute images in float32 on the CPU")
        count = len(x)
        size = -(-count // -(-count // self._most))
        size = -(-size // _STEP) * _STEP
        net = self._forward.prepare(self._stack, size, has_statistics=True)
        buffers = self._forward.workspace.reserve(net, 1)
        self._write_statistics(net, buffers[0])
        out = torch.empty(count, net.layout.outputs)
        for start in range(0, count, size):
            piece = x[start : start + size].contiguous()
            target = out[start : start + size]
            if len(piece) == size:
                self._compute(net, buffers, piece, target)
                continue
            whole_piece = x.new_zeros(size, *x.shape[1:])
            whole_piece[: len(piece)] = piece
            outputs = torch.empty(size, net.layout.outputs)
            self._compute(net, buffers, whole_piece, outputs)
            target.copy_(outputs[: len(piece)])
        return out

    def _write_statistics(self, net: PreparedNet, activations: Tensor) -> None:
        """Write mean and 1 / deviation of every channel to the memory that the kernels read."""
        for op in net.ops:
            if op.kind != library.NORM:
                continue
            layer = self._norms[op.weight]
            if layer is None or layer.statistics is None or layer.always_by_batch:
                raise UnstackableError("a norm has no fixed statistics")
            mean, variance = layer.statistics
            pairs = torch.stack([mean, (variance.double() + layer.eps).rsqrt().float()], 1)
            activations[op.statistics : op.statistics + pairs.numel()] = pairs.reshape(-1)

    def _compute(
        self, net: PreparedNet, buffers: tuple[Tensor, ...], x: Tensor, out: Tensor
    ) -> None:
        net.plan.clients = 1
        library.load_library().forward(
            net.ops, len(net.ops), ctypes.byref(net.plan), self._stack.describe(),
            x.data_ptr(), out.data_ptr(), buffers[0].data_ptr(), buffers[2].data_ptr(),
        )  # fmt: skip


def _agree(ours: Tensor, other: Tensor) -> bool:
    """Return whether outputs are finite and differ by rounding alone."""
    if ours.shape != other.shape:
        return False
    largest = float(ours.abs().max())
    return bool((ours - other).abs().max() <= _TOLERANCE * largest)
