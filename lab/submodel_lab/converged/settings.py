"""The settings that questions are asked in: data, net, clients, how long, what a round costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from submodel.engines import find_compiler
from submodel.experiments import Course, FlatRule
from submodel_lab.paper.variants import (
    PAPER_CAPACITIES,
    Scale,
    Sections,
    Variant,
    merge_sections,
)


@dataclass(frozen=True)
class Setting:
    """What the ways of a question share.

    Args:
        title: what it is, in tables.
        sections: of the configuration.
        course: how long runs go on.
        seeds: how many each way has.
        seconds: of a core for a round of ten clients, evaluations included, measured on the
            machine of docs/results.md with native kernels.
        deviation: of the difference of two ways over seeds, the median over pairs of the 30-round
            records in results/ (compare-rounds for L = 5, small for L = 2); None: no records.
        rates: the grid of learning rates.
        tuning_rounds: how long each is tried.
    """

    title: str
    sections: Sections
    course: Course
    seeds: int
    seconds: float
    deviation: float | None = None
    rates: tuple[float, ...] = (0.02, 0.05, 0.1)
    tuning_rounds: int = 150
    capacities: tuple[float, ...] = field(default=PAPER_CAPACITIES)


_ENGINE = {
    "name": "local",
    "kernels": "native" if find_compiler() else "torch",
}  # of all runs alike


def _cifar(heterogeneity: str, *capacities: float) -> Sections:
    plain: dict[str, Any] = Variant("cifar10", heterogeneity, "rolling").settings(
        Scale.CONVERGED, seed=0
    )
    sections = {name: dict(values) for name, values in plain.items() if isinstance(values, dict)}
    sections.pop("scheme")
    for key in ("schedule", "milestones", "decay"):  # the course has its own
        sections["local"].pop(key)
    own_sections: Sections = {"clients": {"capacities": list(capacities)}, "engine": _ENGINE}
    return merge_sections(sections, own_sections)


_LOCAL = {
    "batch_size": 10,
    "momentum": 0.9,
    "weight_decay": 1e-3,
    "clip": 1.0,
    "absent_labels": "zero",
}


def _fashion(examples: int, **clients: Any) -> Sections:
    return {
        "model": {"name": "cnn", "width": 16},
        "data": {
            "name": "fashion-mnist",
            "examples": examples,
            "held_out": 0.1,
            "partition": "labels",
            "labels_per_client": 5,
        },
        "clients": {
            "count": 100,
            "per_round": 10,
            "capacity_mode": "dynamic",
            "capacities": list(PAPER_CAPACITIES),
            **clients,
        },
        "local": _LOCAL,
        "train": {
            "evaluate_every": 20,
            "checkpoint_every": 100,
            "evaluate_capacities": False,
            "statistics_examples": 1_000,
        },
        "engine": _ENGINE,
    }


_MEAN_CAPACITY = 0.6
_FASHION_COURSE = Course(400, 600, step=100, final=40, rule=FlatRule(window=5))
_CIFAR_COURSE = Course(1_000, 1_500, step=250, final=100)


def _smallest(smallest: float) -> Setting:
    """Capacities 1 and a smaller one, in proportions that make the mean capacity 0.6."""
    share = (_MEAN_CAPACITY - smallest) / (1 - smallest)
    return Setting(
        f"Fashion-MNIST, L = 5, capacities 1 and {Fraction(smallest)}, mean {_MEAN_CAPACITY:g}",
        _fashion(10_000, capacities=[1.0, smallest], proportions=[share, 1 - share]),
        _FASHION_COURSE,
        seeds=10,
        seconds=FASHION_SECONDS * 1.1,
        capacities=(1.0, smallest),
    )


CIFAR_SECONDS = 0.7
FASHION_SECONDS = 0.08
WIDE_SECONDS = 0.95
SETTINGS: dict[str, Setting] = {
    "cifar-low": Setting(
        "CIFAR-10, L = 5",
        _cifar("low", *PAPER_CAPACITIES),
        _CIFAR_COURSE,
        seeds=3,
        seconds=CIFAR_SECONDS,
        deviation=0.0229,
    ),
    "cifar-high": Setting(
        "CIFAR-10, L = 2",
        _cifar("high", *PAPER_CAPACITIES),
        _CIFAR_COURSE,
        seeds=3,
        seconds=CIFAR_SECONDS,
        deviation=0.0241,
    ),
    "fashion": Setting(
        "Fashion-MNIST, L = 5",
        _fashion(10_000),
        _FASHION_COURSE,
        seeds=10,
        seconds=FASHION_SECONDS,
    ),
    "fashion-1-2": _smallest(1 / 2),
    "fashion-1-4": _smallest(1 / 4),
    "fashion-1-8": _smallest(1 / 8),
    "fashion-1-16": _smallest(1 / 16),
    "overfit": Setting(
        "Fashion-MNIST, 18 images a client",
        merge_sections(
            _fashion(2_000),
            {
                "model": {"scaler": True},  # logits of the whole model as large as those trained
                "data": {"labels_per_client": 10},  # fewer labels each, and it never fits all
                "local": {"weight_decay": 0.0, "epochs": 5},
                "train": {"evaluate_train": True},
            },
        ),
        Course(900, 900, step=1, final=90),
        seeds=10,
        seconds=0.06,
    ),
    "table3": Setting(
        "CIFAR-10, L = 2, capacities 1/4 and 1/8",
        _cifar("high", 1 / 4, 1 / 8),
        Course(2_000, 2_000, step=1, final=200),
        seeds=3,
        seconds=CIFAR_SECONDS / 4,
        deviation=0.0241,
        capacities=(1 / 4, 1 / 8),
    ),
    "cifar-wide": Setting(
        "CIFAR-10, L = 5, width 16",
        merge_sections(_cifar("low", *PAPER_CAPACITIES), {"model": {"width": 16}}),
        _CIFAR_COURSE,
        seeds=3,
        seconds=WIDE_SECONDS,
        deviation=0.0229,
    ),
    "factors": Setting(
        "CIFAR-10, L = 5, width 4, 100 images a client",
        merge_sections(
            _cifar("low", *PAPER_CAPACITIES), {"model": {"width": 4}, "data": {"examples": 10_500}}
        ),
        Course(400, 400, step=1, final=40),
        seeds=3,
        seconds=0.25,
        tuning_rounds=100,
    ),
}
"""In the order in which they are run: main questions first."""
