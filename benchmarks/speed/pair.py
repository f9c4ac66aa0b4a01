"""Two processes as one contender: the first talks to the driver and tells the other when to go."""

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
    """A port of loopback that nobody has."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
    return port


def start_other(module: str, environment: Callable[[int], Mapping[str, str]]) -> int:
    """Start the second process and set up the environment of both; the rank of this one."""
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


def _told(go: bool) -> bool:
    """What the first process says, to both."""
    word = torch.tensor([int(go)])
    dist.broadcast(word, 0)
    return bool(word)


def serve_together(out: TextIO, workload: Workload, round_: Round, note: str) -> None:
    """`serve` for two processes; the time to tell the other counts."""

    def together() -> Report:
        start = time.perf_counter()
        _told(True)
        report = round_()
        # where a contender exchanges its losses after the round, it has taken its own time
        told = report.pop("told", time.perf_counter())
        return report | {"seconds": told - start}

    if dist.get_rank() == 0:
        serve(out, workload, together, note=f"{PROCESSES} processes, {note}")
        _told(False)
    else:
        while _told(False):
            round_()
    dist.destroy_process_group()
