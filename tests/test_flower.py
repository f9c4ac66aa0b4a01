"""The real thing on loopback: a SuperLink with TLS and node keys, `serve`, and two that `join`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from submodel.config import read
from submodel.engines.flower.credentials import Federation, create
from submodel.engines.flower.files import DeviceFiles
from submodel.engines.flower.supernode import Supernode
from submodel.engines.launch import free_port
from submodel.prepare import prepare
from submodel.run import train

CONFIG = """
name = "devices"
seed = 3
[model]
name = "cnn"
width = 8
[data]
examples = 200
test_examples = 100
[clients]
count = 2
per_round = 2
capacities = [1.0, 0.25]
[train]
rounds = 2
evaluate_every = 2
evaluate_capacities = false
[engine]
batching = "never"
device = "cpu"
[devices]
least = 2
deadline = 120
"""
PATIENCE = 240.0  # seconds, on a machine with other things to do


class House:
    """Processes of one test, in one folder; all are gone when it ends."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.run = folder / "run"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """`submodel` with these arguments, its output in a file of this name."""
        environment = os.environ | {
            "SUBMODEL_DATA": str(self.folder / "data"),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        with (self.folder / f"{name}.out").open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "submodel", *arguments],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self.folder,
            )
        self._processes[name] = process
        return process

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text("utf-8")

    def metrics(self) -> list[dict[str, Any]]:
        file = self.run / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def wait(self, what: str, condition: Callable[[], bool], patience: float = PATIENCE) -> None:
        """Until it holds; else the test fails and shows what everyone said."""
        end = time.monotonic() + patience
        while not condition():
            if time.monotonic() > end:
                pytest.fail(f"not within {patience:g} s: {what}\n{self.everything()}")
            time.sleep(0.2)

    def everything(self) -> str:
        files = [*self.folder.glob("*.out"), *self.run.glob("*.log")]
        return "\n".join(f"--- {f.name}\n{f.read_text(errors='replace')[-3000:]}" for f in files)

    def finish(self, name: str) -> int:
        """The exit status of a process, when it ends by itself."""
        process = self._processes[name]
        self.wait(f"the end of {name}", lambda: process.poll() is not None)
        return process.returncode

    def close(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self._processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    try:
        yield house
    finally:
        house.close()


def refusal(house: House, name: str, credentials: DeviceFiles | None) -> str:
    """Why a SuperNode with these credentials ends."""
    home = house.folder / name
    node = Supernode(f"127.0.0.1:{house.port}", home, home / "log", credentials, {})
    try:
        node.start()
        house.wait(f"the refusal of {name}", lambda: not node.alive())
        return node.exit_reason()
    finally:
        node.stop()


def test_two_devices_train_over_tls_what_one_process_trains(house: House) -> None:
    federation: Federation = create(house.folder / "federation", ["127.0.0.1"], ["big", "small"])
    config = house.folder / "config.toml"
    config.write_text(CONFIG)
    house.start(
        "serve", "serve", str(config), "--out", str(house.run), "--host", "127.0.0.1",
        "--port", str(house.port),
    )  # fmt: skip
    for part, name in enumerate(federation.devices):
        shutil.copytree(federation.folder / "devices" / name, house.folder / name / "device")
        house.start(
            name, "join", f"127.0.0.1:{house.port}", "--part", str(part),
            "--credentials", str(house.folder / name / "device"), "--name", name,
        )  # fmt: skip
    house.wait("both devices", lambda: "reported" in house.said("big") + house.said("small"))

    # whom the server does not know, it lets in under no pretence
    other = create(house.folder / "other", ["127.0.0.1"], ["stranger"]).folder / "devices/stranger"
    own = federation.folder / "devices" / "big"
    unregistered = DeviceFiles(own / "ca.crt", other / "device.key")
    assert "refused this device's key" in refusal(house, "unregistered", unregistered)
    wrong = DeviceFiles(other / "ca.crt", own / "device.key")
    assert "certificate does not pass" in refusal(house, "wrong-ca", wrong)
    assert house.finish("serve") == 0, house.everything()
    assert "test accuracy" in house.said("serve")

    expected, _ = train(read(house.run / "config.toml"), prepare(read(house.run / "config.toml")))
    found = load_file(house.run / "model.safetensors")
    assert found.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert torch.equal(tensor, found[name]), name
    lines = house.metrics()
    assert [line["clients"] for line in lines] == [2, 2]
    for line in lines:
        for device in line["devices"].values():
            assert device["peak_memory"] > 0
        down = sum(device["bytes_down"] for device in line["devices"].values())
        assert line["bytes_down"] < down < line["bytes_down"] + 2 * 6000
