"""What a client does: batches, masked cross-entropy, masked gradients, schedules, static norm."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from submodel.data import Examples
from submodel.errors import SubmodelError
from submodel.local.schedule import Constant, Cosine, Steps
from submodel.local.training import LocalWork, batches, train_module
from submodel.model.norm import StaticBatchNorm, calibrate
from submodel.tasks.loss import MaskedCrossEntropy


def test_epochs_use_every_example_once_and_steps_stop_in_time() -> None:
    work = LocalWork(lr=1, epochs=3, batch_size=4)
    drawn = list(batches(10, work, 0, 0, 0))
    assert [len(b) for b in drawn] == [4, 4, 2] * 3
    for epoch in range(3):
        assert sorted(np.concatenate(drawn[3 * epoch : 3 * epoch + 3])) == list(range(10))
    assert not np.array_equal(drawn[0], drawn[3])
    steps = LocalWork(lr=1, epochs=None, steps=5, batch_size=4)
    assert [len(b) for b in batches(10, steps, 0, 0, 0)] == [4, 4, 2, 4, 4]
    whole = LocalWork(lr=1, epochs=None, steps=2, batch_size=None)
    assert [len(b) for b in batches(10, whole, 0, 0, 0)] == [10, 10]


def test_masked_cross_entropy_is_its_definition_on_whole_and_on_cut_logits() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.5, -1.0, 0.0, 2.0]])
    targets, present = torch.tensor([1, 3]), torch.tensor([1, 3])
    absent_zero = torch.tensor([[0.0, 2.0, 0.0, 4.0], [0.0, -1.0, 0.0, 2.0]])
    absent_out = torch.tensor([[2.0, 4.0], [-1.0, 2.0]])
    expected = {
        "zero": functional.cross_entropy(absent_zero, targets),
        "leave_out": functional.cross_entropy(absent_out, torch.tensor([0, 1])),
    }
    for absent, value in expected.items():
        loss = MaskedCrossEntropy(present, 4, absent)  # type: ignore[arg-type]
        torch.testing.assert_close(loss(logits, targets), value)
        torch.testing.assert_close(loss(logits[:, present], targets), value)


def test_masked_training_is_the_masked_update_rule() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    mask = torch.tensor([[True, False, True]])
    net = nn.Linear(3, 1, bias=False)
    w = (net.weight.detach() * mask).double()
    net.weight.data = net.weight.data * mask
    work = LocalWork(lr=0.1, epochs=None, steps=4)
    loss = functional.mse_loss
    train_module(net, Examples(x, y), batches(8, work, 0, 0, 0), work, loss, {"weight": mask})
    for _ in range(4):
        gradient = 2 / 8 * (x.double() @ (mask * w).T - y.double()).T @ x.double()
        w = w - 0.1 * mask * gradient
    torch.testing.assert_close(net.weight.detach().double(), w, rtol=1e-5, atol=1e-6)
    assert net.weight[0, 1] == 0


def test_schedules() -> None:
    assert Constant().factor(9) == 1
    step = Steps((3, 6), 0.5)
    assert [step.factor(r) for r in (2, 3, 6)] == [1, 0.5, 0.25]
    cosine = Cosine(10)
    assert cosine.factor(0) == 1
    assert math.isclose(cosine.factor(5), 0.5)


def test_static_batch_norm_is_batch_norm_in_training_and_the_pooled_statistics_afterwards() -> None:
    torch.manual_seed(0)
    x = torch.randn(30, 3, 4, 4) * torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1, 1) + 1
    layer, reference = StaticBatchNorm(3), nn.BatchNorm2d(3, track_running_stats=False)
    torch.testing.assert_close(layer(x), reference(x))
    assert not list(layer.buffers())
    with pytest.raises(SubmodelError, match="calibrate"):
        layer.eval()(x)
    calibrate(layer, torch.split(x, 7))
    expected = (x - x.mean((0, 2, 3), keepdim=True)) / (
        x.var((0, 2, 3), correction=0, keepdim=True) + 1e-5
    ).sqrt()
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)
    single = StaticBatchNorm(3)(torch.randn(1, 3, 1, 1)).detach()
    assert single.abs().max() < 1e-4  # one value per channel is its own mean, but for rounding
