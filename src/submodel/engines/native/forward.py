"""The forward pass of a stack by the compiled kernels, and its gradients, as one function of torch.

Every client is computed separately, so neither the stacks nor the number of processes change a bit
of the result.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from submodel.engines.batched.forward import UnstackableError, Wide, WideForward
from submodel.engines.native.library import LANES, NetPlan, Op, StackTensor, load_library
from submodel.engines.native.planning import NetLayout, make_specs, plan_layers
from submodel.model.inputs import Inputs, first_column

LARGEST_BYTES = 1 << 24
"""Nets with an activation of more bytes than this, for one client, are computed by torch.

Measured on pre-activation ResNets of widths 16 to 64 at batches of 10 and 32, with activations of
up to 8 MB (docs/kernels.md); larger ones were not measured. The rule depends on one client's shapes
alone, so that a client is computed in the same way in every stack.
"""
_KEPT_LAYOUTS = 64
_FIELDS = len(StackTensor._fields_)


class NativeForward:
    """A net's wide forward by the kernels; raises `UnstackableError` if the net is not supported.

    Memory is reused in every step, so a forward pass invalidates the gradients of the previous one.
    """

    def __init__(self, wide: WideForward) -> None:
        self.module = wide.module
        self._wide = wide
        self._specs = make_specs(wide.graph)
        self._inputs: tuple[int, int, int] = wide.graph.shape  # type: ignore[assignment]
        names = (name for one in self._specs for name in (one.weight, one.bias))
        self.names = list(dict.fromkeys(name for name in names if name is not None))
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self._layouts: dict[object, PreparedNet] = {}
        self.workspace = Workspace()
        self._stack: StackView | None = None
        load_library()

    def largest(self, rows: Mapping[str, int]) -> int:
        """The values per example in the largest activation."""
        return self._wide.largest(rows)

    def is_for(self, rows: Mapping[str, int], batch: int) -> bool:
        """Return whether the kernels, not torch, compute nets of these sizes."""
        return 4 * self.largest(rows) * batch <= LARGEST_BYTES

    def __call__(self, wide: Wide, clients: int, x: Inputs) -> Tensor:
        """Map inputs (batch, clients, ...) to outputs (batch, clients, classes)."""
        batch = first_column(x).contiguous()
        if self._stack is None or self._stack.wide is not wide:  # usually the same as before
            self._stack = StackView(wide, self.names, clients)
        if not self.is_for(self._stack.rows, len(batch)):
            return self._wide(wide, clients, x)
        net = self.prepare(self._stack, len(batch))
        out: Tensor = _Net.apply(net, self.workspace, self._stack, batch, *self._stack.tensors)  # type: ignore[no-untyped-call]
        return out

    def prepare(self, stack: StackView, batch: int, *, has_statistics: bool = False) -> PreparedNet:
        """The layout of a stack's nets for a batch size.

        ``has_statistics``: norms use given statistics, to be written to their places in memory.
        """
        rates = tuple(one.scaler.rate for one in self._specs if one.scaler is not None)
        key = (stack.shapes, batch, rates, has_statistics)
        if key not in self._layouts:
            while len(self._layouts) >= _KEPT_LAYOUTS:
                self._layouts.pop(next(iter(self._layouts)))
            by_name = dict(zip(self.names, stack.shapes, strict=True))
            layout = plan_layers(self._specs, self._inputs, by_name, self._numbers, batch)
            for op in layout.ops:
                op.has_statistics = has_statistics
            self._layouts[key] = PreparedNet(layout, self._inputs, batch)
        return self._layouts[key]


class StackView:
    """The tensors of a stack in the form that the kernels need."""

    def __init__(self, wide: Wide, names: Sequence[str], clients: int) -> None:
        self.wide, self.clients = wide, clients
        self.rows = {name: len(t) // clients for name, t in wide.items() if t.dim()}
        self.tensors = [_dense(wide[name]) for name in names]
        self.shapes = tuple((len(t) // clients, *t.shape[1:]) for t in self.tensors)
        if any(t.dtype != torch.float32 for t in self.tensors):
            raise UnstackableError("the kernels compute in float32")
        self._numbers: list[int] = []
        for tensor in self.tensors:
            stride = tensor.stride()
            inner, tap = (stride[1], stride[-1]) if len(stride) > 1 else (0, 0)
            client = len(tensor) // clients * stride[0]
            self._numbers += (tensor.data_ptr(), 0, client, stride[0], inner, tap)

    def describe(self, gradients: Sequence[Tensor | None] = ()) -> ctypes.Array[StackTensor]:
        """The descriptors of the tensors and their gradients."""
        numbers = list(self._numbers)
        if gradients:
            numbers[1::_FIELDS] = [0 if g is None else g.data_ptr() for g in gradients]
        memory = (ctypes.c_int64 * len(numbers))(*numbers)
        return (StackTensor * len(self.tensors)).from_buffer(memory)


class PreparedNet:
    """A layout in the form that the kernels need."""

    def __init__(self, layout: NetLayout, inputs: Sequence[int], batch: int) -> None:
        self.layout = layout
        self.ops = (Op * len(layout.ops))(*layout.ops)
        starts = [sum(layout.scratch[:i]) for i in range(len(layout.scratch))]
        offsets, filters, phases, turns = starts
        self.scratch = sum(layout.scratch)
        self.plan = NetPlan(
            clients=0, batch=batch, channels=inputs[0], height=inputs[1], width=inputs[2],
            pad=layout.pad, outputs=layout.outputs, output=layout.output, doutput=layout.doutput,
            activations=layout.activations, offsets=offsets, filters=filters, phases=phases,
            turns=turns,
        )  # fmt: skip


class Workspace:
    """Memory for activations, gradients and scratch; set to zero when the layout changes."""

    def __init__(self) -> None:
        self._activations = self._gradients = self._scratch = torch.empty(0)
        self._owner: PreparedNet | None = None
        self._clients = 0
        self.generation = 0

    def reserve(self, net: PreparedNet, clients: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the memory for a layout and a number of clients."""
        self.generation += 1
        layout = net.layout
        if self._owner is not net or clients > self._clients:
            self._activations = _zeroed(self._activations, clients * layout.activations)
            self._gradients = _zeroed(self._gradients, layout.gradients)
            self._scratch = _zeroed(self._scratch, net.scratch)
            self._owner, self._clients = net, clients
        return self._activations, self._gradients, self._scratch


