"""Experiments of the paper: settings at four scales, training methods, arms and contrasts.

An *arm* is a configuration without its seed. Experiments share arms, so a run that two of them
need is made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

HETEROGENEITY = ("high", "low")
PAPER_CAPACITIES = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
_ALPHA = (0.1, 0.5)
_LABELS = {"digits": (2, 5), "cifar10": (2, 5), "cifar100": (20, 50)}


Sections = dict[str, dict[str, Any]]


class Scale(StrEnum):
    """Size of the models and length of the runs."""

    SMOKE = "smoke"
    SMALL = "small"
    CONVERGED = "converged"
    PAPER = "paper"


class Split(StrEnum):
    """Partition of the data: a few labels per client, or Dirichlet proportions."""

    LABELS = "labels"
    DIRICHLET = "dirichlet"


DATASETS: dict[Scale, tuple[str, ...]] = {
    Scale.SMOKE: ("digits",),
    Scale.SMALL: ("cifar10",),
    Scale.CONVERGED: ("cifar10",),
    Scale.PAPER: ("cifar10", "cifar100"),
}


CLIENTS: dict[str, Any] = {
    "count": 100,
    "per_round": 10,
    "capacity_mode": "dynamic",
    "capacities": list(PAPER_CAPACITIES),
}
LOCAL: dict[str, Any] = {
    "batch_size": 10,
    "momentum": 0.9,
    "weight_decay": 1e-3,
    "clip": 1.0,
    "absent_labels": "zero",
}


def _base(scale: Scale) -> Sections:
    """Return the setting of section 5, which follows HeteroFL and FedRolex, at a scale."""
    common: Sections = {
        "model": {"name": "preresnet18", "scaler": True},
        "clients": CLIENTS,
        "merge": {"rule": "selective"},
        "local": {**LOCAL, "epochs": 1, "lr": 0.05, "schedule": "step", "decay": 0.1},
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
        Scale.CONVERGED: {  # rounds and milestones of the shortest run
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
    """Merge sections; later values replace earlier ones.

    >>> merge_sections({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    whole: Sections = {}
    for part in parts:
        for section, values in part.items():
            whole[section] = {**whole.get(section, {}), **values}
    return whole


_Values = dict[str, Any]
_ROLLING: _Values = {"name": "rolling"}
_STATIC: _Values = {"name": "static"}
_RANDOM: _Values = {"name": "random"}
_DROPOUT: _Values = {"name": "random", "sampling": "fixed"}
_INDEPENDENT: _Values = {**_DROPOUT, "alignment": "independent"}
_FULL: _Values = {"name": "full"}
_FILL_IN: Sections = {"merge": {"rule": "fill_in"}}
_FIXED: Sections = {"clients": {"capacity_mode": "fixed"}}


def _at(*capacities: float) -> Sections:
    return {"clients": {"capacities": list(capacities)}}


def _rate(rate: float) -> Sections:
    return {"local": {"lr": rate}}


def _way(title: str, scheme: _Values, *others: Sections) -> tuple[str, Sections]:
    return title, merge_sections({"scheme": scheme}, *others)


METHODS: dict[str, tuple[str, Sections]] = {
    "rolling": _way("rolling", _ROLLING),
    "static": _way("static", _STATIC),
    "random": _way("random (Bernoulli, Algorithm 1)", _RANDOM),
    "dropout": _way("dropout (random, fixed size)", _DROPOUT),
    "dropout-independent": _way("dropout, layers drawn independently", _INDEPENDENT),
    "rolling-sequential": _way("rolling, sequential windows", {**_ROLLING, "order": "sequential"}),
    "rolling-fill_in": _way("rolling, fill_in", _ROLLING, _FILL_IN),
    "static-fill_in": _way("static, fill_in", _STATIC, _FILL_IN),
    "dropout-fill_in": _way("dropout, fill_in", _DROPOUT, _FILL_IN),
    "rolling-fixed": _way("rolling, fixed capacities", _ROLLING, _FIXED),
    "static-fixed": _way("static, fixed capacities", _STATIC, _FIXED),
    "dropout-fixed": _way("dropout, fixed capacities", _DROPOUT, _FIXED),
    "rolling-rate-0.05": _way("rolling, rate 0.05", _ROLLING, _rate(0.05)),
    "rolling-rate-0.1": _way("rolling, rate 0.1", _ROLLING, _rate(0.1)),
    "static-rate-0.1": _way("static, rate 0.1", _STATIC, _rate(0.1)),
    "full": _way("full (capacity 1)", _FULL, _at(1.0)),
    "independent-at-1": _way("capacity 1, layers permuted independently", _INDEPENDENT, _at(1.0)),
    "dropout-at-1-2": _way("dropout, capacity 1/2", _DROPOUT, _at(1 / 2)),
    "dropout-at-1-4": _way("dropout, capacity 1/4", _DROPOUT, _at(1 / 4)),
    "dropout-at-1-16": _way("dropout, capacity 1/16", _DROPOUT, _at(1 / 16)),
    "rolling-at-1-16": _way("rolling, capacity 1/16", _ROLLING, _at(1 / 16)),
    "static-small": _way("static (HeteroFL), 1/4 and 1/8", _STATIC, _at(1 / 4, 1 / 8)),
    "rolling-small": _way("rolling, 1/4 and 1/8", _ROLLING, _at(1 / 4, 1 / 8)),
    "exclusive-fixed": _way("exclusive, fixed capacities, equal rounds", _FULL, _FIXED),
    "exclusive-fixed-equal-bytes": _way("exclusive, fixed capacities, equal bytes", _FULL, _FIXED),
    "exclusive-equal-bytes": _way("exclusive, equal bytes", _FULL),
    "full-equal-bytes": _way("full, equal bytes", _FULL, _at(1.0)),
}
"""Title and sections of each training method; capacities default to those of the setting.

`random` is Algorithm 1: every unit is drawn independently with the capacity as probability.
`dropout` draws masks of exactly the capacity's share, as published code does.
"""


@dataclass(frozen=True)
class PaperArm:
    """A configuration without its seed."""

    dataset: str
    heterogeneity: str
    method: str
    split: Split = Split.LABELS

    @property
    def slug(self) -> str:
        """Name of the arm in folders.

        >>> PaperArm("cifar10", "high", "rolling").slug
        'cifar10-high-rolling'
        """
        split = "" if self.split is Split.LABELS else f"-{self.split.value}"
        return f"{self.dataset}{split}-{self.heterogeneity}-{self.method}"

    @property
    def title(self) -> str:
        """Name of the arm in legends."""
        if self.method == "full":  # one curve in the figure stands for several methods
            return "capacity 1: rolling = random = dropout = full"
        return METHODS[self.method][0]

    def settings(self, scale: Scale, seed: int) -> dict[str, Any]:
        """Return the configuration as plain values."""
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
            **merge_sections(_base(scale), METHODS[self.method][1], data_section),
        }


@dataclass(frozen=True)
class PaperContrast:
    """Statement that one method beats another by a measure in each of the settings.

    A method may name its own setting, as in "low:rolling".
    """

    text: str
    better: str
    worse: str
    measure: str = "accuracy"  # losses and gaps: smaller is better
    settings: tuple[str, ...] = HETEROGENEITY

    def sides(
        self, dataset: str, heterogeneity: str, split: Split = Split.LABELS
    ) -> tuple[PaperArm, PaperArm]:
        """Return the two arms of the contrast."""

        def side(method: str) -> PaperArm:
            own_setting, _, name = method.rpartition(":")
            return PaperArm(dataset, own_setting or heterogeneity, name, split)

        return side(self.better), side(self.worse)


@dataclass(frozen=True)
class Experiment:
    """A figure or a table of the paper."""

    name: str
    title: str
    methods: Sequence[str]
    contrasts: Sequence[PaperContrast] = ()
    only_low: Sequence[str] = ()  # methods beyond the paper, run at low heterogeneity only
    only_high: bool = False
    gaps: bool = False  # about train/test gaps instead of test scores
    paper: Sequence[tuple[str, str]] = field(default=())  # figures printed in the paper
    datasets: Sequence[str] | None = None  # at the paper's scale; None: all

    def arms(
        self, scale: Scale, datasets: Sequence[str] | None = None, split: Split = Split.LABELS
    ) -> list[PaperArm]:
        """List the arms of the experiment."""
        dataset_names = (
            datasets or (self.datasets if scale is Scale.PAPER else None) or DATASETS[scale]
        )
        arms = []
        for dataset in dataset_names:
            for heterogeneity in HETEROGENEITY[:1] if self.only_high else HETEROGENEITY:
                extra = self.only_low if heterogeneity == "low" else ()
                methods = (*self.methods, *extra)
                arms += [PaperArm(dataset, heterogeneity, w, split) for w in methods]
        return arms


_LOW = ("low",)
_LIST = (
    Experiment(
        "heterogeneous",
        "rolling and random masking, capacities 1 to 1/16 (Fig. 1 and 2)",
        ("rolling", "dropout", "dropout-independent"),
        only_low=("random", "rolling-fill_in", "dropout-fill_in", "rolling-fixed", "dropout-fixed"),
        contrasts=(
            PaperContrast("rolling beats random", "rolling", "random", settings=_LOW),
            PaperContrast("rolling beats random (loss)", "rolling", "random", "loss", _LOW),
            PaperContrast("rolling beats dropout", "rolling", "dropout"),
            PaperContrast("rolling beats dropout (loss)", "rolling", "dropout", "loss"),
            PaperContrast(
                "higher heterogeneity hurts", "low:rolling", "high:rolling", settings=_LOW
            ),
            PaperContrast(
                "rolling beats dropout as published code draws it", "rolling", "dropout-independent"
            ),
            PaperContrast(
                "aligned dropout beats independent layers", "dropout", "dropout-independent"
            ),
            PaperContrast(
                "rolling beats dropout under fill_in",
                "rolling-fill_in",
                "dropout-fill_in",
                settings=_LOW,
            ),
            PaperContrast(
                "rolling beats dropout with fixed capacities",
                "rolling-fixed",
                "dropout-fixed",
                settings=_LOW,
            ),
            PaperContrast("selective beats fill_in", "rolling", "rolling-fill_in", settings=_LOW),
            PaperContrast(
                "dynamic beats fixed capacities", "rolling", "rolling-fixed", settings=_LOW
            ),
        ),
    ),
    Experiment(
        "homogeneous",
        "all clients of capacity 1, or all of 1/16 (Fig. 3 and 4)",
        ("full", "independent-at-1", "rolling-at-1-16", "dropout-at-1-16"),
        contrasts=(
            PaperContrast("the largest model beats the smallest", "full", "rolling-at-1-16"),
            PaperContrast("rolling beats dropout at 1/16", "rolling-at-1-16", "dropout-at-1-16"),
            PaperContrast("rolling beats independent layers at 1", "full", "independent-at-1"),
        ),
    ),
    Experiment(
        "generalization",
        "the gap between training and test part, random masks of fixed size and full "
        "(Tab. 1 and 2)",
        ("full", "dropout-at-1-2", "dropout-at-1-4", "dropout-at-1-16", "independent-at-1"),
        gaps=True,
        contrasts=tuple(
            PaperContrast(f"masking shrinks the gap ({measure}, {name})", method, "full", measure)
            for measure in ("loss gap", "accuracy gap")
            for name, method in (
                ("capacity 1/2", "dropout-at-1-2"),
                ("capacity 1/4", "dropout-at-1-4"),
                ("capacity 1/16", "dropout-at-1-16"),
                ("capacity 1, independent layers", "independent-at-1"),
            )
        ),
        paper=(
            ("high, random masking", "loss gap 0.0126, accuracy gap 0.384 points"),
            ("high, full", "loss gap 0.0190, accuracy gap 1.488 points"),
            ("low, random masking", "loss gap 0.0154, accuracy gap 0.094 points"),
            ("low, full", "loss gap 0.0330, accuracy gap 0.840 points"),
        ),
    ),
    Experiment(
        "heterofl",
        "static and rolling masking, capacities 1/4 and 1/8 (Tab. 3)",
        ("static-small", "rolling-small"),
        contrasts=(
            PaperContrast(
                "rolling beats static", "rolling-small", "static-small", settings=("high",)
            ),
            PaperContrast(
                "rolling beats static (loss)",
                "rolling-small",
                "static-small",
                "loss",
                settings=("high",),
            ),
        ),
        only_high=True,
        paper=(
            ("static, CIFAR-100", "accuracy 34.37 %, loss 2.5026"),
            ("rolling, CIFAR-100", "accuracy 35.30 %, loss 2.4681"),
        ),
        datasets=("cifar100",),
    ),
)
EXPERIMENTS = {e.name: e for e in _LIST}
