"""What preparing a built-in model finds out, looked for once in a process.

Its axes, and that its sub-models can be built, follow from the keys of the configuration and the
shape of an example. Comparisons, repetitions and devices in one process ask again and again, and a
trace takes longer than a small round. Of anybody else's code nothing is taken for granted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from submodel.config import Config
from submodel.data import Dataset
from submodel.model.inputs import first_column
from submodel.model.registry import MODELS
from submodel.model.zoo import ModelContext
from submodel.prepare.model_context import context_of

_Finding = TypeVar("_Finding")
_MOST = 1000
_findings: dict[Hashable, Any] = {}


@dataclass(frozen=True)
class BuiltIn:
    """All that the findings about a built-in model follow from."""

    keys: str  # of the model, and of its axes
    inputs: tuple[int, ...]
    classes: int | None
    dtype: torch.dtype
    has_values: bool  # what has none is not verified


def identify(
    config: Config, module: nn.Module, data: Dataset, context: ModelContext | None = None
) -> BuiltIn | None:
    """Which built-in model this is; None if somebody else's code makes it.

    Args:
        config: the configuration that the module was made by.
        module: the module.
        data: what it is for.
        context: what it was made with; None: what follows from the data.
    """
    if not MODELS.is_ours(config.model.name):
        return None
    return BuiltIn(
        config.model.model_dump_json() + config.axes.model_dump_json(),
        tuple(first_column(data.example).shape),
        (context or context_of(data)).classes,
        first_column(data.example).dtype,
        not any(parameter.is_meta for parameter in module.parameters()),
    )


def find_once(
    subject: BuiltIn | None, question: Hashable, find: Callable[[], _Finding]
) -> _Finding:
    """What ``find`` returns; of a built-in model, what it returned the first time.

    Args:
        subject: the model, as `identify` says.
        question: what is looked for, with all that it depends on beside the model.
        find: looks for it.

    >>> find_once(None, "axes", lambda: 1), find_once(None, "axes", lambda: 2)
    (1, 2)
    """
    if subject is None:
        return find()
    place = (subject, question)
    if place not in _findings:
        finding = find()
        while len(_findings) >= _MOST:
            _findings.pop(next(iter(_findings)))  # the oldest
        _findings[place] = finding
    answer: _Finding = _findings[place]
    return answer
