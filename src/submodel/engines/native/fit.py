"""Whether the native kernels can train a setup here."""

from __future__ import annotations

import torch
from torch import nn

from submodel.algorithm.types import Setup
from submodel.engines.batched.forward import UnstackableError
from submodel.engines.batched.wide import WideForward
from submodel.engines.native.build import BuildError
from submodel.engines.native.forward import NativeForward
from submodel.model.build import build_module
from submodel.model.cut import WHOLE
from submodel.model.inputs import take_rows
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
    if not any(isinstance(layer, nn.Conv2d) for layer in setup.module.modules()):
        return "the model has no convolutions of images"
    examples = setup.clients.dataset.train
    try:
        module = build_module(setup.module, WHOLE).train()
        NativeForward(WideForward(module, take_rows(examples.x, slice(2))))
    except (UnstackableError, BuildError) as error:
        return str(error)
    return None
