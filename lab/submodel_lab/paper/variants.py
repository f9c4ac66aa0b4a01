"""What is run: the paper's settings at four scales, and the ways to train in them.

A *variant* is a configuration but for its seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Sections = dict[str, dict[str, Any]]
HETEROGENEITY = ("high", "low")
PAPER_CAPACITIES = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
_ALPHA = (0.1, 0.5)
_LABELS = {"digits": (2, 5), "cifar10": (2, 5), "cifar100": (20, 50)}


class Scale(StrEnum):
    """How much of it to run."""

    SMOKE = "smoke"
    SMALL = "small"
    CONVERGED = "converged"
    PAPER = "paper"


class Split(StrEnum):
    """How the clients' data differ: some labels each, or Dirichlet proportions."""

    LABELS = "labels"
    DIRICHLET = "dirichlet"


DATASETS: dict[Scale, tuple[str, ...]] = {
    Scale.SMOKE: ("digits",),
    Scale.SMALL: ("cifar10",),
    Scale.CONVERGED: ("cifar10",),
    Scale.PAPER: ("cifar10", "cifar100"),
}


def _base(scale: Scale) -> Sections:
    """The setting of section 5, which follows HeteroFL and FedRolex, at a scale."""
    common: Sections = {
        "model": {"name": "preresnet18", "scaler": True},
        "clients": {"count": 100, "per_round": 10, "capacity_mode": "dynamic"},
        "merge": {"rule": "selective"},
        "local": {
            "epochs": 1,
            "batch_size": 10,
            "lr": 0.05,
            "momentum": 0.9,
            "weight_decay": 1e-3,
            "clip": 1.0,
            "absent_labels": "zero",
            "schedule": "step",
            "decay": 0.1,
        },
        "train": {"evaluate_train": True, "evaluate_capacities": False},
        "engine": {"name": "local"},
    }
    scales: dict[Scale, Sections] = {
        Scale.SMOKE: {
            "model": {"width": 4},
            "clients": {"count": 20, "per_round": 4},
            "local": {"milestones": [3]},
            "train": {"rounds": 4, "evaluate_every": 2, "checkpoint_every": 2},
        },
        Scale.SMALL: {
            "model": {"width": 8},
            "data": {"examples": 25_000, "test_examples": 5_000},
            "local": {"milestones": [18, 26]},
            "train": {
                "rounds": 30,
                "evaluate_every": 10,
                "checkpoint_every": 10,
                "statistics_examples": 1_000,
                "evaluate_train_examples": 2_500,
            },
        },
        Scale.CONVERGED: {  # rounds and milestones: of a run that is flat at once
            "model": {"width": 8},
            "data": {"examples": 25_000, "held_out": 0.05},
            "local": {"milestones": [1_000]},
            "train": {
                "rounds": 1_100,
                "evaluate_every": 25,
                "checkpoint_every": 25,
                "statistics_examples": 1_000,
                "evaluate_train": False,
            },
        },
        Scale.PAPER: {
            "model": {"width": 64},
            "local": {"milestones": [800, 1500]},
            "train": {"rounds": 2500, "evaluate_every": 25, "checkpoint_every": 25},
        },
    }
    return merge_sections(common, scales[scale])


