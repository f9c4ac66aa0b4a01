"""Whether the native kernels can train a setup here."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from submodel.algorithm.types import Setup
from submodel.engines.batched.engine import COLLECTED_VALUES
from submodel.engines.batched.forward import UnstackableError
from submodel.engines.batched.vmap import MappedForward
from submodel.engines.batched.wide import WideForward
from submodel.engines.estimate import Estimate
from submodel.engines.native.build import BuildError
from submodel.engines.native.forward import NativeForward
from submodel.engines.native.layers import native_kernels
from submodel.model.build import build_module
from submodel.model.cut import WHOLE
from submodel.model.inputs import Inputs, take_rows
from submodel.schemes.roles import step_rule


def native_refusal(setup: Setup, device: torch.device) -> str | None:
    """Why they cannot, in words; None: they can.

    Args:
        setup: what is trained.
        device: where.
    """
    if device.type != "cpu":
        return f"the kernels compute on the CPU, not on {device}"
    if setup.work.precision != "float32":
        return f"they compute in float32, and local.precision is {setup.work.precision!r}"
    if any(p.dtype != torch.float32 for p in setup.module.parameters()):
        return "they compute in float32, and the model has other numbers"
    if any(step_rule(setup.scheme, c) is not None for c in setup.population.capacities):
        return "the scheme takes steps of its own"
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
    """The same of transformers: the smallest sub-model is tried; large ones are not stacked."""
    cut = Estimate(setup).cut(min(setup.population.capacities))
    module = build_module(setup.module, cut).train()
    if 2 * sum(p.numel() for p in module.parameters()) > COLLECTED_VALUES:
        return "the model is too large for stacks"
    kernels, calls = native_kernels(), list[Tensor]()

    def linear(x: Tensor, *rest: Any) -> Tensor:
        calls.append(x)
        return kernels.linear(x, *rest)

    with suppress(UnstackableError):
        WideForward(module, example)
        return "the model has neither convolutions of images nor attention"
    MappedForward(module, setup.module, example, replace(kernels, linear=linear))
    return None if calls else "the model has no layers that they know"
