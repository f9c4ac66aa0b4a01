"""Profile the time of a round.

    python -m benchmarks.profiling [--workloads A,B,C] [--rounds 3] [--scale 1.0]

One process, one thread. Two runs of one setup take turns with the same rounds: a plain run gives
the seconds of the round and of its phases, a profiled run those of the operators of training. The
rest of the plain round is Python and other overhead; part of the profiler's own cost is counted for
the operators, so this overhead is a lower bound. A client takes 3 or 4 steps; --scale changes
their number. A second table gives a step for stacks of clients, by capacity.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from benchmarks.speed.local import Ours
from benchmarks.speed.peak import peak
from benchmarks.speed.report import table
from benchmarks.speed.worker import Report
from benchmarks.speed.workloads import WORKLOADS, Workload, make_setup
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from submodel.algorithm.dispatch import Dispatcher
from submodel.algorithm.round_statistics import RoundStatistics
from submodel.algorithm.rounds import initial_state, plan
from submodel.algorithm.types import Assignment, Setup
from submodel.engines.batched.forward import WideForward
from submodel.engines.batched.stack import Stack, StackedLoss
from submodel.engines.native.forward import NativeForward
from submodel.model.build import build_module
from submodel.model.cost import BACKWARD, CostModel
from submodel.model.cut import WHOLE

SCALES = {"A": 1.0, "B": 0.08, "C": 1.0, "F": 0.08}  # 3 or 4 steps per client
STACKS = (1, 2, 4)
KERNELS = ("torch", "native")
_STACKED_SECONDS, _STACKED_REPEATS = 1.0, 3  # least time and number of repeats

KINDS: dict[str, tuple[str, ...]] = {
    # prefixes of operator names; the first matching kind counts, outermost operators first
    "convolution backward": ("ConvolutionBackward", "aten::convolution_backward"),
    "convolution forward": ("aten::conv", "aten::mkldnn_convolution"),
    "native kernels": ("_Net",),
    "linear": ("_WideLinear", "aten::linear", "aten::addmm", "aten::mm", "aten::bmm"),
    "batch norm": ("aten::batch_norm", "aten::native_batch_norm", "NativeBatchNormBackward"),
    "pointwise and pooling": (
        *("aten::add", "aten::sub", "aten::mul", "aten::div", "aten::sum", "aten::mean"),
        *("aten::relu", "aten::threshold_backward", "aten::max_pool", "aten::avg_pool"),
        *("aten::adaptive_avg_pool", "aten::_adaptive_avg_pool", "MeanBackward"),
        *("aten::cross_entropy", "NllLossBackward", "LogSoftmaxBackward"),
    ),
    "optimiser": ("aten::_foreach_",),
    "moving data": (
        *("aten::copy_", "aten::cat", "aten::stack", "aten::index", "aten::clone"),
        *("aten::fill_", "aten::zero_"),
    ),
}
PRODUCTS = ("convolution forward", "convolution backward", "native kernels", "linear")
PHASES = ("plan", "gather", "merge")
OTHER = "Python and other"
_LAP = "lap: "


class _MarkedStatistics(RoundStatistics):
    """Mark the end of each phase in the profile."""

    def lap(self, phase: str) -> None:
        with record_function(_LAP + phase):
            super().lap(phase)


def _kind(name: str) -> str | None:
    return next((kind for kind, begins in KINDS.items() if name.startswith(begins)), None)


def _add(events: Iterable[FunctionEvent], seconds: dict[str, float]) -> None:
    """Add every event to the kind of its outermost operator with a kind."""
    for event in events:
        kind = _kind(event.name)
        if kind is None:
            _add(event.cpu_children, seconds)
        else:
            seconds[kind] += event.cpu_time_total / 1e6


def of_training(events: Iterable[FunctionEvent]) -> dict[str, float]:
    """Sum the seconds of operators in laps of training, by kind."""
    seconds = dict.fromkeys(KINDS, 0.0)
    waiting: list[FunctionEvent] = []
    outermost = [event for event in events if event.cpu_parent is None]
    for event in sorted(outermost, key=lambda event: event.time_range.start):
        if not event.name.startswith(_LAP):
            waiting.append(event)
            continue
        if event.name == _LAP + "train":
            _add(waiting, seconds)
        waiting = []
    return seconds


def _profiled(ours: Ours) -> tuple[Report, dict[str, float]]:
    """Run a round with the profiler; return its report and the seconds of its operators."""
    with (
        patch("submodel.algorithm.rounds.RoundStatistics", _MarkedStatistics),
        profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler,
    ):
        report = ours.round()
    return report, of_training(profiler.events() or [])


def _warm_up(runs: Sequence[Ours], setup: Setup, workload: Workload) -> int:
    """Run until every capacity occurred, so that its cuts are counted; return the rounds."""
    seen: set[float] = set()
    rounds = 0
    while rounds < workload.warm_up or len(seen) < len(workload.capacities):
        seen |= {assignment.capacity for assignment in plan(setup, rounds)}
        for ours in runs:
            ours.round()
        rounds += 1
    return rounds


def measure(workload: Workload, scale: float, rounds: int, fastest: float) -> dict[str, Any]:
    """Measure the means over the rounds of a workload."""
    config, setup = make_setup(workload, scale)
    plain, watched = Ours(config, setup), Ours(config, setup)
    warm_up = _warm_up((plain, watched), setup, workload)
    seconds = watched_seconds = flops = 0.0
    kinds = dict.fromkeys((*KINDS, *PHASES), 0.0)
    for number in range(rounds):
        if number % 2:  # alternate, as the first run may find cold caches
            (report, found), own = _profiled(watched), plain.round()
        else:
            own, (report, found) = plain.round(), _profiled(watched)
        seconds, watched_seconds = seconds + own["seconds"], watched_seconds + report["seconds"]
        flops += own["flops"]
        for kind, spent in (found | {p: own["phases"][p] for p in PHASES}).items():
            kinds[kind] += spent
    kinds[OTHER] = seconds - sum(kinds.values())
    products = sum(kinds[kind] for kind in PRODUCTS)
    return {
        "title": workload.title,
        "steps_per_client": workload.steps_at(scale),
        "warm_up": warm_up,
        "rounds": rounds,
        "seconds_per_round": seconds / rounds,
        "profiled / plain": watched_seconds / seconds,
        "seconds_by_kind": {kind: spent / rounds for kind, spent in kinds.items()},
        "share_by_kind": {kind: spent / seconds for kind, spent in kinds.items()},
        "flops_per_round": flops / rounds,
        "seconds_at_peak": flops / rounds / fastest,
        "share_of_peak": flops / seconds / fastest,
        "share_of_peak_in_products": flops / products / fastest,
    }


def _step_seconds(setup: Setup, capacity: float, clients: int, kernels: str) -> float:
    """Return the least time of a step of a stack, from the batch to the new weights."""
    dispatcher = Dispatcher(setup, initial_state(setup), setup.work)
    tasks = [dispatcher.task(Assignment(0, client, capacity)) for client in range(clients)]
    device = torch.device("cpu")
    share = Stack(setup.module, tasks, device).select(0, clients)
    loss = StackedLoss(setup, tasks, device)
    data, batch = setup.clients.dataset.train, setup.work.batch_size or 1
    wide = WideForward(build_module(setup.module, WHOLE).train(), data.x[:2])
    forward = NativeForward(wide) if kernels == "native" else wide
    x = data.x[: batch * clients].view(batch, clients, *data.x.shape[1:])
    y = data.y[: batch * clients].view(batch, clients)
    times: list[float] = []
    while len(times) <= _STACKED_REPEATS or sum(times) < _STACKED_SECONDS:
        start = time.process_time()
        losses, counts = loss(forward(share.tensors, clients, x), y, loss.present(0, clients))
        share.step(share.outcome(losses, counts), setup.work, setup.work.lr)
        times.append(time.process_time() - start)
    return min(times[1:])  # the first warms up


def measure_stacks(workload: Workload, scale: float, fastest: float) -> list[dict[str, Any]]:
    """Measure a step of every capacity in stacks of several sizes."""
    _, setup = make_setup(workload, scale)
    torch.set_num_threads(1)
    costs = CostModel(setup.module, setup.clients.dataset.example)
    dispatcher = Dispatcher(setup, initial_state(setup), setup.work)
    rows = []
    for capacity in workload.capacities:
        cut = dispatcher.task(Assignment(0, 0, capacity)).cut
        flops = BACKWARD * costs.forward_flops(cut) * workload.batch
        for clients, kernels in product(STACKS, KERNELS):
            seconds = _step_seconds(setup, capacity, clients, kernels) / clients
            rows.append(
                {
                    "capacity": capacity,
                    "kernels": kernels,
                    "clients": clients,
                    "flops_per_client": flops,
                    "seconds_per_client": seconds,
                    "share_of_peak": flops / seconds / fastest,
                }
            )
    return rows


def kinds_table(name: str, result: dict[str, Any], fastest: float) -> str:
    """Tabulate the round of a workload."""
    spent, share = result["seconds_by_kind"], result["share_by_kind"]
    rows = [["kind", "ms per round", "share"]]
    rows += [[k, f"{1e3 * s:.1f}", f"{share[k]:.1%}"] for k, s in spent.items()]
    rows += [["round", f"{1e3 * result['seconds_per_round']:.1f}", "100.0%"]]
    return "\n".join(
        (
            f"{name}: {result['title']}",
            f"{result['steps_per_client']} steps of a client; mean of {result['rounds']} rounds; "
            f"with the profiler {result['profiled / plain']:.2f} times as long",
            table(rows),
            f"{result['flops_per_round'] / 1e9:.1f} GFLOP per round, "
            f"{result['share_of_peak']:.1%} of the peak of {fastest / 1e9:.0f} GFLOP/s: "
            f"at the peak the arithmetic alone would take {1e3 * result['seconds_at_peak']:.1f} ms",
            f"while convolutions and linear layers run: {result['share_of_peak_in_products']:.1%} "
            "of the peak",
        )
    )


def stacks_table(result: Sequence[dict[str, Any]]) -> str:
    """Tabulate the steps of a workload."""
    columns = [f"{n} client{'s' * (n > 1)}" for n in STACKS]
    rows = [["capacity", "kernels", *columns, *(f"of peak, {n}" for n in STACKS)]]
    for capacity, kernels in dict.fromkeys((row["capacity"], row["kernels"]) for row in result):
        own = [r for r in result if (r["capacity"], r["kernels"]) == (capacity, kernels)]
        rows.append(
            [
                f"{capacity:g}",
                kernels,
                *(f"{1e3 * row['seconds_per_client']:.2f}" for row in own),
                *(f"{row['share_of_peak']:.1%}" for row in own),
            ]
        )
    return "ms per client and step, in stacks of\n" + table(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.profiling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workloads", default=",".join(SCALES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    default = Path(__file__).parent / "results" / "profile.json"
    parser.add_argument("--out", type=Path, default=default)
    given = parser.parse_args()
    names = given.workloads.split(",")
    if unknown := [name for name in names if name not in SCALES]:
        parser.error(f"--workloads: {unknown[0]!r} is not one of {', '.join(SCALES)}")
    if given.rounds < 1 or given.scale <= 0:
        parser.error("--rounds and --scale must be positive")
    fastest = peak()
    results: dict[str, Any] = {"peak_flops_per_second": fastest, "rounds": {}, "stacks": {}}
    for name in names:
        workload, scale = WORKLOADS[name], SCALES[name] * given.scale
        result = measure(workload, scale, given.rounds, fastest)
        results["rounds"][name] = result
        print(kinds_table(name, result, fastest) + "\n", flush=True)
        if name != "A":
            stacks = measure_stacks(workload, scale, fastest)
            results["stacks"][name] = stacks
            print(stacks_table(stacks) + "\n", flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
