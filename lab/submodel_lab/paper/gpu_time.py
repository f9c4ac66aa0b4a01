"""GPU hours of runs at the scale of the paper, from counted FLOPs and stated peak rates."""

from __future__ import annotations

from functools import cache
from statistics import fmean
from typing import Any

from submodel.drawing import markdown_table
from submodel.model import BACKWARD, Axes, CostModel, inspect_axes, prefix_cut, subject
from submodel_lab.paper.experiments import DATASETS, EXPERIMENTS, PaperArm, Scale

PEAKS = {
    "NVIDIA A100 (float32)": 19.5e12,
    "NVIDIA A100 (TF32)": 156e12,
    "NVIDIA H100 SXM (TF32)": 494.7e12,
}
"""FLOPs per second as printed by the vendor, without sparsity."""
UTILISATION = (0.01, 0.1)
"""Assumed, not measured, fractions of the peak that training reaches."""
_SEEDS = 3
_TRAIN_EXAMPLES, _TEST_EXAMPLES = 50_000, 10_000  # of CIFAR-10 and CIFAR-100
_CLASSES = {"cifar10": 10, "cifar100": 100}


@cache
def _net(classes: int, width: int) -> tuple[CostModel, Axes]:
    options = {"width": width, "classes": classes, "scaler": True}
    net = subject("preresnet18", options, (3, 32, 32), on_meta_device=True)
    return CostModel(net.module, net.inputs), inspect_axes(net)


def forward_flops(classes: int, width: int, capacity: float) -> int:
    """Count the FLOPs of a forward pass of one image through the net, cut to a capacity."""
    costs, axes = _net(classes, width)
    return costs.forward_flops(prefix_cut(axes, capacity))


def run_flops(arm: PaperArm) -> float:
    """Count the FLOPs of a run at the scale of the paper: training and evaluations.

    Clients draw all capacities equally often; evaluations score all training and test images.
    """
    plain: dict[str, Any] = arm.settings(Scale.PAPER, seed=0)
    clients, train = plain["clients"], plain["train"]
    classes, width = _CLASSES[arm.dataset], plain["model"]["width"]
    image = fmean(forward_flops(classes, width, c) for c in clients["capacities"])
    images = clients["per_round"] * _TRAIN_EXAMPLES / clients["count"] * plain["local"]["epochs"]
    evaluations = (_TRAIN_EXAMPLES + _TEST_EXAMPLES) / train["evaluate_every"]
    whole = forward_flops(classes, width, 1.0)
    return float(train["rounds"] * (BACKWARD * images * image + evaluations * whole))


def _row(title: str, flops: float, runs: int) -> list[str]:
    hours = [flops / peak / share / 3600 for peak in PEAKS.values() for share in UTILISATION]
    return [title, f"{runs}", f"{flops / 1e15:,.0f}", *(f"{h:,.1f}" for h in hours)]


def gpu_rows() -> list[list[str]]:
    """Tabulate single runs and all of ``submodel reproduce all --scale paper``."""
    arms = list(dict.fromkeys(v for e in EXPERIMENTS.values() for v in e.arms(Scale.PAPER)))
    rows = [
        _row(f"{dataset}, {title}, one run", run_flops(PaperArm(dataset, "low", method)), 1)
        for dataset in DATASETS[Scale.PAPER]
        for method, title in (("rolling", "capacities 1 to 1/16"), ("full", "capacity 1"))
    ]
    rows += [
        _row(
            f"{dataset}, all arms, {_SEEDS} seeds",
            _SEEDS * sum(map(run_flops, own_arms)),
            count,
        )
        for dataset in DATASETS[Scale.PAPER]
        if (own_arms := [v for v in arms if v.dataset == dataset])
        for count in [_SEEDS * len(own_arms)]
    ]
    return rows


def gpu_lines() -> list[str]:
    """Format the table as Markdown."""
    columns = [f"hours, {gpu}, {100 * share:.0f} %" for gpu in PEAKS for share in UTILISATION]
    return [*markdown_table(["experiment", "runs", "PFLOPs", *columns], gpu_rows())]
