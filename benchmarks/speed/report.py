"""Ratios, tables and verdicts from measured seconds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.speed.contenders import BY_TORCH, OURS

GOALS: dict[str, dict[str, float]] = {
    "A": {"bare": 5.0, "flower": 10.0, "pfl": 3.0},
    "B": {"bare": 2.5, "flower": 1.8, "pfl": 1.4, "local-torch": 1.4, "processes-torch": 1.4},
    "C": {"bare": 1.3, "flower": 1.1, "pfl": 1.25},
    "F": {"local-torch": 2.0, "processes-torch": 2.0},
}
"""Desired speed-up over each contender, by workload."""
GOAL_D = 1.10
"""Largest ratio of seconds and memory between the most and the fewest clients."""
Results = Mapping[str, Any]


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return median and range."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def ratios(over: Sequence[float], under: Sequence[float]) -> dict[str, float]:
    """Summarise the ratios of the same rounds.

    >>> ratios([2.0, 3.0, 9.0], [1.0, 1.0, 3.0])["median"]
    3.0
    """
    return summary([a / b for a, b in zip(over, under, strict=True)])


def compare(measured: Mapping[str, Results]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the speed-up of each of our engines over each other contender."""
    seconds = {name: r["seconds"] for name, r in measured.items() if "seconds" in r}
    return {
        ours: {
            other: ratios(seconds[other], seconds[ours]) for other in seconds if other not in OURS
        }
        for ours in OURS
        if ours in seconds
    }


def problems(measured: Mapping[str, Results]) -> list[str]:
    """List contenders whose training loss shows that they did different work."""
    losses = {n: r["losses"] for n, r in measured.items() if r.get("losses")}
    found = []
    for name, own in losses.items():
        middle = [statistics.median(values) for values in zip(*losses.values(), strict=True)]
        worst = max(abs(a - b) / b for a, b in zip(own, middle, strict=True))
        if not worst < 0.02:  # rounding differs, and training amplifies it
            found.append(f"{name}: its training loss is {worst:.1%} away from the median's")
    return found


def _spread(values: Mapping[str, float], digits: int = 2) -> str:
    median, least, most = (f"{values[k]:.{digits}f}" for k in ("median", "least", "most"))
    return f"{median} ({least} to {most})"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as columns of equal width, with the first row as the head.

    >>> print(table([["a", "b"], ["1", "22"]]))
    a  b
    -  --
    1  22
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [list(rows[0]), ["-" * w for w in widths], *map(list, rows[1:])]
    padded = ("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)


def workload_table(result: Results, peak: float | None) -> str:
    """Tabulate a workload: seconds per round of every contender, and our speed-ups."""
    measured, ratio = result["contenders"], result["ratios"]
    others = [n for n, r in measured.items() if n not in OURS and "seconds" in r]
    head = ["contender", "seconds per round", "of peak", *(f"{o} / it" for o in others), "how"]
    rows = [head]
    for name, r in measured.items():
        if "seconds" not in r:
            continue
        share = "-"
        if peak is not None and result["flops"] is not None:
            rate = statistics.median(
                f / s for f, s in zip(result["flops"], r["seconds"], strict=True)
            )
            share = f"{rate / peak:.1%}"
        against = [_spread(ratio[name][o]) if name in ratio else "-" for o in others]
        rows.append([name, _spread(summary(r["seconds"]), 3), share, *against, r.get("note", "")])
    lines = [table(rows)] if len(rows) > 1 else []
    lines += [f"{n}: cannot run: {r['reason']}" for n, r in measured.items() if "reason" in r]
    lines += [f"not the same work? {problem}" for problem in result["problems"]]
    return "\n".join(lines)


def verdicts(results: Mapping[str, Results]) -> str:
    """Tabulate the goals with the better of our two engines."""
    rows = [["workload", "against", "goal", "reached", "by", ""]]
    for name, goals in GOALS.items():
        for other, goal in goals.items():
            where = f"{name}-whole" if other == "pfl" else name
            ratio = results.get(where, {}).get("ratios", {})
            reached = {ours: r[other] for ours, r in ratio.items() if other in r}
            if other in BY_TORCH:  # compare equal numbers of processes
                reached = {ours: r for ours, r in reached.items() if ours == BY_TORCH[other]}
            if not reached:
                rows.append([name, other, f"{goal:g}x", "not measured", "-", ""])
                continue
            best = max(reached, key=lambda ours: reached[ours]["median"])
            word = "yes" if reached[best]["median"] >= goal else "no"
            rows.append([name, other, f"{goal:g}x", _spread(reached[best]), best, word])
    return table(rows)


def population_table(result: Mapping[str, Results]) -> str:
    """Tabulate workload D: cost by number of registered clients."""
    first = next(iter(result.values()))
    rows = [["registered clients", "seconds per round", "peak memory", "against the fewest"]]
    for count, r in result.items():
        if "reason" in r:
            rows.append([count, f"cannot run: {r['reason']}", "", ""])
            continue
        seconds, own = statistics.median(r["seconds"]), "-"
        if r is not first and "seconds" in first:
            time = seconds / statistics.median(first["seconds"])
            memory = r["peak_mb"] / first["peak_mb"]
            met = "yes" if max(time, memory) <= GOAL_D else "no"
            own = f"time {time:.3f}, memory {memory:.3f}; both at most {GOAL_D:g}: {met}"
        rows.append([count, _spread(summary(r["seconds"]), 3), f"{r['peak_mb']:.0f} MB", own])
    return table(rows)


def big_table(result: Mapping[str, Results]) -> str:
    """Tabulate workload E: share of merging in a round, and memory per parameter."""
    rows = [["scheme", "parameters", "merging", "bytes per parameter", "goal", "peak"]]
    for label, r in result.items():
        share, each = f"{r['merging']:.1%}", f"{r['bytes_per_parameter']:.1f}"
        goal = f"10%, {r['goal']:g} bytes"
        peak = f"{r['peak_mb']:.0f} MB"
        rows.append([label, f"{r['parameters'] / 1e6:.1f} M", share, each, goal, peak])
    return table(rows)
