"""Measure the growth of time and memory with exponents and figures.

    python -m benchmarks.growth [--only sampled,registered,parameters,cuts,processes] [--redraw]

- clients sampled per round, and clients registered: workload A of `benchmarks.speed` (digits CNN);
- parameters: a GPT of growing width, 4 clients of capacity 1/4;
- distinct cuts: 32 clients of capacity 1/4 with 1 to 32 cuts of a GPT of width 256;
- processes: `submodel train --processes N`, a ResNet18 of width 16 on the digits, 32 clients.

Every point is a separate process (`benchmarks.growth_points`) on one thread. Time is the processor
time of a round, and for processes the wall-clock time; memory is the peak of a run beyond the
imports, and for processes the sum over them. An exponent is the slope of a straight line through
the logarithms, for all points and for the last two, as constant parts lower the first. It takes
about three minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.growth_points import POINTS, run_config
from benchmarks.speed.report import table

from submodel.drawing.labels import fitting_unit, log_scale, name_ticks
from submodel.drawing.style import DOUBLE, INK, LINES, new_figure, save_figure, with_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VALUES: dict[str, Sequence[int]] = {
    "sampled": (25, 50, 100, 200, 400),
    "registered": (10**3, 10**4, 10**5, 10**6),
    "parameters": (64, 128, 256, 512, 768),  # widths; the model gives the number of parameters
    "cuts": (1, 2, 4, 8, 16, 32),
    "processes": (1, 2, 4),
}
TITLES = {
    "sampled": "clients sampled per round",
    "registered": "clients registered",
    "parameters": "parameters",
    "cuts": "distinct cuts in a round of 32 clients",
    "processes": "processes, on {cores} cores",
}
_ROOT = Path(__file__).resolve().parents[1]
_ALONE = {"OMP_NUM_THREADS": "1"}


def exponent(values: Sequence[float], amounts: Sequence[float]) -> float:
    """Return the slope of a straight line through the logarithms.

    >>> round(exponent([1, 10, 100], [3, 30, 300]), 6), round(exponent([1, 2, 4], [5, 5, 5]), 6)
    (1.0, 0.0)
    """
    return float(np.polyfit(np.log(values), np.log(amounts), 1)[0])


def _point(what: str, value: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.growth_points", what, str(value)]
    text = subprocess.check_output(command, cwd=_ROOT, env=os.environ | _ALONE, text=True)
    answer: dict[str, float] = json.loads(text.splitlines()[-1])
    return answer


def _process_point(processes: int) -> dict[str, float]:
    """Train with a number of processes; return seconds per round and total memory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "submodel", "train", str(run_config(folder)), "--out",
                   str(folder / "run")]  # fmt: skip
        command += ["--processes", str(processes)] if processes > 1 else ["--engine", "local"]
        measuring = (
            "import resource, subprocess, sys; "
            "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        )
        text = subprocess.check_output(
            [sys.executable, "-c", measuring, *command], env=os.environ | _ALONE, text=True
        )
        lines = (folder / "run" / "metrics.jsonl").read_text("utf-8").splitlines()
        phases = [json.loads(line)["seconds"] for line in lines[1:]]  # the first one warms up
    seconds = [sum(s for phase, s in p.items() if phase != "evaluate") for p in phases]
    largest = 1024 * int(text.splitlines()[-1])
    return {
        "value": processes,
        "seconds": float(np.median(seconds)),
        "bytes": processes * largest,
        "rounds": len(seconds),
    }


def measure(what: str) -> dict[str, Any]:
    """Measure all points of a quantity and fit the exponents.

    Args:
        what: one of `VALUES`.
    """
    rows = []
    for value in VALUES[what]:
        print(f"  {what}: {value}", file=sys.stderr, flush=True)
        rows.append(_process_point(value) if what == "processes" else _point(what, value))
    values = [row["value"] for row in rows]
    return {
        "title": TITLES[what].format(cores=os.cpu_count()),
        "points": rows,
        "exponents": {
            amount: [exponent(values[first:], [row[amount] for row in rows[first:]])
                     for first in (0, -2)]
            for amount in ("seconds", "bytes")
        },
    }  # fmt: skip


@with_style
def growth_figure(result: Mapping[str, Any]) -> Figure:
    """Draw time and memory on logarithmic scales with the fitted lines.

    Args:
        result: result of `measure`.
    """
    figure = new_figure(DOUBLE, 1.9)
    values = np.array([row["value"] for row in result["points"]], dtype=float)
    most = max(row["bytes"] for row in result["points"])
    size, unit = fitting_unit(most)
    labels = {"seconds": ("seconds per round", 1.0), "bytes": (f"memory ({unit})", size)}
    for plot, (amount, (label, scale)) in zip(figure.subplots(1, 2), labels.items(), strict=True):
        amounts = np.array([row[amount] for row in result["points"]]) / scale
        slope, height = np.polyfit(np.log(values), np.log(amounts), 1)
        plot.loglog(values, np.exp(height) * values**slope, color=LINES[0], linewidth=1)
        plot.loglog(values, amounts, "o", color=INK)
        plot.set_title(f"exponent {_both(result['exponents'][amount])}")
        plot.set(xlabel=result["title"], ylabel=label)
        plot.set_ylim(amounts.min() / 3, amounts.max() * 3)  # a flat line looks flat
        log_scale(plot)
        name_ticks(plot.xaxis, values.tolist(), [_plain_number(value) for value in values])
    return figure


def _plain_number(value: float) -> str:
    """Format a value for a tick: in full if it is round, else in millions.

    >>> [_plain_number(value) for value in (25, 1000, 1000000, 269696, 13167616)]
    ['25', '1,000', '1,000,000', '0.27 M', '13 M']
    """
    is_round = value == float(f"{value:.2g}")
    return f"{value:,.0f}" if is_round else f"{value / 1e6:.2g} M"


def _both(exponents: Sequence[float]) -> str:
    """Format the exponents of all points and of the last two.

    >>> _both([0.5, 0.94])
    '0.50 (0.94 at the end)'
    """
    every, end = (round(exponent_, 2) + 0.0 for exponent_ in exponents)  # 0.00, not -0.00
    return f"{every:.2f} ({end:.2f} at the end)"


def growth_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Tabulate ranges and exponents of all quantities."""
    lines = [["quantity", "from", "to", "seconds", "exponent", "memory, MB", "exponent"]]
    for result in results.values():
        first, last = result["points"][0], result["points"][-1]
        time_exponent, memory_exponent = result["exponents"].values()
        lines.append(
            [
                result["title"],
                f"{first['value']:,}",
                f"{last['value']:,}",
                f"{first['seconds']:.3g} to {last['seconds']:.3g}",
                _both(time_exponent),
                f"{first['bytes'] / 1e6:.0f} to {last['bytes'] / 1e6:.0f}",
                _both(memory_exponent),
            ]
        )
    return table(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.growth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default=",".join(VALUES), help="comma-separated quantities")
    parser.add_argument("--out", type=Path, default=_ROOT / "benchmarks/results/growth.json")
    parser.add_argument("--images", type=Path, default=_ROOT / "docs/images")
    parser.add_argument(
        "--redraw", action="store_true", help="measure nothing, draw the results in --out"
    )
    given = parser.parse_args()
    if given.redraw:
        for name, result in json.loads(given.out.read_text()).items():
            save_figure(growth_figure(result), given.images / f"growth-{name}.png")
        return
    names = given.only.split(",")
    if unknown := [name for name in names if name not in VALUES]:
        parser.error(f"--only: {unknown[0]!r} is not one of {', '.join(VALUES)}")
    assert set(VALUES) == {*POINTS, "processes"}
    begin = time.perf_counter()
    results = {}
    for name in names:
        results[name] = measure(name)
        save_figure(growth_figure(results[name]), given.images / f"growth-{name}.png")
    print(growth_table(results))
    earlier_results = json.loads(given.out.read_text("utf-8")) if given.out.is_file() else {}
    given.out.write_text(json.dumps({**earlier_results, **results}, indent=1) + "\n", "utf-8")
    print(f"{given.out}, after {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
