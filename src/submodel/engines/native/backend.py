"""The native kernels as a backend of stacks, and a check whether they support a setup."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from submodel.algorithm.types import Setup
from submodel.engines.batched.engine import COLLECTED_VALUES
from submodel.engines.batched.forward import Forward, UnstackableError, WideForward
from submodel.engines.batched.layers import Gradients
from submodel.engines.batched.vmap import MappedForward
from submodel.engines.estimate import NATIVE_COSTS, Estimate
from submodel.engines.native.forward import NativeForward
from submodel.engines.native.library import BuildError
from submodel.engines.native.operators import native_kernels
from submodel.engines.native.taping import make_fuse
from submodel.engines.native.training import WholeTraining
from submodel.model.build import build_module
from submodel.model.cut import WHOLE
from submodel.model.inputs import Inputs, take_rows


class NativeBackend:
    """A backend of `BatchedEngine` that computes stacks by the native kernels."""

    costs = NATIVE_COSTS

    def __init__(self) -> None:
        self.kernels, self.fuse = native_kernels(), make_fuse()

    def forward(self, wide: WideForward) -> NativeForward:
        """The native forward of a net with a wide form."""
        return NativeForward(wide)

    def training(self, forward: Forward, setup: Setup) -> WholeTraining | None:
        """The training of all steps of a stack in one call, for nets of `forward`."""
        return WholeTraining(forward, setup) if isinstance(forward, NativeForward) else None


def refusal(setup: Setup, device: torch.device) -> str | None:
    """The reason why the kernels cannot train a setup; None if they can."""
    if device.type != "cpu":
        return f"the kernels compute on the CPU, not on {device}"
    if setup.work.precision != "float32":
        return f"they compute in float32, and local.precision is {setup.work.precision!r}"
    if any(p.dtype != torch.float32 for p in setup.module.parameters()):
        return "they compute in float32, and the model has parameters of another type"
    if any(setup.scheme.step_rule(c) is not None for c in setup.population.capacities):
        return "the scheme has its own step rule"
    example = take_rows(setup.clients.dataset.train.x, slice(2))
    try:
        if any(isinstance(layer, nn.Conv2d) for layer in setup.module.modules()):
            module = build_module(setup.module, WHOLE).train()
            NativeForward(WideForward(module, example))
            return None
        return _layers_refusal(setup, example)
    except (UnstackableError, BuildError) as error:
        return str(error)


def _layers_refusal(setup: Setup, example: Inputs) -> str | None:
    """`refusal` for transformers; only the smallest sub-model is tried."""
    cut = Estimate(setup).cut(min(setup.population.capacities))
    module = build_module(setup.module, cut).train()
    if 2 * sum(p.numel() for p in module.parameters()) > COLLECTED_VALUES:
        return "the model is too large for stacks"
    with suppress(UnstackableError):
        WideForward(module, example)
        return "the model has neither convolutions of images nor attention"
    kernels, calls = native_kernels(), list[Tensor]()
    own, *others = kernels.kernels["linear"]

    def forward(x: Tensor, *rest: Any) -> tuple[Tensor, Gradients]:
        calls.append(x)
        return own.forward(x, *rest)

    noting = {**kernels.kernels, "linear": [replace(own, forward=forward), *others]}
    MappedForward(module, setup.module, example, replace(kernels, kernels=noting))
    return None if calls else "the model has no layers with a kernel"
