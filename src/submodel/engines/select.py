"""The engines that a configuration can name, and their construction for this process.

The native kernels are used through this module alone, and imported lazily.
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
    """The setup and device of an engine."""

    setup: Setup
    device: torch.device


class Local:
    """The engine that runs tasks in this process, those of equal shape together."""

    class Options(Section):
        """The keys of ``local``."""

        batching: Batching = Field(
            "auto",
            description="train clients of equal shape together: auto (if it is faster), always, or "
            "never",
        )
        kernels: Kernels = Field(
            "auto",
            description="implementation of stacks of small convolutional nets and transformers: "
            "torch, or C code compiled here (native); auto: native if 'submodel train' has more "
            "than a minute of work",
        )

    @classmethod
    def problems(cls, options: Options, context: EngineContext) -> list[str]:
        """Problems if the native kernels are requested and cannot be used."""
        if options.kernels != "native":
            return []
        reason = native_refusal(context.setup, context.device)
        return [] if reason is None else [f"engine.kernels: 'native' does not work here: {reason}"]

    @classmethod
    def configured(cls, options: Options, context: EngineContext) -> Engine:
        """Make a serial or a batched engine."""
        if options.batching == "never":
            return SerialEngine(context.setup, context.device)
        always = options.batching == "always"
        backend = None
        if options.kernels == "native":
            from submodel.engines.native.backend import NativeBackend

            backend = NativeBackend()
        return BatchedEngine(context.setup, context.device, always=always, backend=backend)


class Processes(Local):
    """The engine for several processes, each of which runs tasks like `Local`."""

    class Options(Local.Options):
        """The keys of ``torchrun`` and ``auto``."""

        processes: Count | None = Field(
            None, description="number of processes to start here (default: one per core)"
        )


class Devices:
    """The engine that runs tasks on devices; this process has no part in it."""

    @classmethod
    def problems(cls, options: Section, context: EngineContext) -> list[str]:  # noqa: ARG003
        """A problem in every case, as only a server reaches devices."""
        return ["engine.name: real devices need a server: 'submodel serve CONFIG.toml'"]


def native_refusal(setup: Setup, device: torch.device) -> str | None:
    """The reason why the native kernels cannot train a setup here; None if they can."""
    from submodel.engines.native import backend

    return backend.refusal(setup, device)


def scorer_of(engine: Section, setup: Setup, device: torch.device) -> Scorer:
    """The scorer of models in evaluation, according to an engine's options."""
    if getattr(engine, "kernels", None) != "native" or device.type != "cpu":
        return plain_scorer
    from submodel.engines.native.scoring import KernelScorer

    return KernelScorer(setup.module, setup.clients.dataset.example)
