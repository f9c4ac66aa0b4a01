"""A process that trains a model of some millions of parameters, and tells what memory it took.

python -m tests.runs.big_run SCHEME WIDTH LAYERS FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from submodel.config import parse
from submodel.data.examples import Dataset, Examples
from submodel.data.text.facts import TextFacts
from submodel.prepare.setup import prepare
from submodel.runs.folder import RunFolder
from submodel.runs.loop import run_rounds
from submodel.runs.training import Training

VOCABULARY, LENGTH = 512, 16


def examples(count: int) -> Examples:
    tokens = torch.randint(VOCABULARY, (count, LENGTH + 1))
    return Examples(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def peak() -> int:
    """The most bytes that this process has had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def main() -> None:
    scheme, width, layers, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.manual_seed(0)
    data = Dataset(examples(16), examples(4), classes=None, text=TextFacts(VOCABULARY, 1.0, ""))
    config = parse(
        {
            "model": {"name": "gpt", "width": width, "layers": layers},
            "scheme": {"name": scheme},
            "data": {"partition": "iid"},
            "clients": {"count": 4, "per_round": 4, "capacities": [0.25]},
            "local": {"batch_size": 2, "steps": 1, "lr": 0.01},
            "train": {"rounds": 3, "evaluate_every": 1, "checkpoint_every": 1},
            "engine": {"threads": 1},
        }
    )
    setup = prepare(config, data=data)
    count = sum(parameter.numel() for parameter in setup.module.parameters())
    run = RunFolder(Path(folder))
    run.create(config)
    run_rounds(Training(config, setup, takes_module=True), run)
    print(json.dumps({"parameters": count, "peak": peak()}))


if __name__ == "__main__":
    main()
