"""What a device must know of a run beside its task: the configuration and facts about the data."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from submodel.config import Config, parse, to_toml
from submodel.data import Dataset
from submodel.data.sources import Examples


@dataclass(frozen=True)
class Facts:
    """Of the data as the server knows it; devices shape their own alike."""

    inputs: tuple[int, ...]
    dtype: str
    classes: int | None
    names: tuple[str, ...]  # of the classes; empty: they are numbers
    mean: tuple[float, ...]  # of every channel; empty: inputs come as they are
    deviation: tuple[float, ...]

    @classmethod
    def of(cls, data: Dataset) -> Facts:
        """What a server tells.

        >>> from submodel.data import digits
        >>> Facts.of(digits()).inputs
        (1, 8, 8)
        """
        about = data.about
        return cls(
            data.inputs,
            str(data.example.dtype).removeprefix("torch."),
            data.classes,
            about.names if about else (),
            about.mean if about else (),
            about.deviation if about else (),
        )

    @property
    def example(self) -> Tensor:
        """A batch of two inputs without values."""
        return torch.empty(2, *self.inputs, dtype=getattr(torch, self.dtype), device="meta")

    @property
    def dataset(self) -> Dataset:
        """A dataset of this kind, with nothing in it."""
        nothing = Examples(self.example, torch.empty(2, dtype=torch.int64, device="meta"))
        return Dataset(nothing, nothing, self.classes)


def briefing(config: Config, facts: Facts) -> dict[str, Any]:
    """What the head of every message to a device says of the run."""
    return {"config": to_toml(config), "facts": asdict(facts)}


def digest(head: Mapping[str, Any]) -> str:
    """Equal for heads that brief alike.

    >>> digest({"config": "", "facts": {}, "units": 1}) == digest({"config": "", "facts": {}})
    True
    """
    told = json.dumps([head.get("config"), head.get("facts")], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()


def briefed(head: Mapping[str, Any]) -> tuple[Config, Facts]:
    """What `briefing` said."""
    told = head["facts"]
    facts = Facts(
        tuple(told["inputs"]),
        told["dtype"],
        told["classes"],
        *(tuple(told[key]) for key in ("names", "mean", "deviation")),
    )
    return parse(tomllib.loads(head["config"])), facts
