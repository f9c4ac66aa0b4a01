"""Measure the cost of a round with a real device: seconds, bytes on the wire, memory.

    python -m benchmarks.devices [--rounds 3] [--out benchmarks/results/devices.json]

For each capacity one server and one device, started by `submodel serve` and `submodel join` with
TLS and keys on loopback, train a pre-activation ResNet18 of width 64. A proxy between them counts
the bytes of both directions, including everything that Flower and TLS add.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from submodel.config import parse, to_toml
from submodel.config.setup import prepare
from submodel.engines.processes.launch import free_port
from submodel.federation.flower.credentials import create
from submodel.federation.flower.process import descendants
from submodel.report.tables import cost_rows

CAPACITIES = (1.0, 0.25, 0.0625)
IMAGES = 20
_PATIENCE = 600


def config_of(capacity: float, rounds: int, transport: str, data: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": f"capacity-{capacity:g}",
        "model": {"name": "preresnet18", "width": 64},
        "data": {**data, "examples": IMAGES, "test_examples": 20, "partition": "iid"},
        "clients": {"count": 1, "per_round": 1, "capacities": [capacity]},
        "local": {"absent_labels": "keep"},
        "train": {
            "rounds": rounds,
            "evaluate_every": rounds,
            "evaluate_capacities": False,
            "statistics": "test_batch",
        },
        "engine": {"name": "flower"},
        "devices": {"transport": transport, "deadline": 300},
    }


class Proxy:
    """Proxy that counts the bytes of its connections."""

    def __init__(self, target: int) -> None:
        self.port, self._target = free_port(), target
        self.down = self.up = 0  # from the device's point of view
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                device, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # the server has not started yet
                device.close()
                continue
            for ends in ((device, server, "up"), (server, device, "down")):
                threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
                setattr(self, direction, getattr(self, direction) + len(data))
        except OSError:
            pass
        finally:
            for end in (source, target):
                end.close()

    def close(self) -> None:
        """Stop accepting connections."""
        self._listener.close()


def _start(folder: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "submodel", *arguments]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=folder, env=environment
        )


def _held(pid: int) -> int:
    """Return the memory of a process and its descendants, with shared memory counted once."""
    family = (psutil.Process(pid), *descendants(pid))
    return sum(one.memory_full_info().pss for one in family)


class Peak:
    """Watch the peak memory of any descendant of a process."""

    def __init__(self, pid: int) -> None:
        self.bytes, self._pid, self._over = 0, pid, threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            for one in descendants(self._pid):
                with suppress(OSError, StopIteration):
                    lines = Path(f"/proc/{one.pid}/status").read_text().splitlines()
                    held = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
                    self.bytes = max(self.bytes, held * 1024)

    def close(self) -> None:
        """Stop watching."""
        self._over.set()


def measure(capacity: float, rounds: int, transport: str, data: dict[str, Any]) -> dict[str, Any]:
    config = config_of(capacity, rounds, transport, data)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        create(folder / "federation", ["127.0.0.1"], ["one"])
        shutil.copytree(folder / "federation/devices/one", folder / "device")
        (folder / "config.toml").write_text(to_toml(parse(config)))
        port = free_port()
        proxy = Proxy(port)
        serve = _start(folder, "serve", "serve", "config.toml", "--out", "run", "--host",
                       "127.0.0.1", "--port", str(port))  # fmt: skip
        join = _start(folder, "join", "join", f"127.0.0.1:{proxy.port}", "--part", "0")
        peak = Peak(join.pid)
        try:
            if serve.wait(_PATIENCE):
                raise SystemExit((folder / "serve.log").read_text())
            waiting = _held(join.pid)
        finally:
            for process in (join, serve):
                process.terminate()
                process.wait(60)
            proxy.close()
            peak.close()
        lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").open()]
    seen = [line["devices"]["0"] for line in lines]
    own = next(r for r in cost_rows(prepare(parse(config))) if r["capacity"] == capacity)
    half = 2 if transport == "half" else 1
    return {
        "capacity": capacity,
        "transport": transport,
        "parameters": own["parameters"],
        "share": own["share"],
        "bytes_by_cost": own["bytes"] / 2 / half,
        "message_down": seen[-1]["bytes_down"],
        "message_up": seen[-1]["bytes_up"],
        # all bytes of the device: joining, polls, heartbeats and rounds
        "wire_down_per_round": proxy.down / rounds,
        "wire_up_per_round": proxy.up / rounds,
        "seconds": statistics.median(s["seconds"] for s in seen),
        "training_seconds": statistics.median(s["training"] for s in seen),
        "peak_memory": peak.bytes,  # of the app, including Flower
        "own_peak_memory": max(
            s["peak_memory"] for s in seen
        ),  # as reported by the app after training
        "waiting_memory": waiting,  # join and Flower's SuperNode, between rounds
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--capacities", default=",".join(map(str, CAPACITIES)))
    parser.add_argument("--transports", default="exact,half")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/devices.json"))
    given = parser.parse_args()
    found = []
    for transport in given.transports.split(","):
        for capacity in map(float, given.capacities.split(",")):
            found.append(measure(capacity, given.rounds, transport, {"name": given.data}))
            print(json.dumps(found[-1]), flush=True)
    content = {"rounds": given.rounds, "images": IMAGES, "results": found}
    given.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
