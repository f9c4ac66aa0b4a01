"""Memory formats of weights: kernels depend on them, so copies keep the format."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import submodel
from submodel.algorithm.types import Assignment, Task
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.data import dataset
from submodel.engines.serial import SerialEngine
from submodel.model.axes import trace
from submodel.model.build import build_module, load, skeleton, tensors_of, to_device
from submodel.model.cut import WHOLE, CoordinateCut, UnitCut, gather, lay_out
from submodel.model.norm import StaticBatchNorm
from submodel.tasks.training import batches
from tests.model.nets import cut_by

X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def channels_last(norm: type[nn.Module] = nn.BatchNorm2d) -> nn.Sequential:
    """Filters of all kinds: full, depthwise, of one pixel, of one channel."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        norm(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16),
        nn.Conv2d(16, 24, 1),
        nn.ReLU(),
        nn.Conv2d(24, 1, 3),
        nn.Flatten(),
        nn.Linear(36, 5),
    )
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def transposed() -> nn.Sequential:
    """Weights that are views of their transposes."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 24), nn.ReLU(), nn.Linear(24, 5))
    layers: list[Any] = [net[1], net[3]]
    for layer in layers:
        layer.weight = nn.Parameter(layer.weight.detach().t().contiguous().t())
    return net


def strides(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: p.stride() for name, p in module.named_parameters()}


def results(module: nn.Module) -> list[Tensor]:
    """Return outputs and gradients."""
    out = module(X)
    functional.cross_entropy(out, torch.arange(4)).backward()  # type: ignore[no-untyped-call]
    return [out.detach(), *(p.grad for p in module.parameters() if p.grad is not None)]


@pytest.mark.parametrize("make", [channels_last, transposed])
def test_the_whole_has_the_same_bits(make: Any) -> None:
    net = make()
    masks = {name: torch.ones_like(p, dtype=torch.bool) for name, p in net.named_parameters()}
    for cut in (WHOLE, UnitCut(trace(net, X), {}), CoordinateCut(masks)):
        small = build_module(net, cut)
        assert strides(small) == strides(net)
        again = to_device(skeleton(net), "cpu")
        load(again, {n: t.contiguous() for n, t in gather(cut, tensors_of(net)).items()})
        for name, buffer in again.named_buffers():
            buffer.copy_(net.get_buffer(name))
        assert strides(again) == strides(net)
        for one in (small, again):
            pairs = zip(results(one), results(copy.deepcopy(net)), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs)


def test_a_cut_keeps_the_order_of_the_dimensions() -> None:
    net = channels_last()
    cut = cut_by(trace(net, X), sampling="bernoulli")
    small = build_module(net, cut, example_inputs=X)
    for name, parameter in small.named_parameters():
        if parameter.dim() == 4:
            wanted = parameter.detach().clone(memory_format=torch.channels_last)
            assert parameter.stride() == wanted.stride(), name
    for name, tensor in gather(cut, tensors_of(net)).items():
        assert tensor.stride() == small.get_parameter(name).stride() if tensor.dim() > 1 else True
    turned = transposed()
    axes = trace(turned, X)
    smaller = build_module(turned, UnitCut(axes, {"1": np.array([1, 4, 7])}))
    assert smaller.get_parameter("1.weight").stride() == (1, 3)
    assert lay_out(torch.ones(2, 2), torch.ones(1, 3).expand(2, 3)).stride() == (1, 2)


DATA = dataset((X.repeat(6, 1, 1, 1), torch.arange(24) % 5), (X, torch.arange(4)))


def config(**options: Any) -> dict[str, Any]:
    return {
        "clients": {"count": 4, "per_round": 2, "capacities": ["1", "1/2"]},
        "scheme": {"name": "random"},
        "data": {"partition": "iid"},
        "train": {"rounds": 1, "evaluate_capacities": True},
        "local": {"batch_size": 3, "lr": 0.05, "absent_labels": "keep"},
        **options,
    }


def test_a_client_of_capacity_1_trains_to_the_same_bits() -> None:
    """The serial engine against a plain loop on a channels-last net."""
    net = channels_last()
    setup = prepare(
        parse(config(clients={"count": 4, "per_round": 2, "capacities": [1]})), net, DATA
    )
    examples, local = setup.clients.examples(1), copy.deepcopy(net).train()
    work = setup.work
    optimizer = torch.optim.SGD(local.parameters(), lr=work.lr, **vars(work.optimiser))
    for rows in batches(len(examples), setup.work, setup.seed, 0, 1):
        optimizer.zero_grad()
        loss = functional.cross_entropy(local(examples.x[rows]), examples.y[rows])
        torch.autograd.backward(loss)
        optimizer.step()
    tensors = {name: t.contiguous() for name, t in tensors_of(net).items()}  # like in a checkpoint
    task = Task(Assignment(0, 1, 1.0), WHOLE, tensors, work=setup.work, classes=None)
    (update,) = SerialEngine(setup).run([task])
    for name, tensor in tensors_of(local).items():
        assert torch.equal(update.tensors[name], tensor), name


@pytest.mark.parametrize("batching", ["never", "always"])
@pytest.mark.parametrize("norm", [nn.BatchNorm2d, StaticBatchNorm])
def test_what_is_trained_lies_as_the_model_did(batching: str, norm: type[nn.Module]) -> None:
    net = channels_last(norm)
    trained = submodel.train(net, DATA, config(engine={"batching": batching}))
    assert strides(trained.model) == strides(net)
    assert strides(trained.submodel(1)) == strides(net)
    plain = submodel.train(
        net.to(memory_format=torch.contiguous_format),  # type: ignore[call-overload]
        DATA,
        config(engine={"batching": batching}),
    )
    for name, tensor in plain.model.state_dict().items():
        torch.testing.assert_close(
            trained.model.state_dict()[name], tensor, rtol=1e-4, atol=1e-4, msg=name
        )
