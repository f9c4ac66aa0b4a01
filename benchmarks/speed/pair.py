"""Two processes as one contender; the first communicates with the driver and starts the other."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

import torch
import torch.distributed as dist
from benchmarks.speed.worker import Report, Round, serve
from benchmarks.speed.workloads import Workload

PROCESSES = 2
LOOPBACK = "127.0.0.1"
_RANK = "BENCHMARK_RANK"


def free_port() -> int:
    """Return a free port of loopback."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
    return port


def start_other(module: str, environment: Callable[[int], Mapping[str, str]]) -> int:
    """Start the second process, set up the environment of both, and return this rank."""
    if _RANK in os.environ:
        return int(os.environ[_RANK])
    own = [
        {_RANK: str(rank), "GLOO_SOCKET_IFNAME": "lo", **environment(rank)}
        for rank in range(PROCESSES)
    ]
    command = [sys.executable, "-m", module, *sys.argv[1:]]
    subprocess.Popen(command, env=os.environ | own[1], stdin=subprocess.DEVNULL)
    os.environ |= own[0]
    return 0


def _broadcast(go: bool) -> bool:
    """Broadcast a flag from the first process to both."""
    word = torch.tensor([int(go)])
    dist.broadcast(word, 0)
    return bool(word)


def serve_together(out: TextIO, workload: Workload, round_: Round, note: str) -> None:
    """Run `serve` with two processes; the time of their communication counts."""

    def together() -> Report:
        start = time.perf_counter()
        _broadcast(True)
        report = round_()
        # a contender that exchanges its losses after the round reports its own end of the round
        end = report.pop("end", time.perf_counter())
        return report | {"seconds": end - start}

    if dist.get_rank() == 0:
        serve(out, workload, together, note=f"{PROCESSES} processes, {note}")
        _broadcast(False)
    else:
        while _broadcast(False):
            round_()
    dist.destroy_process_group()
