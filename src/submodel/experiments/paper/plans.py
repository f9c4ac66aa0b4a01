"""What is compared: the paper's figures and tables as lists of runs, and the claims they bear.

A *variant* is a configuration but for its seed. Experiments share variants, so a run that two of
them need is made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Settings = dict[str, dict[str, Any]]
HETEROGENEITY = ("high", "low")
CAPACITIES = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
_ALPHA = (0.1, 0.5)
_LABELS = {"digits": (2, 5), "cifar10": (2, 5), "cifar100": (20, 50)}


class Scale(StrEnum):
    """How much of it to run."""

    SMOKE = "smoke"
    SMALL = "small"
    PAPER = "paper"


class Split(StrEnum):
    """How the clients' data differ: some labels each, or Dirichlet proportions."""

    LABELS = "labels"
    DIRICHLET = "dirichlet"


DATASETS: dict[Scale, tuple[str, ...]] = {
    Scale.SMOKE: ("digits",),
    Scale.SMALL: ("cifar10",),
    Scale.PAPER: ("cifar10", "cifar100"),
}


def _base(scale: Scale) -> Settings:
    """The setting of section 5, which follows HeteroFL and FedRolex, at a scale."""
    common: Settings = {
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
    scales: dict[Scale, Settings] = {
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
        Scale.PAPER: {
            "model": {"width": 64},
            "local": {"milestones": [800, 1500]},
            "train": {"rounds": 2500, "evaluate_every": 25, "checkpoint_every": 25},
        },
    }
    return merged(common, scales[scale])


def merged(*parts: Settings) -> Settings:
    """Sections joined, later ones first.

    >>> merged({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    whole: Settings = {}
    for part in parts:
        for section, values in part.items():
            whole[section] = {**whole.get(section, {}), **values}
    return whole


_ROLLING: Settings = {"scheme": {"name": "rolling"}}
_RANDOM: Settings = {"scheme": {"name": "random", "sampling": "bernoulli"}}
_DROPOUT: Settings = {"scheme": {"name": "random", "sampling": "fixed"}}
_INDEPENDENT: Settings = {
    "scheme": {"name": "random", "sampling": "fixed", "alignment": "independent"}
}


def _at(*capacities: float) -> Settings:
    return {"clients": {"capacities": list(capacities)}}


_MIXED = _at(*CAPACITIES)
WAYS: dict[str, Settings] = {
    "rolling": merged(_ROLLING, _MIXED),
    "random": merged(_RANDOM, _MIXED),
    "dropout": merged(_DROPOUT, _MIXED),
    "dropout-independent": merged(_INDEPENDENT, _MIXED),
    "rolling-fill_in": merged(_ROLLING, _MIXED, {"merge": {"rule": "fill_in"}}),
    "dropout-fill_in": merged(_DROPOUT, _MIXED, {"merge": {"rule": "fill_in"}}),
    "rolling-fixed": merged(_ROLLING, _MIXED, {"clients": {"capacity_mode": "fixed"}}),
    "dropout-fixed": merged(_DROPOUT, _MIXED, {"clients": {"capacity_mode": "fixed"}}),
    "full": merged({"scheme": {"name": "full"}}, _at(1.0)),
    "independent-at-1": merged(_INDEPENDENT, _at(1.0)),
    "dropout-at-1-2": merged(_DROPOUT, _at(1 / 2)),
    "dropout-at-1-4": merged(_DROPOUT, _at(1 / 4)),
    "dropout-at-1-16": merged(_DROPOUT, _at(1 / 16)),
    "rolling-at-1-16": merged(_ROLLING, _at(1 / 16)),
    "static-small": merged({"scheme": {"name": "static"}}, _at(1 / 4, 1 / 8)),
    "rolling-small": merged(_ROLLING, _at(1 / 4, 1 / 8)),
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
        own: Settings = {"data": data}
        return {
            "name": self.slug,
            "seed": seed,
            **merged(_base(scale), WAYS[self.way], own),
        }


@dataclass(frozen=True)
class Claim:
    """That one way does better than another by some measure, in each of the settings.

    A way may name its own setting, as in "low:rolling".
    """

    text: str
    better: str
    worse: str
    measure: str = "accuracy"  # losses and gaps: smaller is better
    settings: tuple[str, ...] = HETEROGENEITY

    def sides(
        self, dataset: str, heterogeneity: str, split: Split = Split.LABELS
    ) -> tuple[Variant, Variant]:
        """The two variants that are compared."""

        def side(way: str) -> Variant:
            own, _, name = way.rpartition(":")
            return Variant(dataset, own or heterogeneity, name, split)

        return side(self.better), side(self.worse)


@dataclass(frozen=True)
class Experiment:
    """A figure or a table of the paper."""

    name: str
    title: str
    ways: Sequence[str]
    claims: Sequence[Claim] = ()
    only_low: Sequence[str] = ()  # ways beyond the paper, run at low heterogeneity alone
    only_high: bool = False
    gaps: bool = False  # about train/test gaps rather than about the test part
    paper: Sequence[tuple[str, str]] = field(default=())  # what the paper prints
    datasets: Sequence[str] | None = None  # at the paper's scale, where not all

    def variants(
        self,
        scale: Scale,
        datasets: Sequence[str] | None = None,
        split: Split = Split.LABELS,
    ) -> list[Variant]:
        """What has to be run."""
        chosen = datasets or (self.datasets if scale is Scale.PAPER else None) or DATASETS[scale]
        variants = []
        for dataset in chosen:
            for heterogeneity in HETEROGENEITY[:1] if self.only_high else HETEROGENEITY:
                extra = self.only_low if heterogeneity == "low" else ()
                ways = (*self.ways, *extra)
                variants += [Variant(dataset, heterogeneity, w, split) for w in ways]
        return variants


EXPERIMENTS = {
    e.name: e
    for e in (
        Experiment(
            "heterogeneous",
            "rolling and random masking, capacities 1 to 1/16 (Fig. 1 and 2)",
            ("rolling", "dropout", "dropout-independent"),
            only_low=(
                "random",
                "rolling-fill_in",
                "dropout-fill_in",
                "rolling-fixed",
                "dropout-fixed",
            ),
            claims=(
                Claim("rolling beats random", "rolling", "random", settings=("low",)),
                Claim("rolling beats random (loss)", "rolling", "random", "loss", ("low",)),
                Claim("rolling beats dropout", "rolling", "dropout"),
                Claim("rolling beats dropout (loss)", "rolling", "dropout", "loss"),
                Claim(
                    "higher heterogeneity hurts",
                    "low:rolling",
                    "high:rolling",
                    settings=("low",),
                ),
                Claim(
                    "rolling beats dropout as published code draws it",
                    "rolling",
                    "dropout-independent",
                ),
                Claim("aligned dropout beats independent layers", "dropout", "dropout-independent"),
                Claim(
                    "rolling beats dropout under fill_in",
                    "rolling-fill_in",
                    "dropout-fill_in",
                    settings=("low",),
                ),
                Claim(
                    "rolling beats dropout with fixed capacities",
                    "rolling-fixed",
                    "dropout-fixed",
                    settings=("low",),
                ),
                Claim("selective beats fill_in", "rolling", "rolling-fill_in", settings=("low",)),
                Claim(
                    "dynamic beats fixed capacities", "rolling", "rolling-fixed", settings=("low",)
                ),
            ),
        ),
        Experiment(
            "homogeneous",
            "all clients of capacity 1, or all of 1/16 (Fig. 3 and 4)",
            ("full", "independent-at-1", "rolling-at-1-16", "dropout-at-1-16"),
            claims=(
                Claim("the largest model beats the smallest", "full", "rolling-at-1-16"),
                Claim("rolling beats dropout at 1/16", "rolling-at-1-16", "dropout-at-1-16"),
                Claim("rolling beats independent layers at 1", "full", "independent-at-1"),
            ),
        ),
        Experiment(
            "generalization",
            "the gap between training and test part, random masks of fixed size and full "
            "(Tab. 1 and 2)",
            ("full", "dropout-at-1-2", "dropout-at-1-4", "dropout-at-1-16", "independent-at-1"),
            gaps=True,
            claims=tuple(
                Claim(f"masking shrinks the gap ({measure}, {name})", way, "full", measure)
                for measure in ("loss gap", "accuracy gap")
                for name, way in (
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
            claims=(
                Claim("rolling beats static", "rolling-small", "static-small", settings=("high",)),
                Claim(
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
}
