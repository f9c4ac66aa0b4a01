"""Scores of convolutional nets by the compiled kernels: norms by fixed statistics, no gradients.

Examples do not depend on each other then, so a batch is computed in pieces that stay in the
processor's cache. The first examples of every evaluation are computed by the module itself as well:
where the two differ by more than rounding, or the kernels cannot compute a net, the module does.
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

_PIECE_BYTES, _LEAST, _STEP = 5 << 17, 16, 4  # of a piece's largest activation; and examples
_TOLERANCE = 1e-3  # of the largest output: far above rounding, far below any mistake
_TRIAL_EXAMPLES = 2


class KernelScorer:
    """Computes the outputs of a net and of all its cuts in evaluation."""

    def __init__(self, module: nn.Module, example: Inputs) -> None:
        self._module, self._example = module, take_rows(example, slice(_TRIAL_EXAMPLES))
        self._forward: NativeForward | None = None
        self._is_refused = False

    def __call__(self, module: nn.Module) -> Callable[[Inputs], Tensor]:
        """What computes the outputs of a cut's module, as it is now."""
        try:
            pieces = _Pieces(self._kernels(), module)
            is_same = _agree(call(module, self._example), pieces(self._example))
        except (UnstackableError, BuildError):
            is_same = False
        return pieces if is_same else plain_scorer(module)

    def _kernels(self) -> NativeForward:
        """Those of the whole net, which serve every cut; made when they are first needed."""
        if self._is_refused:
            raise UnstackableError("it was refused before")
        if self._forward is None:
            self._is_refused = True  # unless all goes well
            whole = build_module(self._module, WHOLE).train()
            self._forward = NativeForward(WideForward(whole, self._example))
            self._is_refused = False
        return self._forward


class _Pieces:
    """The outputs of one module, some examples at a time."""

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
            raise UnstackableError("the kernels compute images in float32, on the CPU")
        count = len(x)
        size = -(-count // -(-count // self._most))
        size = -(-size // _STEP) * _STEP
        net = self._forward.prepare(self._stack, size, has_statistics=True)
        rooms = self._forward.memory.claim(net, 1)
        self._write_statistics(net, rooms[0])
        out = torch.empty(count, net.layout.outputs)
        for start in range(0, count, size):
            piece = x[start : start + size].contiguous()
            room = out[start : start + size]
            if len(piece) == size:
                self._compute(net, rooms, piece, room)
                continue
            whole_piece = x.new_zeros(size, *x.shape[1:])
            whole_piece[: len(piece)] = piece
            outputs = torch.empty(size, net.layout.outputs)
            self._compute(net, rooms, whole_piece, outputs)
            room.copy_(outputs[: len(piece)])
        return out

    def _write_statistics(self, net: PreparedNet, activations: Tensor) -> None:
        """Where the kernels find mean and 1 / deviation of every channel."""
        for op in net.ops:
            if op.kind != library.NORM:
                continue
            layer = self._norms[op.weight]
            if layer is None or layer.statistics is None or layer.always_by_batch:
                raise UnstackableError("a norm has no fixed statistics")
            mean, variance = layer.statistics
            pairs = torch.stack([mean, (variance.double() + layer.eps).rsqrt().float()], 1)
            activations[op.statistics : op.statistics + pairs.numel()] = pairs.reshape(-1)

    def _compute(self, net: PreparedNet, rooms: tuple[Tensor, ...], x: Tensor, out: Tensor) -> None:
        net.plan.clients = 1
        library.load_library().forward(
            net.ops, len(net.ops), ctypes.byref(net.plan), self._stack.describe(),
            x.data_ptr(), out.data_ptr(), rooms[0].data_ptr(), rooms[2].data_ptr(),
        )  # fmt: skip


def _agree(ours: Tensor, other: Tensor) -> bool:
    """Return whether outputs differ by rounding alone; those that are not finite never do."""
    if ours.shape != other.shape:
        return False
    largest = float(ours.abs().max())
    return bool((ours - other).abs().max() <= _TOLERANCE * largest)
