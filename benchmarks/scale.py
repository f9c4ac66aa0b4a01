"""Measure memory and time of a large model on one machine: whole, killed and resumed, 2 processes.

    python benchmarks/scale.py examples/llama-1b.toml --out benchmarks/results/scale.json

Memory is the sum of the proportional set size (PSS) over all processes of a run, so that shared
memory counts once; it is read every two seconds. A killed run gets SIGKILL during a round after its
first checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

_EVERY = 2.0  # seconds between two readings
_ARMS = ("whole", "killed", "processes")


def _memory(process: psutil.Process) -> dict[str, int]:
    """Return the memory of a process and its children in bytes, in total and for files."""
    total = {"pss": 0, "files": 0}
    for one in [process, *process.children(recursive=True)]:
        try:
            text = Path(f"/proc/{one.pid}/smaps_rollup").read_text("utf-8")
        except OSError:
            continue
        lines = {line.split(":")[0]: line.split()[1] for line in text.splitlines()[1:]}
        total["pss"] += 1024 * int(lines.get("Pss", 0))
        total["files"] += 1024 * int(lines.get("Pss_File", 0))
    return total


def _rounds(run: Path) -> list[dict[str, Any]]:
    file = run / "metrics.jsonl"
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.endswith("}")]


def _watch(arguments: list[str], run: Path, kill: bool = False) -> dict[str, Any]:
    """Run a command of `submodel` and watch its memory; optionally kill it within a round."""
    start, peaks, began = time.monotonic(), {"preparing": 0, "rounds": 0}, None
    with subprocess.Popen([sys.executable, "-m", "submodel", *arguments]) as child:
        process = psutil.Process(child.pid)
        while child.poll() is None:
            memory = _memory(process)
            has_begun = any(run.glob("checkpoints/round-*"))
            if has_begun and began is None:
                began = time.monotonic() - start
            phase = "rounds" if has_begun else "preparing"
            peaks[phase] = max(peaks[phase], memory["pss"])
            saved = max([0, *(int(p.name[6:]) for p in run.glob("checkpoints/round-*"))])
            if kill and saved and not list(run.glob("checkpoints/.*")):
                time.sleep(2)  # into the next round
                for one in [*process.children(recursive=True), process]:
                    one.send_signal(signal.SIGKILL)
                child.wait()
                break
            time.sleep(_EVERY)
    seconds = time.monotonic() - start
    return {
        "status": child.returncode,
        "seconds": seconds,
        "seconds_before_rounds": began,
        "peak_bytes": peaks,
        "seconds_of_rounds": [line["seconds"] for line in _rounds(run)],
    }


def measure(
    config: Path, folder: Path, arms: tuple[str, ...], options: list[str]
) -> dict[str, Any]:
    """Measure every arm.

    Args:
        config: configuration of the runs.
        folder: folder for the runs, which are removed one by one.
        arms: some of whole, killed and processes.
        options: further command-line options.
    """
    results: dict[str, Any] = {"cores": os.cpu_count(), "memory": psutil.virtual_memory().total}
    for arm in arms:
        run = folder / arm
        train = ["train", str(config), *options, "--out", str(run)]
        if arm == "processes":
            train += ["--processes", "2"]
        print(f"{arm} ...", file=sys.stderr, flush=True)
        figures = _watch(train, run, kill=arm == "killed")
        if arm == "killed":
            before = [line["round"] for line in _rounds(run)]
            figures = {"killed": figures, "rounds_before": before}
            figures["resumed"] = _watch(["resume", str(run)], run)
        summary = json.loads((run / "summary.json").read_text("utf-8"))
        lines = _rounds(run)
        checkpoint = max(run.glob("checkpoints/round-*"))
        figures |= {
            "model_sha256": summary["model_sha256"],
            "test_loss": summary["test_loss"],
            "bytes_down_per_client": lines[-1]["bytes_down"] / lines[-1]["clients"],
            "checkpoint_bytes": sum(file.stat().st_size for file in checkpoint.iterdir()),
        }
        results[arm] = figures
        shutil.rmtree(run)
        print(json.dumps(figures, indent=1), file=sys.stderr, flush=True)
    hashes = {results[arm]["model_sha256"] for arm in arms}
    results["same_bytes"] = len(hashes) == 1
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python benchmarks/scale.py")
    parser.add_argument("config", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--folder", type=Path, help="folder for the runs (default: TMPDIR)")
    parser.add_argument("--ways", nargs="+", choices=_ARMS, default=_ARMS)
    parser.add_argument("--set", action="append", default=[], help="as for submodel train")
    arguments = parser.parse_args()
    options = [part for setting in arguments.set for part in ("--set", setting)]
    with tempfile.TemporaryDirectory(prefix="scale-", dir=arguments.folder) as folder:
        results = measure(arguments.config, Path(folder), tuple(arguments.ways), options)
    text = json.dumps(results, indent=2)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