def _zeroed(memory: Tensor, size: int) -> Tensor:
    if len(memory) < size + LANES:
        return torch.zeros(size + LANES)
    memory[: size + LANES].zero_()
    return memory


class _Net(torch.autograd.Function):
    """(inputs, the stack's tensors) -> outputs."""

    @staticmethod
    def forward(
        ctx: Any, net: PreparedNet, workspace: Workspace, stack: StackView, x: Tensor, *_: Tensor
    ) -> Tensor:
        if x.dtype != torch.float32:
            raise UnstackableError("the kernels compute in float32")
        ctx.buffers = workspace.reserve(net, stack.clients)
        ctx.workspace, ctx.generation, ctx.net, ctx.stack = (
            workspace,
            workspace.generation,
            net,
            stack,
        )
        out = x.new_empty(len(x), stack.clients, net.layout.outputs)
        net.plan.clients = stack.clients
        activations, scratch = ctx.buffers[0], ctx.buffers[2]
        load_library().forward(
            net.ops, len(net.ops), ctypes.byref(net.plan), stack.describe(),
            x.data_ptr(), out.data_ptr(), activations.data_ptr(), scratch.data_ptr(),
        )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.workspace.generation != ctx.generation:
            raise RuntimeError("another forward pass has used the memory of this one")
        net, stack = ctx.net, ctx.stack
        gradients = [
            torch.empty_like(t) if is_wanted else None
            for t, is_wanted in zip(stack.tensors, ctx.needs_input_grad[4:], strict=True)
        ]
        net.plan.clients = stack.clients
        outputs = upstream[0].contiguous()
        load_library().backward(
            net.ops, len(net.ops), ctypes.byref(net.plan), stack.describe(gradients),
            outputs.data_ptr(), *(buffer.data_ptr() for buffer in ctx.buffers),
        )  # fmt: skip
        return None, None, None, None, *gradients


def _dense(tensor: Tensor) -> Tensor:
    """Make the taps of a filter contiguous, as they usually are in stacks."""
    if tensor.dim() == 4 and tensor.stride(2) != tensor.shape[3] * tensor.stride(3):
        return tensor.contiguous()
    return tensor
