"""Common loop of contender processes: prepare once, then run a round for each "go"."""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TextIO

import torch
from benchmarks.speed.workloads import WORKLOADS, Workload

Report = dict[str, Any]
"""At least "seconds"; optionally "loss" of the training, "flops" and "note"."""
Round = Callable[[], Report]


def options() -> tuple[Workload, float]:
    """Parse the workload and the scale from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--kernels", choices=("native", "torch"), default="native")
    given = parser.parse_args()
    return replace(WORKLOADS[given.workload], kernels=given.kernels), given.scale


def reserve_stdout() -> TextIO:
    """Reserve standard output for reports, and redirect all other output to standard error."""
    sys.stdout.flush()
    own = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return own


def serve(out: TextIO, workload: Workload, round_: Round, **about: object) -> None:
    """Warm up, report readiness, and run a round for every line "go" until the input ends."""
    reports = [round_() for _ in range(workload.warm_up)]
    ready = {"torch": torch.__version__, "warm_up": [r["seconds"] for r in reports], **about}
    print(json.dumps({"ready": ready}), file=out)
    for line in sys.stdin:
        if line.strip() != "go":
            break
        report = round_()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(report | {"peak_mb": peak}), file=out)
