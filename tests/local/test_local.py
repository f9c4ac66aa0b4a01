"""Local work of a client: batches, masked losses and gradients, schedules, torch's optimisers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from submodel.core.errors import SubmodelError
from submodel.data import Examples
from submodel.model.norm import StaticBatchNorm, calibrate
from submodel.tasks.loss import MaskedCrossEntropy
from submodel.tasks.optimisers import Adafactor, LocalAdam, LocalAdamW, Optimiser, Proximal, Sgd
from submodel.tasks.schedule import Constant, Cosine, Steps
from submodel.tasks.training import LocalWork, batches, train_module


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
    assert single.abs().max() < 1e-4  # one value per channel is its own mean, up to rounding


LR = 0.01
TORCHS: dict[str, tuple[Optimiser, Callable[[Any], torch.optim.Optimizer]]] = {
    "sgd": (Sgd(0.9, 0.1), lambda p: torch.optim.SGD(p, LR, 0.9, weight_decay=0.1)),
    "nesterov": (
        Sgd(0.9, 0.1, nesterov=True),
        lambda p: torch.optim.SGD(p, LR, 0.9, weight_decay=0.1, nesterov=True),
    ),
    "adam": (
        LocalAdam(0.8, 0.99, 1e-6, 0.1),
        lambda p: torch.optim.Adam(p, LR, (0.8, 0.99), 1e-6, 0.1),
    ),
    "adamw": (LocalAdamW(weight_decay=0.3), lambda p: torch.optim.AdamW(p, LR, weight_decay=0.3)),
    "adafactor": (
        Adafactor(weight_decay=0.1),
        lambda p: torch.optim.Adafactor(p, LR, weight_decay=0.1),
    ),
}


def tensors(seed: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    shapes: list[tuple[int, ...]] = [(4, 3), (3,), (2, 3, 3, 3), (5, 1)]
    return [torch.randn(shape, generator=random) for shape in shapes]


@pytest.mark.parametrize("name", TORCHS)
def test_it_steps_as_torchs_does(name: str) -> None:
    ours, make = TORCHS[name]
    weights = tensors(0)
    theirs = [w.clone().requires_grad_() for w in weights]
    reference, slots = make(theirs), ours.begin(weights)
    for number in range(1, 13):
        gradients: list[Tensor | None] = list(tensors(number))
        if number % 3 == 0:
            gradients[1] = None  # a parameter without gradient and its memory stay
        for weight, gradient in zip(theirs, gradients, strict=True):
            weight.grad = None if gradient is None else gradient.clone()
        reference.step()
        ours.step(weights, gradients, slots, LR)
    for weight, their in zip(weights, theirs, strict=True):
        torch.testing.assert_close(weight, their.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", [n for n in TORCHS if n != "adafactor"])
def test_clients_below_each_other_step_as_each_alone(name: str) -> None:
    optimiser = TORCHS[name][0]
    alone = [tensors(0), tensors(1)]
    wide = [torch.cat(pair) for pair in zip(*alone, strict=True)]
    slots, wide_slots = [optimiser.begin(w) for w in alone], optimiser.begin(wide)
    for number in range(2, 6):
        gradients = [tensors(10 * number), tensors(10 * number + 1)]
        for weights, own_slots, own in zip(alone, slots, gradients, strict=True):
            optimiser.step(weights, own, own_slots, LR)
        both = [torch.cat(pair) for pair in zip(*gradients, strict=True)]
        optimiser.step(wide, both, wide_slots, LR)
    for pair, together in zip(zip(*alone, strict=True), wide, strict=True):
        assert torch.equal(torch.cat(pair), together)


@pytest.mark.parametrize("name", TORCHS)
def test_the_proximal_term_is_that_of_the_objective(name: str) -> None:
    """Gradients of f + (mu / 2) ||w - w_r||^2 by torch, against ours with f alone."""
    optimiser, mu = TORCHS[name][0], 0.7
    start = tensors(0)
    weights, reference = [w.clone() for w in start], [w.clone() for w in start]
    proximal = Proximal(optimiser, mu)
    slots, reference_slots = proximal.begin(weights), optimiser.begin(reference)
    for number in range(1, 6):
        gradients = tensors(number)
        leaves = [w.clone().requires_grad_() for w in reference]
        value = sum(
            (g * w).sum() + mu / 2 * (w - s).square().sum()
            for g, w, s in zip(gradients, leaves, start, strict=True)
        )
        optimiser.step(reference, torch.autograd.grad(value, leaves), reference_slots, LR)  # type: ignore[arg-type]
        proximal.step(weights, gradients, slots, LR)
    for weight, other in zip(weights, reference, strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [LocalAdam, LocalAdamW])
def test_adam_in_one_pass_is_adam_row_by_row(kind: type[LocalAdam]) -> None:
    """Weights that are not contiguous by row, or with unequal steps per row, use the slow path."""
    torch.manual_seed(0)
    adam = kind(weight_decay=0.1)
    start = torch.randn(4, 3, dtype=torch.float64)
    weights = [start.clone()], [start.t().contiguous().t()], [torch.cat([start, start])]
    slots = [adam.begin(w) for w in weights]
    for step in range(5):
        gradient = torch.randn(4, 3, dtype=torch.float64)
        for parameters, kept_slots in zip(weights, slots, strict=True):
            rows = len(parameters[0]) // 4
            adam.step(parameters, [gradient.repeat(rows, 1)], kept_slots, 0.01)
        if step == 1:  # as if the second client of the stack started later
            weights[2][0][4:] = start
            for slot in slots[2]:
                slot[0][4:] = 0
    reference = weights[0][0]
    torch.testing.assert_close(weights[1][0], reference, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(weights[2][0][:4], reference, rtol=1e-13, atol=1e-13)
    assert slots[2][2][0].flatten().tolist() == [5.0] * 4 + [3.0] * 4
