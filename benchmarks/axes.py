"""Measure the cost of axes: trace, draw, gather, build and scatter, on one thread.

    python benchmarks/axes.py [--repeats 15]

Results are medians of processor time with ranges. The steps alternate within a repeat, so that a
busy machine slows all of them equally. Goals: a trace takes at most three plain forwards, and
gather + scatter at capacity 1/4 at most 15 ms, both for a ResNet18 of width 64.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from submodel.algorithm.merge import SELECTIVE, Accumulator
from submodel.model.axes import trace
from submodel.model.axes.forward import run
from submodel.model.build import build_module, tensors_of
from submodel.model.cut import Cut, Tensors, UnitCut, gather
from submodel.model.inspect import inspect_axes, subject
from submodel.model.zoo import make_model
from submodel.schemes import Draw, Random, Rolling, Scheme
from submodel.schemes.draw import draw_units

CAPACITY = 0.25
TRACE_GOAL = 3.0  # forwards
MOVE_GOAL = 15.0  # milliseconds
Times = dict[str, list[float]]


def milliseconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return 1e3 * (time.process_time() - start)


def measure(steps: dict[str, Callable[[], object]], repeats: int) -> Times:
    """Time the steps in turn; the first turn, which fills caches, does not count."""
    times: Times = {name: [] for name in steps}
    for turn in range(repeats + 1):
        for name, work in steps.items():
            took = milliseconds(work)
            if turn:
                times[name].append(took)
    return times


def scatter(cut: Cut, target: Tensors, small: Tensors) -> None:
    for name, value in small.items():
        cut.add(name, target[name], value)


def resnet(repeats: int) -> Times:
    """Time the steps of a pre-activation ResNet18 on 32 x 32 images."""
    torch.manual_seed(0)
    module = make_model("preresnet18", (3, 32, 32), 10, 64)
    one, two = torch.randn(1, 3, 32, 32), torch.randn(2, 3, 32, 32)
    axes = trace(module, two)
    whole = tensors_of(module)
    target = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    accumulator = Accumulator(whole, SELECTIVE)

    @torch.no_grad()
    def forward(inputs: torch.Tensor) -> None:
        module(inputs)

    def draw(scheme: Scheme) -> UnitCut:
        cut = draw_units(scheme, axes, CAPACITY, Draw(0, 0, 0))
        assert cut.plan  # computed lazily
        return cut

    steps: dict[str, Callable[[], object]] = {
        "forward, batch 1": partial(forward, one),
        "forward, batch 2": partial(forward, two),
        "trace, batch 1": partial(trace, module, one, verify=False),
        "trace, batch 2": partial(trace, module, two, verify=False),
        "trace and verify, batch 2": partial(trace, module, two),
    }
    schemes: dict[str, Scheme] = {"random": Random("fixed"), "rolling": Rolling(512)}
    for name, scheme in schemes.items():
        cut = draw(scheme)
        small = gather(cut, whole)
        steps |= {
            f"{name}: draw and plan": partial(draw, scheme),
            f"{name}: gather": partial(gather, cut, whole),
            f"{name}: scatter (cut.add)": partial(scatter, cut, target, small),
            f"{name}: build": partial(build_module, module, cut),
            f"{name}: merge (Accumulator.add)": partial(accumulator.add, cut, small),
        }
    return measure(steps, repeats)


def gpt2(repeats: int) -> Times:
    """Time the trace of GPT-2 with 124 million parameters, without values."""
    found = subject("transformers:GPT2Config", {}, on_meta_device=True)

    found.module.eval()

    @torch.no_grad()
    def forward() -> None:
        run(found.module, found.inputs)

    steps: dict[str, Callable[[], object]] = {
        "forward on meta": forward,
        "trace on meta": lambda: inspect_axes(found),
    }
    return measure(steps, repeats)


def summary(times: Times) -> dict[str, dict[str, float]]:
    return {
        name: {"median": statistics.median(took), "least": min(took), "most": max(took)}
        for name, took in times.items()
    }


def pairs(times: Times, one: str, other: str, combine: Callable[[float, float], float]) -> float:
    """Return the median of a combination of two steps of the same turn."""
    return statistics.median(map(combine, times[one], times[other]))


def goals(times: Times) -> dict[str, dict[str, float | bool]]:
    """Compare the measured numbers with the goals."""
    found: dict[str, tuple[float, float]] = {}
    for batch in (1, 2):
        ratio = pairs(times, f"trace, batch {batch}", f"forward, batch {batch}", lambda t, f: t / f)
        found[f"trace / forward, batch {batch}"] = (ratio, TRACE_GOAL)
    for scheme in ("random", "rolling"):
        moved = pairs(
            times, f"{scheme}: gather", f"{scheme}: scatter (cut.add)", lambda g, s: g + s
        )
        found[f"{scheme}: gather + scatter at 1/4, ms"] = (moved, MOVE_GOAL)
    return {
        name: {"found": value, "goal": goal, "met": value <= goal}
        for name, (value, goal) in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    times = {"preresnet18, width 64": resnet(repeats), "GPT-2 124M": gpt2(max(3, repeats // 3))}
    results = {
        "repeats": repeats,
        "milliseconds": {model: summary(took) for model, took in times.items()},
        "goals": goals(times["preresnet18, width 64"]),
    }
    print("| model | step | median, ms | range |\n| --- | --- | ---: | --- |")
    for model, took in times.items():
        for step, found in summary(took).items():
            print(
                f"| {model} | {step} | {found['median']:.2f} | "
                f"{found['least']:.2f} to {found['most']:.2f} |"
            )
    print("\n| goal | found | at most | met |\n| --- | ---: | ---: | --- |")
    for goal, judged in goals(times["preresnet18, width 64"]).items():
        met = "yes" if judged["met"] else "no"
        print(f"| {goal} | {judged['found']:.2f} | {judged['goal']:g} | {met} |")
    path = Path(__file__).parent / "results" / "axes.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
