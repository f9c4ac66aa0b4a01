"""The real thing on loopback: a SuperLink with TLS and node keys, `serve`, and two that `join`."""

from __future__ import annotations

import torch
from safetensors.torch import load_file

from submodel.config import read
from submodel.engines.flower.credentials import create
from submodel.engines.flower.files import DeviceFiles
from submodel.engines.flower.supernode import Supernode
from submodel.prepare import prepare
from submodel.run import train
from tests.house import House

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
    house.serve(CONFIG, ["big", "small"])
    for part, name in enumerate(["big", "small"]):
        house.join(name, "--part", str(part))
    house.wait("both devices", lambda: "reported" in house.said("big") + house.said("small"))

    # whom the server does not know, it lets in under no pretence
    other = create(house.folder / "other", ["127.0.0.1"], ["stranger"]).folder / "devices/stranger"
    own = house.folder / "federation" / "devices" / "big"
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
