"""Measure the processor time of commands without training, beyond that of `import torch`.

    python -m benchmarks.commands [--repetitions 5] [--out benchmarks/results/commands.json]

Each command runs in its own process with one thread and with bytecode files. The time is user +
system time of that process, the median over repetitions, minus the median of
`python -c 'import torch'`, measured in turn. A first run, which fetches data (MNIST), is not
counted. It takes about two minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from statistics import median

import torch

_ROOT = Path(__file__).resolve().parents[1]
COMMANDS: dict[str, list[str]] = {
    "config": ["config"],
    "cost": ["cost"],
    "cost, MNIST": ["cost", "examples/mnist.toml"],
    "cost, Shakespeare": ["cost", "examples/shakespeare.toml"],
    "plan": ["plan", "--memory", "1MB"],
    "plan, MNIST": ["plan", "examples/mnist.toml", "--memory", "1MB"],
    "inspect cnn": ["inspect", "cnn"],
    "inspect gpt": ["inspect", "gpt"],
    "inspect preresnet18 of width 64": ["inspect", "preresnet18", "--set", "width=64"],
}
"""Arguments of `submodel` by name."""
_LIMIT = 1.0  # seconds beyond `import torch`


def processor_seconds(command: list[str]) -> float:
    """Return the user and system time of a process that must succeed.

    Args:
        command: program and arguments.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, cwd=_ROOT, env=environment
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    submodel = [sys.executable, "-m", "submodel"]
    lines = {name: [*submodel, *words] for name, words in COMMANDS.items()}
    lines = {"import torch": [sys.executable, "-c", "import torch"], **lines}
    seconds: dict[str, list[float]] = {name: [] for name in lines}
    for repetition in range(options.repetitions + 1):
        for name, command in lines.items():
            spent = processor_seconds(command)
            if repetition:  # the first one fills file caches
                seconds[name].append(round(spent, 3))
    base = median(seconds.pop("import torch"))
    beyond = {name: round(median(values) - base, 3) for name, values in seconds.items()}
    for name, value in beyond.items():
        print(f"{name:32} {value:6.2f} s{'' if value <= _LIMIT else '  more than a second'}")
    content = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "import_torch": base,
        "beyond_import_torch": beyond,
        "processor_seconds": seconds,
    }
    if options.out is not None:
        options.out.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
