"""Measure seconds per round of our engines and of other systems, on the same tasks.

    python -m benchmarks.speed [--workloads A,B,C,D,E,F] [--repeats 5]
                               [--contenders bare,local,processes,local-torch,...,flower,pfl]
                               [--scale 1.0] [--contender-python PYTHON]
                               [--against CHECKOUT] [--quick]

All contenders of a workload are prepared and warmed up first; then they take turns, one round each,
so that other load of the machine affects all of them. Ratios are of the same round, with median and
range over the repeats. A repeat trains fewer images per client than the workload has (see
`workloads.Workload.share`); --scale changes their number. --against adds the local engine of
another checkout of this repository, such as an earlier commit, as "before".
E uses a big model (see `big`) and measures the share of merging in a round, and bytes per
parameter. F uses small sub-models and compares our engines with native kernels and with those of
torch. --quick takes three minutes for all workloads, as a check for regressions: two repeats of a
tenth of the images (of C one repeat, with two processes and the bare loop only), our engines and
the bare loop, and a model of 15 M parameters for E. Its results go to a separate file; published
figures are from the full form.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed.big import measure as measure_big
from benchmarks.speed.contenders import BY_TORCH, CONTENDERS, OURS, Contender, ContenderError
from benchmarks.speed.report import (
    GOAL_D,
    GOALS,
    big_table,
    compare,
    population_table,
    problems,
    summary,
    verdicts,
    workload_table,
)
from benchmarks.speed.workloads import POPULATIONS, WORKLOADS

_D_REPEATS = 3  # rounds of D are short, so there are more of them
_QUICK = {"repeats": 2, "scale": 0.1, "contenders": [*OURS, "bare"]}
_QUICK_SIZES = ("--width", "384", "--layers", "6", "--vocabulary", "4096", "--rounds", "2")  # of E
_BEFORE = "before"  # the label of another checkout's engine


def _names(allowed: Sequence[str], what: str) -> Any:
    def read(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")]
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(
                    f"{name!r} is not a {what}; there are {', '.join(allowed)}"
                )
        return [name for name in allowed if name in names]

    return read


def _peak() -> dict[str, float]:
    """Measure FLOP/s of matrix products: one process on one thread, and the sum of two at once."""
    command = [sys.executable, "-m", "benchmarks.speed.peak"]

    def together(count: int) -> float:
        running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
        return sum(float(p.communicate()[0]) for p in running)

    return {"one_thread": together(1), "two_processes": together(2)}


def _take_turns(
    contenders: Iterable[tuple[str, str, str]], given: argparse.Namespace, repeats: int
) -> dict[str, dict[str, Any]]:
    """Time contenders, given by label, name and workload; return rounds or failures by label."""
    results: dict[str, dict[str, Any]] = {}
    alive: dict[str, Contender] = {}
    try:
        for label, name, workload in contenders:
            results[label] = {}
            print(f"  preparing {label}", file=sys.stderr, flush=True)
            try:
                options = {"root": given.against} if label == _BEFORE else {}
                python = given.contender_python
                alive[label] = Contender(name, workload, given.scale, python, **options)
                alive[label].prepare()
                results[label] = dict(alive[label].about)
            except ContenderError as error:
                _drop(alive, results, label, error)
        answers: dict[str, list[dict[str, Any]]] = {label: [] for label in alive}
        for repeat in range(repeats):
            print(f"  round {repeat + 1} of {repeats}", file=sys.stderr, flush=True)
            for label in list(alive):
                try:
                    answers[label].append(alive[label].go())
                except ContenderError as error:
                    _drop(alive, results, label, error)
        for label in alive:
            own = answers[label]
            results[label]["seconds"] = [a["seconds"] for a in own]
            results[label] |= summary(results[label]["seconds"])
            results[label]["peak_mb"] = max(a["peak_mb"] for a in own)
            for plural, key in (("losses", "loss"), ("flops", "flops"), ("phases", "phases")):
                if key in own[0]:
                    results[label][plural] = [a[key] for a in own]
    finally:
        for contender in alive.values():
            contender.close()
    return results


def _drop(
    alive: dict[str, Contender],
    results: dict[str, dict[str, Any]],
    label: str,
    error: ContenderError,
) -> None:
    """Remove a failed contender, and keep the reason."""
    results[label] = {"reason": str(error)}
    if label in alive:
        alive.pop(label).close()


def _measure(name: str, chosen: Sequence[str], given: argparse.Namespace) -> dict[str, Any]:
    workload = WORKLOADS[name]
    is_short = given.quick and workload.warm_up == 1  # a round of many seconds
    contenders = [(c, c, name) for c in chosen if not (is_short and c == "local")]
    if given.against is not None:
        contenders.append((_BEFORE, "local", name))
    results = _take_turns(contenders, given, 1 if is_short else given.repeats)
    return {
        "title": workload.title,
        "capacities": workload.capacities,
        "images_per_client": workload.images_at(given.scale),
        "images_per_client_in_full": workload.images,
        "steps_per_client": workload.steps_at(given.scale),
        "contenders": results,
        "flops": next((r["flops"] for r in results.values() if "flops" in r), None),
        "ratios": compare(results),
        "problems": problems(results),
    }


def _measure_populations(given: argparse.Namespace) -> dict[str, Any]:
    """Measure workload D: our engine with growing numbers of registered clients."""
    return _take_turns(
        [(str(n), "local", f"D-{n}") for n in POPULATIONS], given, _D_REPEATS * given.repeats
    )


def _machine() -> dict[str, Any]:
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = info.read_text("utf-8").splitlines()
        model = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), model)
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }


def _settle(given: argparse.Namespace) -> None:
    """Fill in missing options, for the full form or the quick one."""
    usual = {"repeats": 5, "scale": 1.0, "contenders": list(CONTENDERS)}
    for key, value in (_QUICK if given.quick else usual).items():
        if getattr(given, key) is None:
            setattr(given, key, value)
    if given.out is None:
        name = "speed-quick.json" if given.quick else "speed.json"
        given.out = Path(__file__).resolve().parents[1] / "results" / name


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    letters = sorted([*GOALS, "D", "E"])
    parser.add_argument("--workloads", type=_names(letters, "workload"), default=letters)
    parser.add_argument("--quick", action="store_true", help="three minutes for all workloads")
    parser.add_argument("--contenders", type=_names(CONTENDERS, "contender"))
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--scale", type=float)
    parser.add_argument(
        "--contender-python",
        default=sys.executable,
        help="interpreter with flower and pfl (benchmarks/requirements.txt)",
    )
    parser.add_argument("--against", type=Path, help="another checkout for comparison")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    _settle(given)
    if given.repeats < 1 or given.scale <= 0:
        parser.error("--repeats and --scale must be positive")
    begin, machine = time.perf_counter(), _machine()
    peak = _peak()
    print(
        f"peak: {peak['one_thread'] / 1e9:.0f} GFLOP/s on one thread, "
        f"{peak['two_processes'] / 1e9:.0f} in two processes (the share below is of the latter)\n"
    )
    workloads: dict[str, Any] = {}
    populations: dict[str, Any] = {}
    big_models: dict[str, Any] = {}
    for letter in given.workloads:
        if letter == "E":
            big_models = measure_big(given.against, _QUICK_SIZES if given.quick else ())
            print("E: a big model\n" + big_table(big_models) + "\n", flush=True)
            continue
        if letter == "D":
            populations = _measure_populations(given)
            print("D: population\n" + population_table(populations) + "\n", flush=True)
            continue
        chosen = [c for c in given.contenders if c != "pfl"]
        if letter == "F":
            chosen = [c for c in chosen if c in OURS or c in BY_TORCH]
        whole = [c for c in given.contenders if c in OURS] + ["pfl"]
        variants = [(letter, chosen)] if chosen else []
        if "pfl" in given.contenders and letter != "F":
            variants.append((f"{letter}-whole", whole))
        for name, contenders in variants:
            result = _measure(name, contenders, given)
            workloads[name] = result
            capacity = ", capacity 1 only" if name.endswith("whole") else ""
            images, full = result["images_per_client"], result["images_per_client_in_full"]
            print(f"{letter}: {result['title']}{capacity}; {images} of {full} images per client")
            print(workload_table(result, peak["two_processes"]) + "\n", flush=True)
    print("goals\n" + verdicts(workloads))
    results = {
        "machine": machine,
        "repeats": given.repeats,
        "scale": given.scale,
        "seconds": round(time.perf_counter() - begin, 1),
        "peak_flops_per_second": peak,
        "goals": {**GOALS, "D": GOAL_D},
        "workloads": workloads,
        "populations": populations,
        "big_models": big_models,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\n{given.out}, after {results['seconds']:.0f} s")


if __name__ == "__main__":
    main()