def merge_sections(*parts: Sections) -> Sections:
    """Sections joined, later ones first.

    >>> merge_sections({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    whole: Sections = {}
    for part in parts:
        for section, values in part.items():
            whole[section] = {**whole.get(section, {}), **values}
    return whole


_ROLLING: Sections = {"scheme": {"name": "rolling"}}
_RANDOM: Sections = {"scheme": {"name": "random", "sampling": "bernoulli"}}
_DROPOUT: Sections = {"scheme": {"name": "random", "sampling": "fixed"}}
_INDEPENDENT: Sections = {
    "scheme": {"name": "random", "sampling": "fixed", "alignment": "independent"}
}


def _at(*capacities: float) -> Sections:
    return {"clients": {"capacities": list(capacities)}}


_MIXTURE = _at(*PAPER_CAPACITIES)
WAYS: dict[str, Sections] = {
    "rolling": merge_sections(_ROLLING, _MIXTURE),
    "random": merge_sections(_RANDOM, _MIXTURE),
    "dropout": merge_sections(_DROPOUT, _MIXTURE),
    "dropout-independent": merge_sections(_INDEPENDENT, _MIXTURE),
    "rolling-fill_in": merge_sections(_ROLLING, _MIXTURE, {"merge": {"rule": "fill_in"}}),
    "dropout-fill_in": merge_sections(_DROPOUT, _MIXTURE, {"merge": {"rule": "fill_in"}}),
    "rolling-fixed": merge_sections(_ROLLING, _MIXTURE, {"clients": {"capacity_mode": "fixed"}}),
    "dropout-fixed": merge_sections(_DROPOUT, _MIXTURE, {"clients": {"capacity_mode": "fixed"}}),
    "full": merge_sections({"scheme": {"name": "full"}}, _at(1.0)),
    "independent-at-1": merge_sections(_INDEPENDENT, _at(1.0)),
    "dropout-at-1-2": merge_sections(_DROPOUT, _at(1 / 2)),
    "dropout-at-1-4": merge_sections(_DROPOUT, _at(1 / 4)),
    "dropout-at-1-16": merge_sections(_DROPOUT, _at(1 / 16)),
    "rolling-at-1-16": merge_sections(_ROLLING, _at(1 / 16)),
    "static-small": merge_sections({"scheme": {"name": "static"}}, _at(1 / 4, 1 / 8)),
    "rolling-small": merge_sections(_ROLLING, _at(1 / 4, 1 / 8)),
}
"""The ways to train that the experiments compare.

`random` is Algorithm 1: every unit by itself, with the capacity as its chance. `dropout` draws
masks of exactly the capacity's share, as published code does.
"""

TITLES = {
    "rolling": "rolling",
    "random": "random (Bernoulli, Algorithm 1)",
    "dropout": "dropout (random, fixed size)",
    "dropout-independent": "dropout, layers drawn independently",
    "rolling-fill_in": "rolling, fill_in",
    "dropout-fill_in": "dropout, fill_in",
    "rolling-fixed": "rolling, fixed capacities",
    "dropout-fixed": "dropout, fixed capacities",
    "full": "capacity 1: rolling = random = dropout = full",
    "independent-at-1": "capacity 1, layers permuted independently",
    "dropout-at-1-2": "dropout, capacity 1/2",
    "dropout-at-1-4": "dropout, capacity 1/4",
    "dropout-at-1-16": "dropout, capacity 1/16",
    "rolling-at-1-16": "rolling, capacity 1/16",
    "static-small": "static (HeteroFL), 1/4 and 1/8",
    "rolling-small": "rolling, 1/4 and 1/8",
}


@dataclass(frozen=True)
class Variant:
    """One configuration, seed apart."""

    dataset: str
    heterogeneity: str
    way: str
    split: Split = Split.LABELS

    @property
    def slug(self) -> str:
        """Its name in folders.

        >>> Variant("cifar10", "high", "rolling").slug
        'cifar10-high-rolling'
        """
        split = "" if self.split is Split.LABELS else f"-{self.split.value}"
        return f"{self.dataset}{split}-{self.heterogeneity}-{self.way}"

    @property
    def title(self) -> str:
        """Its name in legends."""
        return TITLES[self.way]

    def settings(self, scale: Scale, seed: int) -> dict[str, Any]:
        """The configuration, as a file would hold it."""
        level = HETEROGENEITY.index(self.heterogeneity)
        data: dict[str, Any] = {"name": self.dataset, "partition": self.split.value}
        if self.split is Split.LABELS:
            data["labels_per_client"] = _LABELS[self.dataset][level]
        else:
            data["alpha"] = _ALPHA[level]
        data_section: Sections = {"data": data}
        return {
            "name": self.slug,
            "seed": seed,
            **merge_sections(_base(scale), WAYS[self.way], data_section),
        }
