"""Contender `flower`: Flower's simulation on Ray, two actors of one processor each.

The loop of the ServerApp sends every client its sub-model as arrays and averages the replies.
Start-up is not timed. Run it without a network (see `contenders`), as Ray listens on every
interface.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any, TextIO

from benchmarks.speed.tasks import Average, jobs_of
from benchmarks.speed.worker import Report, options, reserve_stdout, serve
from benchmarks.speed.workloads import Workload, make_setup

from submodel.algorithm.types import Setup
from submodel.model.build import tensors_of

ACTORS = 2
_POLL = 0.01  # seconds; Flower's own send_and_receive sleeps longer


def _quiet(home: str) -> None:
    """Disable telemetry and update checks of Flower and Ray, and keep their files in a folder."""
    (Path(home) / "ray_bootstrap_config.yaml").write_text("{}")
    os.environ |= {
        "HOME": home,
        "FLWR_HOME": f"{home}/flwr",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_TMPDIR": home,
        "RAY_USAGE_STATS_ENABLED": "0",
    }


class Server:
    """The global model and its rounds of messages."""

    def __init__(self, grid: object, setup: Setup, workload: Workload, scale: float) -> None:
        self._grid, self._setup = grid, setup
        self._about = {"workload": workload.name, "scale": scale}
        self._round = 0
        self._tensors = {n: t.clone() for n, t in tensors_of(setup.module).items()}

    def round(self) -> Report:
        """Send sub-models, wait for replies and average them."""
        from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

        grid = self._grid
        nodes = sorted(grid.get_node_ids())  # type: ignore[attr-defined]
        jobs = jobs_of(self._setup, self._round)
        start = time.perf_counter()
        messages = []
        for job, node in zip(jobs, nodes, strict=True):
            task: dict[str, Any] = self._about | {
                "round": job.round,
                "client": job.client,
                "capacity": job.capacity,
            }
            part = {n: job.cut.part(n, t) for n, t in self._tensors.items()}
            content = RecordDict({"model": ArrayRecord(part), "task": ConfigRecord(task)})
            messages.append(Message(content, node, MessageType.TRAIN))
        sent = list(grid.push_messages(messages))  # type: ignore[attr-defined]
        by_id = dict(zip(sent, jobs, strict=True))
        average, total = Average(self._tensors), 0.0
        while by_id:
            for reply in grid.pull_messages(list(by_id)):  # type: ignore[attr-defined]
                if reply.has_error():
                    raise RuntimeError(f"a client failed: {reply.error.reason}")
                job = by_id.pop(reply.metadata.reply_to_message_id)
                average.add(job.cut, reply.content["model"].to_torch_state_dict())
                total += reply.content["loss"]["loss"]
            if by_id:
                time.sleep(_POLL)
        self._tensors = average.result()
        seconds = time.perf_counter() - start
        self._round += 1
        return {"seconds": seconds, "loss": total / len(jobs)}


def main() -> None:
    out = reserve_stdout()
    workload, scale = options()
    # a short path, as paths of sockets are limited
    with tempfile.TemporaryDirectory(prefix="fl", dir="/tmp", ignore_cleanup_errors=True) as home:
        _quiet(home)
        _simulate(out, workload, scale)


def _simulate(out: TextIO, workload: Workload, scale: float) -> None:
    """Start Flower's simulation, which ends with the input."""
    _, setup = make_setup(workload, scale)

    from benchmarks.speed.flower_client import train
    from flwr.app import Context
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    server, client = ServerApp(), ClientApp()
    client.train()(train)

    @server.main()
    def loop(grid: Grid, _: Context) -> None:
        while len(list(grid.get_node_ids())) < workload.per_round:
            time.sleep(0.1)
        own = Server(grid, setup, workload, scale)
        serve(out, workload, own.round, note=f"{ACTORS} actors of 1 CPU")

    run_simulation(
        server,
        client,
        num_supernodes=workload.per_round,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": ACTORS},
        },
    )


if __name__ == "__main__":
    main()
