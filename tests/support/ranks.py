"""One rank of a group: trains every case given, in a group and (the first rank) alone as well.

Started by `tests/engines/test_processes.py` with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set;
the first rank prints what both ways came to.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from submodel.config import parse
from submodel.engines.processes.group import ProcessGroup
from submodel.prepare.setup import prepare
from submodel.runs.checkpoint import model_sha256
from submodel.runs.loop import Metrics, train
from submodel.runs.training import Training


def comparable(history: list[Metrics]) -> list[Metrics]:
    """The lines without times; sums of losses are added in another order."""
    return [
        {k: round(v, 10) if k == "train_loss" else v for k, v in line.items() if k != "seconds"}
        for line in history
    ]


def threads() -> list[str]:
    """The names of the threads of this process."""
    return [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]


def main(cases: dict[str, dict[str, Any]]) -> None:
    group: ProcessGroup | None = None
    for name, case in cases.items():
        config = parse(case)
        setup = prepare(config)
        group = group or ProcessGroup("cpu")
        state, history = train(Training(config, setup), group=group)
        if group.rank == 0:
            alone, lines = train(Training(config, setup))
            largest = max(
                float((alone.tensors[n] - t).abs().max()) for n, t in state.tensors.items()
            )
            result = {
                "case": name,
                "same_bytes": model_sha256(state.tensors) == model_sha256(alone.tensors),
                "same_memory": model_sha256(state.memory) == model_sha256(alone.memory),
                "largest_difference": largest,
                "same_lines": comparable(history) == comparable(lines),
            }
            print(json.dumps(result), flush=True)
    if group is not None:
        group.close()
    left = [name for name in threads() if "gloo" in name]
    assert not left, f"threads that would outlive the interpreter: {left}"


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
