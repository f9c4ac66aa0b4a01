"""The end of a run: the final model and what the run came to, as files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from submodel.algorithm.types import State
from submodel.files import write_text
from submodel.runs import checkpoint
from submodel.runs.folder import RunFolder
from submodel.runs.metrics import Metrics
from submodel.runs.tensor_file import write_tensors


def summary_of(
    name: str, final: State, history: Sequence[Metrics], entries: Mapping[str, Any]
) -> Metrics:
    """A finished run in a few numbers: totals of its rounds, and what callbacks add (scores)."""
    totals = {
        key: sum(line[key] for line in history) for key in ("bytes_down", "bytes_up", "flops")
    }
    once = {key: line[key] for line in history[-1:] for key in ("bytes_once",) if key in line}
    return {
        "name": name,
        "rounds": final.round,
        **entries,
        "model_sha256": checkpoint.model_sha256(final.tensors),
        **totals,
        **once,
        "refused": sum(len(line["refused"]) for line in history),
        "seconds": round(sum(sum(line["seconds"].values()) for line in history), 3),
        **({"rounds_lost": final.round - len(history)} if len(history) < final.round else {}),
    }


def write_result(
    folder: RunFolder,
    name: str,
    final: State,
    history: Sequence[Metrics],
    entries: Mapping[str, Any],
) -> None:
    """Write the final model and the summary, which says that the run is finished."""
    _save_tensors(folder.model_file, final.tensors)
    if final.memory:
        _save_tensors(folder.memory_file, final.memory)
    summary = summary_of(name, final, history, entries)
    write_text(folder.summary_file, json.dumps(summary, indent=2) + "\n")


def _save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a file of tensors as a whole."""
    partial = path.with_name(f".{path.name}.partial")
    write_tensors(partial, tensors)
    partial.replace(path)
