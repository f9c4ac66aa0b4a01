"""A process that trains models of a few and of some millions of parameters, and reports memory.

python -m tests.runs.big_run FOLDER SCHEME [SCHEME...]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.heap import give_back
from submodel.data.examples import Dataset, Examples
from submodel.data.facts import TextFacts
from submodel.runs.folder import RunFolder
from submodel.runs.loop import run_rounds
from submodel.runs.training import Training

VOCABULARY, LENGTH = 512, 16


def examples(count: int) -> Examples:
    tokens = torch.randint(VOCABULARY, (count, LENGTH + 1))
    return Examples(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def peak() -> int:
    """Return the peak memory of this process since `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def forget_peak() -> None:
    """Reset the peak to the current memory of the process."""
    give_back()
    Path("/proc/self/clear_refs").write_text("5")


def train(scheme: str, width: int, layers: int, folder: Path) -> tuple[int, int]:
    """Train a run; return the parameters, and the peak beyond the earlier memory of the process."""
    forget_peak()
    before = peak()
    data = Dataset(examples(16), examples(4), classes=None, text=TextFacts(VOCABULARY, 1.0, ""))
    config = parse(
        {
            "model": {"name": "gpt", "width": width, "layers": layers},
            "scheme": {"name": scheme},
            "data": {"partition": "iid"},
            "clients": {"count": 4, "per_round": 4, "capacities": [0.25]},
            "local": {"batch_size": 2, "steps": 1, "lr": 0.01},
            "train": {"rounds": 2, "evaluate_every": 1, "checkpoint_every": 1},
            "engine": {"threads": 1},
        }
    )
    setup = prepare(config, data=data)
    count = sum(parameter.numel() for parameter in setup.module.parameters())
    run = RunFolder(folder)
    run.create(config)
    run_rounds(Training(config, setup, takes_module=True), run)
    return count, peak() - before


def main() -> None:
    folder, schemes = Path(sys.argv[1]), sys.argv[2:]
    torch.manual_seed(0)
    train(schemes[0], 32, 1, folder / "small")  # libraries load and allocate workspaces
    figures = {name: train(name, 768, 3, folder / name) for name in schemes}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
