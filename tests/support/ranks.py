"""Groups of processes that start quickly, from a server with PyTorch loaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import torch

from submodel.engines.processes.group import ProcessGroup
from submodel.engines.processes.launch import free_port
from tests.support.forked import forking

PATIENCE = 300  # seconds, on a busy machine
Argument = TypeVar("Argument")
Result = TypeVar("Result")


def run_group(
    work: Callable[[ProcessGroup, Argument], Result], argument: Argument, processes: int
) -> Result:
    """Run ``work`` on all ranks of a group; return the result of the first rank."""
    context = forking()
    ours, theirs = context.Pipe(duplex=False)
    port = free_port()
    ranks = [
        context.Process(target=_rank, args=(rank, processes, port, work, argument, theirs))
        for rank in range(processes)
    ]
    for rank in ranks:
        rank.start()
    theirs.close()
    try:
        result: Result = ours.recv()
        for rank in ranks:
            rank.join(PATIENCE)
        assert [rank.exitcode for rank in ranks] == [0] * processes
        return result
    finally:
        for rank in ranks:
            if rank.is_alive():
                rank.kill()
            rank.join()


def _rank(
    rank: int,
    processes: int,
    port: int,
    work: Callable[[ProcessGroup, Argument], Result],
    argument: Argument,
    answer: Connection,
) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
    torch.set_num_threads(1)
    group = ProcessGroup("cpu")
    result = work(group, argument)
    group.close()
    left = [name for name in threads() if "gloo" in name]
    assert not left, f"threads that would outlive the interpreter: {left}"
    if rank == 0:
        answer.send(result)


def threads() -> list[str]:
    """Return the names of the threads of this process."""
    return [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
