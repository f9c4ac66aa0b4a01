"""Runs and models as plain values, for programs: what commands print with ``--json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from submodel.model.axes import Axes
from submodel.model.budget import Needs
from submodel.runs.folder import RunFolder
from submodel.runs.open import Run


def plain_end(folder: RunFolder) -> dict[str, Any]:
    """What a run that has ended came to.

    Args:
        folder: of the run.
    """
    curves = folder.curves_file if folder.curves_file.is_file() else None
    return {"run": folder.path, "summary": folder.summary(), "curves": curves}


def plain_run(run: Run) -> dict[str, Any]:
    """A run wherever it stands.

    Args:
        run: that was opened.
    """
    config, history = run.config, run.history
    is_finished = run.finished
    return {
        "run": run.folder.path,
        "finished": is_finished,
        "round": history[-1]["round"] if history else 0,
        "rounds": config.train.rounds,
        "config": config.model_dump(mode="json", exclude_none=True),
        "history": history,
        "damage": run.folder.describe_damage() or None,
        "summary": run.summary if is_finished else None,
    }


def plain_axes(
    axes: Axes, is_verified: bool, capacities: Sequence[Mapping[str, float]]
) -> dict[str, Any]:
    """What there is to know of a model before it is trained.

    Args:
        axes: of the model.
        is_verified: whether permuting every axis was tried.
        capacities: what each costs.
    """
    rows = []
    for axis, size in axes.sizes.items():
        members = [
            f"{name}[{dimension}]"
            for name, layouts in axes.layouts.items()
            for dimension, layout in enumerate(layouts)
            if axis in layout.axes()
        ]
        rows.append(
            {
                "axis": axis,
                "size": size,
                "members": members,
                "cut_by_capacity": axis in axes.cut_by_capacity,
                "kept_whole": axes.kept_whole.get(axis),
                "inexact": list(axes.inexact.get(axis, ())),
            }
        )
    return {
        "axes": rows,
        "frozen": dict(axes.frozen),
        "lines": dict(axes.lines),
        "unused_tensors": list(axes.unused_tensors),
        "exact": axes.exact,
        "measured": list(axes.measured),
        "doubt": axes.doubt if axes.exact is None else None,
        "notes": list(axes.notes),
        "verified": is_verified,
        "capacities": list(capacities),
    }


def plain_needs(needs: Needs | None) -> dict[str, int] | None:
    """What training a sub-model takes; None of none.

    Args:
        needs: in bytes and FLOPs.
    """
    return None if needs is None else {"memory": needs.memory, **asdict(needs)}
