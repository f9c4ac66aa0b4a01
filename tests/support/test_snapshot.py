"""Snapshots, with which other tests check that a model is unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from tests.support.snapshot import changes, snapshot, tensors


class Net(nn.Module):
    registry: ClassVar[list[object]] = []

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.size, self.shared = 3, {"sizes": [1]}
        self.register_buffer("seen", torch.zeros(3))
        self.table = torch.ones(3)
        layer = self.layer
        self.read: Any = lambda x, sizes=[]: (layer(x), sizes)


def _give_gradient(net: Any) -> None:
    net.layer(torch.ones(1, 2)).sum().backward()


def _give_memory(net: Any) -> None:
    net.layer.weight.data = net.layer.weight.data.clone()


CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "an attribute": (lambda net: setattr(net, "size", True), "model.size"),
    "a new attribute": (lambda net: setattr(net, "last", 1), "model.last"),
    "a container": (lambda net: net.shared["sizes"].append(2), "model.shared['sizes'][1]"),
    "another container": (lambda net: setattr(net, "shared", {"sizes": [1]}), "model.shared"),
    "a container of the class": (lambda net: net.registry.append(net), "Net.registry[0]"),
    "a buffer": (lambda net: net.seen.add_(1), "model._buffers['seen'].values"),
    "a plain tensor": (lambda net: net.table.mul_(2), "model.table.values"),
    "a hook": (lambda net: net.register_forward_hook(print), "model._forward_hooks.keys"),
    "a mode": (lambda net: net.eval(), "model.training"),
    "requires_grad": (
        lambda net: net.layer.requires_grad_(False),
        "model._modules['layer']._parameters['weight'].kind",
    ),
    "a gradient": (_give_gradient, "model._modules['layer']._parameters['weight'].grad"),
    "memory": (_give_memory, "model._modules['layer']._parameters['weight'].memory"),
    "a default argument": (lambda net: net.read.__defaults__[0].append(1), "model.read.defaults"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_snapshot_tells_what_changed(kind: str) -> None:
    change, path = CHANGES[kind]
    net = Net()
    before = snapshot(net)
    assert changes(before, snapshot(net)) == []
    try:
        change(net)
        found = changes(before, snapshot(net))
    finally:
        Net.registry.clear()
    assert any(line.startswith(path) for line in found), found


def test_tensors_are_found_wherever_they_are_kept() -> None:
    assert {tuple(t.shape) for t in tensors(Net()).values()} == {(3, 2), (3,)}
    assert len(tensors(Net())) == 4  # closures are named by their first path
