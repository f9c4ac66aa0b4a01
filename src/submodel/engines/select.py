"""The engines that a configuration can name, and how one is made for this process.

The native kernels are reached through here alone, and imported where they are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field

from submodel.algorithm.execution import Engine
from submodel.algorithm.types import Scorer, Setup, plain_scorer
from submodel.core.options import Count, Section
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.serial import SerialEngine

__all__ = ["Devices", "EngineContext", "Local", "Processes", "native_refusal", "scorer_of"]

Batching = Literal["auto", "always", "never"]
Kernels = Literal["auto", "torch", "native"]


@dataclass(frozen=True)
class EngineContext:
    """What an engine is made for."""

    setup: Setup
    device: torch.device


class Local:
    """Tasks run in this process, those of equal shape together."""

    class Options(Section):
        """The keys of ``local``."""

        batching: Batching = Field(
            "auto",
            description="train clients of equal shape together: where it pays, or regardless",
        )
        kernels: Kernels = Field(
            "auto",
            description="what computes stacks of small convolutional nets and transformers: torch, "
            "or C code built here (native); auto: native where 'submodel train' has more than a "
            "minute of work",
        )

    @classmethod
    def problems(cls, options: Options, context: EngineContext) -> list[str]:
        """Why the native kernels cannot be used, if they are asked for."""
        if options.kernels != "native":
            return []
        reason = native_refusal(context.setup, context.device)
        return [] if reason is None else [f"engine.kernels: 'native' does not work here: {reason}"]

    @classmethod
    def configured(cls, options: Options, context: EngineContext) -> Engine:
        """One after another, or in stacks."""
        if options.batching == "never":
            return SerialEngine(context.setup, context.device)
        always = options.batching == "always"
        backend = None
        if options.kernels == "native":
            from submodel.engines.native.backend import NativeBackend

            backend = NativeBackend()
        return BatchedEngine(context.setup, context.device, always=always, backend=backend)


class Processes(Local):
    """The same, in each of several processes."""

    class Options(Local.Options):
        """The keys of ``torchrun``, and of ``auto``, which may come to it."""

        processes: Count | None = Field(
            None, description="how many to start here (default: one per core)"
        )


class Devices:
    """Tasks run on devices: there is nothing to make in this process."""

    @classmethod
    def problems(cls, options: Section, context: EngineContext) -> list[str]:  # noqa: ARG003
        """Only a server reaches devices."""
        return ["engine.name: real devices are served: 'submodel serve CONFIG.toml'"]


def native_refusal(setup: Setup, device: torch.device) -> str | None:
    """Why the native kernels cannot train a setup here; None if they can."""
    from submodel.engines.native import backend

    return backend.refusal(setup, device)


def scorer_of(engine: Section, setup: Setup, device: torch.device) -> Scorer:
    """What computes the outputs of models that are scored, as an engine's options say."""
    if getattr(engine, "kernels", None) != "native" or device.type != "cpu":
        return plain_scorer
    from submodel.engines.native.scoring import KernelScorer

    return KernelScorer(setup.module, setup.clients.dataset.example)
