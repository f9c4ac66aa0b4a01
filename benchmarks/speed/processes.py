"""Contender `processes`: our engine in two processes on this machine, one thread each."""

from __future__ import annotations

from benchmarks.speed.local import Ours
from benchmarks.speed.pair import LOOPBACK, PROCESSES, free_port, serve_together, start_other
from benchmarks.speed.worker import options, reserve_stdout
from benchmarks.speed.workloads import make_setup

from submodel.engines.processes.group import ProcessGroup


def main() -> None:
    out = reserve_stdout()
    workload, scale = options()
    port = str(free_port())
    start_other(
        "benchmarks.speed.processes",
        lambda rank: {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(PROCESSES),
            "LOCAL_WORLD_SIZE": str(PROCESSES),
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": port,
        },
    )
    config, setup = make_setup(workload, scale)
    ours = Ours(config, setup, ProcessGroup(config.engine.device))
    serve_together(out, workload, ours.round, ours.note)


if __name__ == "__main__":
    main()
