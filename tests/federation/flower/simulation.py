"""Flower's simulation with Ray: `make test-simulation`, not a part of `make test`.

Ray listens on every interface and looks up addresses of cloud services, so it runs in a network
namespace with loopback only, and in a process namespace, so that no process remains: `flwr run`
leaves a SuperLink behind.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from submodel.config import read
from submodel.config.setup import prepare
from submodel.federation.flower.control import thin_app
from submodel.federation.flower.process import environment
from submodel.runs.loop import RunFolder, run_rounds
from submodel.runs.training import Training
from tests.support.devices import alone

CONFIG = """
name = "simulated"
seed = 3
[model]
name = "cnn"
width = 8
[data]
examples = 200
test_examples = 100
[clients]
count = 10
per_round = 10
capacities = [1.0, 0.5, 0.25]
[train]
rounds = 20
evaluate_every = 20
[engine]
name = "flower"
device = "cpu"
[devices]
least = 10
deadline = 120
"""
PATIENCE = 600.0  # seconds, on a busy machine


def isolated(command: Sequence[str]) -> list[str]:
    """Wrap a command so that its only network is its own loopback."""
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    namespaces = ["--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    shell = ["sh", "-c", 'ip link set lo up && "$@"', "sh"]
    return ["unshare", *user, *namespaces, *shell, *command]


@pytest.fixture(scope="module", autouse=True)
def _permitted() -> None:
    """Fail without isolation, as the test would expose Ray on the machine's network."""
    for program in ("unshare", "ip"):
        if shutil.which(program) is None:
            pytest.fail(f"needs the command {program}: Ray is started in a network of its own only")
    tried = subprocess.run(isolated(["true"]), capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.fail(
            "Ray is started in a network of its own only, and none can be made here "
            f"(try it as root): {tried.stderr.strip()}"
        )


@pytest.fixture
def home() -> Iterator[Path]:
    """Make a folder with a short path, as the names of Ray's sockets have a limit."""
    with tempfile.TemporaryDirectory(prefix="sim-") as path:
        yield Path(path)


def test_ten_nodes_in_rays_actors_train_what_one_process_trains(home: Path) -> None:
    config, folder = home / "config.toml", RunFolder(home / "run")
    config.write_text(CONFIG)
    shutil.copytree(thin_app(), home / "app")
    (home / "ray_bootstrap_config.yaml").write_text("{}")  # without it Ray queries cloud services
    variables = environment(home / "flwr") | {
        "HOME": str(home),
        "RAY_TMPDIR": str(home),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # which means: loopback is enough
        "SUBMODEL_DATA": str(home / "data"),
    }
    flwr = str(Path(sys.executable).with_name("flwr"))
    options = f'config="{config}" folder="{folder.path}"'
    size = "num-supernodes=10 client-resources-num-cpus=1 init-args-num-cpus=2"
    script = home / "script"
    script.write_text(
        f"'{flwr}' run '{home / 'app'}' --federation-config '{size}' --run-config '{options}' "
        f"--stream\n'{flwr}' list --format json > '{home / 'runs.json'}'\n"
    )
    begun = time.monotonic()
    out = home / "out"
    with out.open("wb") as file:
        subprocess.run(
            isolated(["sh", str(script)]),
            stdout=file,
            stderr=subprocess.STDOUT,
            env=variables,
            cwd=home,
            timeout=PATIENCE,
            check=True,
        )
    seconds = time.monotonic() - begun
    (run,) = json.loads((home / "runs.json").read_text())["runs"]
    assert run["status"] == "finished:completed", out.read_text()[-5000:]

    resolved = alone(read(folder.config_file))
    expected, _ = run_rounds(Training(resolved, prepare(resolved)))
    found = load_file(folder.model_file)
    assert found.keys() == expected.tensors.keys()
    torch.testing.assert_close(expected.tensors, found, rtol=0, atol=0)
    lines = folder.metrics()
    assert [line["clients"] for line in lines] == [10] * 20
    assert "round 20 of 20: " in out.read_text()  # which `--stream` shows
    rounds = [sum(line["seconds"].values()) for line in lines[1:-1]]  # not the start, not the end
    print(
        f"\n10 nodes: {statistics.median(rounds):.2f} s per round (median of {len(rounds)}), "
        f"{seconds:.0f} s from 'flwr run' to its end"
    )
