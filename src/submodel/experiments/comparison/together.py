"""Runs of one capacity each, put together: what exclusive training gives every device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from submodel.algorithm.evaluation import worst_quarter
from submodel.experiments.records import CAPACITY_KEY, Line, SeedRun, VariantRecord

_SUMS = ("bytes", "flops")


def put_together(slug: str, records: Mapping[float, VariantRecord]) -> VariantRecord:
    """The record of a way that has a run for every capacity, of the seeds that all have.

    Its scores are those of the largest capacity, its bytes and FLOPs those of all; the accuracy of
    every capacity is that of its own run. Lines are at the rounds at which any of them was
    evaluated; each run counts with its last evaluation until then.

    Args:
        slug: of the way.
        records: of the runs of each capacity.
    """
    largest = records[max(records)]
    runs_by_seed = {
        capacity: {run.seed: run for run in record.runs} for capacity, record in records.items()
    }
    seeds = [run.seed for run in largest.runs if all(run.seed in r for r in runs_by_seed.values())]
    runs = [_run({c: by_seed[seed] for c, by_seed in runs_by_seed.items()}) for seed in seeds]
    return VariantRecord(slug, largest.config, runs)


def _run(runs: Mapping[float, SeedRun]) -> SeedRun:
    largest = runs[max(runs)]
    first = max(run.lines[0]["round"] for run in runs.values())
    rounds = sorted({line["round"] for run in runs.values() for line in run.lines})
    lines = [
        _line({c: _latest(run.lines, round_) for c, run in runs.items()}, round_)
        for round_ in rounds
        if round_ >= first
    ]
    clients = [pair for c, run in runs.items() for pair in run.clients if pair[0] == c]
    if clients:
        accuracies = [accuracy for _, accuracy in clients]
        lines[-1]["client_accuracy.mean"] = sum(accuracies) / len(accuracies)
        lines[-1]["client_accuracy.worst_quarter"] = worst_quarter(accuracies, True)
    efforts = [run.core_seconds for run in runs.values()]
    flat_parts = [run.is_flat for run in runs.values()]
    return replace(
        largest,
        lines=lines,
        seconds=sum(run.seconds for run in runs.values()),
        core_seconds=None if None in efforts else sum(filter(None, efforts)),
        is_flat=None if None in flat_parts else all(flat_parts),
        clients=clients,
    )


def _latest(lines: Sequence[Line], round_: float) -> Line:
    return [line for line in lines if line["round"] <= round_][-1]


def _line(lines: Mapping[float, Line], round_: float) -> Line:
    largest = lines[max(lines)]
    others = {k: v for k, v in largest.items() if not k.startswith((CAPACITY_KEY, "client_"))}
    return {
        **others,
        "round": round_,
        **{key: sum(line[key] for line in lines.values()) for key in _SUMS if key in largest},
        **{f"{CAPACITY_KEY}{c:g}": lines[c]["test_accuracy"] for c in sorted(lines, reverse=True)},
    }
