"""What preparing a large model found out, for the processes that share its run.

A process that starts others has traced the model, tried every capacity and proved the axes. The
others, of the same configuration, take its word; those that will map the model of the first need
no values of their own.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from submodel.algorithm.types import Setup
from submodel.config import Config
from submodel.model.axes import Axes
from submodel.model.axes.declare import from_json, to_json
from submodel.model.axes.keep import LARGE_MODEL
from submodel.model.build import can_release
from submodel.prepare.selection import logits_of, select_outputs, selection_of
from submodel.schemes.base import defines

_VARIABLE = "SUBMODEL_FINDINGS"


@dataclass(frozen=True)
class ModelFindings:
    """What follows from a configuration, and takes long to find for a large model.

    Args:
        axes: of the run.
        selects_logits: whether the module's logits are selected from what it returns.
        is_empty: whether this process needs no values.
        metrics: the names of those that the model's outputs allow; None: all of the task.
        constants: the buffers that never come back from clients.
    """

    axes: Axes
    selects_logits: bool
    is_empty: bool
    metrics: tuple[str, ...] | None = None
    constants: frozenset[str] = frozenset()

    def select_outputs(self, module: nn.Module) -> nn.Module:
        """The module, so that it returns what counts."""
        return select_outputs(module, logits_of) if self.selects_logits else module


def is_large(module: nn.Module) -> bool:
    """Whether preparing it takes so long that it should be done once.

    >>> is_large(nn.Linear(2, 2))
    False
    """
    return sum(p.numel() * p.element_size() for p in module.parameters()) >= LARGE_MODEL


def findings_of(setup: Setup, config: Config) -> ModelFindings | None:
    """What others may take over; None where the model is small, or where that is not certain.

    Args:
        setup: as it was prepared.
        config: what it was made of.
    """
    if not is_large(setup.module) or config.model.share != 1:
        return None
    if from_json(to_json(setup.axes)) != setup.axes:
        return None
    is_plain = not config.model.factorised and config.model.adapters is None
    needs_no_values = is_plain and not defines(setup.scheme, "begin")
    selects_logits = selection_of(setup.module) is not None
    is_empty = needs_no_values and can_release(setup.module)
    metrics = tuple(setup.metrics)
    return ModelFindings(setup.axes, selects_logits, is_empty, metrics, setup.constants)


@contextmanager
def pass_on(findings: ModelFindings | None) -> Iterator[None]:
    """Processes that are started in here can read the findings.

    Args:
        findings: of this process; None: nothing is passed on.
    """
    if findings is None:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="submodel-") as folder:
        path = Path(folder) / "findings.json"
        content = {
            "axes": to_json(findings.axes),
            "selects_logits": findings.selects_logits,
            "is_empty": findings.is_empty,
            "metrics": findings.metrics,
            "constants": sorted(findings.constants),
        }
        path.write_text(json.dumps(content), encoding="utf-8")
        os.environ[_VARIABLE] = str(path)
        try:
            yield
        finally:
            os.environ.pop(_VARIABLE, None)


def passed_findings() -> ModelFindings | None:
    """The findings of the process that started this one; the first of a machine needs values."""
    path = os.environ.pop(_VARIABLE, None)
    if path is None or "LOCAL_RANK" not in os.environ:
        return None
    content = json.loads(Path(path).read_text("utf-8"))
    is_empty = content["is_empty"] and int(os.environ["LOCAL_RANK"]) > 0
    axes, metrics = from_json(content["axes"]), tuple(content["metrics"])
    constants = frozenset(content["constants"])
    return ModelFindings(axes, content["selects_logits"], is_empty, metrics, constants)
