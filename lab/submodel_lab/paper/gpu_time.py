"""What runs at the scale of the paper would take on a named GPU: FLOPs counted, the rest stated."""

from __future__ import annotations

from functools import cache
from statistics import fmean
from typing import Any

from submodel.drawing import markdown_table
from submodel.model import BACKWARD, Axes, CostModel, inspect_axes, prefix_cut, subject
from submodel_lab.paper.experiments import DATASETS, EXPERIMENTS, Scale, Variant

PEAKS = {
    "NVIDIA A100 (float32)": 19.5e12,
    "NVIDIA A100 (TF32)": 156e12,
    "NVIDIA H100 SXM (TF32)": 494.7e12,
}
"""FLOPs a second that the vendor prints, without sparsity."""
UTILISATION = (0.01, 0.1)
"""The share of the peak that is reached: an assumption, not a measurement."""
_SEEDS = 3
_TRAIN_EXAMPLES, _TEST_EXAMPLES = 50_000, 10_000  # of CIFAR-10 and CIFAR-100
_CLASSES = {"cifar10": 10, "cifar100": 100}


@cache
def _net(classes: int, width: int) -> tuple[CostModel, Axes]:
    options = {"width": width, "classes": classes, "scaler": True}
    net = subject("preresnet18", options, (3, 32, 32), on_meta_device=True)
    return CostModel(net.module, net.inputs), inspect_axes(net)


def forward_flops(classes: int, width: int, capacity: float) -> int:
    """What one image costs the net of the paper, cut to a capacity, in a forward pass."""
    costs, axes = _net(classes, width)
    return costs.forward_flops(prefix_cut(axes, capacity))


def run_flops(variant: Variant) -> float:
    """What a run at the scale of the paper costs: training, and the evaluations on the way.

    Clients draw their capacities alike; evaluations score all training and test images.
    """
    plain: dict[str, Any] = variant.settings(Scale.PAPER, seed=0)
    clients, train = plain["clients"], plain["train"]
    classes, width = _CLASSES[variant.dataset], plain["model"]["width"]
    image = fmean(forward_flops(classes, width, c) for c in clients["capacities"])
    images = clients["per_round"] * _TRAIN_EXAMPLES / clients["count"] * plain["local"]["epochs"]
    evaluations = (_TRAIN_EXAMPLES + _TEST_EXAMPLES) / train["evaluate_every"]
    whole = forward_flops(classes, width, 1.0)
    return float(train["rounds"] * (BACKWARD * images * image + evaluations * whole))


def _row(title: str, flops: float, runs: int) -> list[str]:
    hours = [flops / peak / share / 3600 for peak in PEAKS.values() for share in UTILISATION]
    return [title, f"{runs}", f"{flops / 1e15:,.0f}", *(f"{h:,.1f}" for h in hours)]


def gpu_rows() -> list[list[str]]:
    """Single runs and all of ``submodel reproduce all --scale paper``."""
    variants = list(dict.fromkeys(v for e in EXPERIMENTS.values() for v in e.variants(Scale.PAPER)))
    rows = [
        _row(f"{dataset}, {title}, one run", run_flops(Variant(dataset, "low", way)), 1)
        for dataset in DATASETS[Scale.PAPER]
        for way, title in (("rolling", "capacities 1 to 1/16"), ("full", "capacity 1"))
    ]
    rows += [
        _row(
            f"{dataset}, all variants, {_SEEDS} seeds",
            _SEEDS * sum(map(run_flops, own_variants)),
            count,
        )
        for dataset in DATASETS[Scale.PAPER]
        if (own_variants := [v for v in variants if v.dataset == dataset])
        for count in [_SEEDS * len(own_variants)]
    ]
    return rows


def gpu_lines() -> list[str]:
    """The table as Markdown."""
    columns = [f"hours, {gpu}, {100 * share:.0f} %" for gpu in PEAKS for share in UTILISATION]
    return [*markdown_table(["what", "runs", "PFLOPs", *columns], gpu_rows())]
