"""Real processes on loopback: a SuperLink with TLS and node keys, `serve`, and two `join`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from submodel.config import read
from submodel.config.setup import prepare
from submodel.engines.processes.launch import free_port
from submodel.federation.flower.credentials import create
from submodel.federation.flower.process import environment
from submodel.federation.flower.supernode import explain_exit
from submodel.runs.loop import run_rounds
from submodel.runs.training import Training
from tests.support.devices import alone
from tests.support.processes import Processes

CONFIG = """
name = "letters"
seed = 3
[model]
name = "gpt"
width = 8
layers = 1
heads = 2
[data]
name = "text:{folder}/train"
test_path = "{folder}/test.txt"
tokens = "bpe"
vocabulary = 270
length = 8
[local]
optimiser = "adamw"
lr = 0.01
[clients]
capacities = [1.0, 0.25]
[train]
rounds = 2
evaluate_every = 2
evaluate_capacities = false
[engine]
name = "flower"
device = "cpu"
[devices]
least = 2
deadline = 120
"""
WORDS = {"big": "the cat sat on the mat. ", "small": "a dog ran over a hill. "}


# Flower's SuperNodes in one process each, forked so that Flower is imported once
PRETENDERS = """
import json, os, sys
from flwr.supernode.cli import flower_supernode
names = {}
for log, arguments in json.loads(sys.argv[1]):
    names[pid := os.fork()] = log
    if not pid:
        file = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1), os.dup2(file, 2)
        sys.argv[1:] = arguments
        flower_supernode()
while names:
    pid, status = os.wait()
    print(json.dumps([names.pop(pid), os.waitstatus_to_exitcode(status)]), flush=True)
"""


def refused(processes: Processes) -> None:
    """Check that the server refuses an unknown device."""
    other = (
        create(processes.folder / "other", ["127.0.0.1"], ["stranger"]).folder / "devices/stranger"
    )
    own = processes.folder / "federation" / "devices" / "big"
    trust, key = "--root-certificates", "--auth-supernode-private-key"
    pretences = {
        "the server requires a key": [trust, f"{own}/ca.crt"],
        "refused this device's key": [trust, f"{own}/ca.crt", key, f"{other}/device.key"],
        "certificate is not valid": [trust, f"{other}/ca.crt", key, f"{own}/device.key"],
        "": ["--insecure"],  # which tries for ever
    }
    where = ["--superlink", f"127.0.0.1:{processes.port}", "--host", "127.0.0.1"]
    where += ["--isolation", "process"]  # nothing is started that would start an app
    logs = [processes.folder / f"pretender-{number}.log" for number in range(len(pretences))]
    attempts = [
        [str(log), [*where, "--port", str(free_port()), *credentials]]
        for log, credentials in zip(logs, pretences.values(), strict=True)
    ]
    with subprocess.Popen(
        [sys.executable, "-c", PRETENDERS, json.dumps(attempts)],
        env=environment(processes.folder / "pretenders"),
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as pretenders:
        try:
            assert pretenders.stdout is not None
            ends = [json.loads(pretenders.stdout.readline()) for _ in range(3)]
            codes = {Path(name): code for name, code in ends}
            for reason, log in zip(list(pretences)[:3], logs, strict=False):
                assert reason in explain_exit(log.read_text(), codes[log])
            processes.wait("a refused connection", lambda: "attempt failed" in logs[-1].read_text())
            assert not any("SuperNode ID" in log.read_text() for log in logs)
        finally:
            os.killpg(pretenders.pid, signal.SIGKILL)


def reported(processes: Processes, name: str) -> Callable[[], bool]:
    return lambda: "reported" in processes.printed(name)


@pytest.mark.slow
def test_two_devices_train_over_tls_what_one_process_trains(processes: Processes) -> None:
    """One has its own text with the server's byte pairs; one has a client of the run's data."""
    (processes.folder / "train").mkdir()
    for name, words in WORDS.items():
        (processes.folder / "train" / f"{name}.txt").write_text(words * 6)
    (processes.folder / "test.txt").write_text("the dog sat on a mat, over the hill")
    processes.serve(CONFIG.replace("{folder}", str(processes.folder)), list(WORDS))
    processes.join("big", "--data", "text:train/big.txt", "--capacity", "1")
    processes.wait("the report of big", reported(processes, "big"))  # so it is client 0
    processes.join("small", "--part", "1")  # of the run's own data, and of the configured capacity
    processes.wait("the report of small", reported(processes, "small"))

    refused(processes)
    assert processes.finish("serve") == 0, processes.everything()
    assert "test perplexity" in processes.printed("serve")

    config = alone(read(processes.run / "config.toml"))
    expected, _ = run_rounds(Training(config, prepare(config)))
    found = load_file(processes.run / "model.safetensors")
    assert found.keys() == expected.tensors.keys()
    torch.testing.assert_close(expected.tensors, found, rtol=0, atol=0)
    lines = processes.metrics()
    assert [line["clients"] for line in lines] == [2, 2]
    for line in lines:
        for device in line["devices"].values():
            assert device["peak_memory"] > 0
        down = sum(device["bytes_down"] for device in line["devices"].values())
        assert line["bytes_down"] < down < line["bytes_down"] + 2 * 6000
