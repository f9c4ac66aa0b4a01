"""Replayed steps: the same bits as usual steps, or a fallback to usual steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from submodel.algorithm.types import Setup
from submodel.engines.batched import replay
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.batched.recording import (
    ReplayMismatchError,
    UnrecordableError,
    make_program,
    record,
)
from submodel.engines.batched.replay import USUAL_STEPS, Replays, StepKind
from submodel.engines.batched.stack import StepOutcome
from tests.engines.test_transformers import gpt
from tests.engines.test_transformers import setup_of as transformer
from tests.support.engines import setup_of as convolutions
from tests.support.engines import updates

_Compute = Callable[[Tensor], Tensor]


SETUPS: dict[str, Callable[[], Setup]] = {
    "padded GPT-2": lambda: transformer("gpt2", False, steps=5, optimiser="adamw", clip=0.5),
    "Llama in mixed precision": lambda: transformer("llama", steps=5, precision="bfloat16"),
    "convolutions": lambda: convolutions(local={"epochs": 3, "absent_labels": "zero"}),
    "batch statistics": lambda: convolutions(
        nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 10),
        )
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SETUPS)
def test_stacks_have_the_bits_of_the_usual_way(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setup, results = SETUPS[case](), []
    for steps in (10**9, 2):
        monkeypatch.setattr(replay, "USUAL_STEPS", steps)
        monkeypatch.setattr(replay, "USUAL_WIDE_STEPS", steps)
        engine = BatchedEngine(setup)
        results.append(updates(engine, setup))
    for expected, update in ((results[0][client], results[1][client]) for client in results[0]):
        assert update.loss == expected.loss
        torch.testing.assert_close(update.tensors, expected.tensors, rtol=0, atol=0)
    assert (engine._replays.programs > 0) is (case != "batch statistics")


CALLS: list[int] = []


def _note_call(*_: object) -> None:
    CALLS.append(1)


def test_hooks_are_called_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    net = gpt()
    net.register_forward_hook(_note_call)
    setup = transformer("gpt", net=net, steps=6)
    monkeypatch.setattr(replay, "USUAL_STEPS", 2)
    engine = BatchedEngine(setup)
    updates(engine, setup)
    CALLS.clear()
    updates(engine, setup)
    assert len(CALLS) >= 6 * 2  # the steps of two capacities, some of them in two parts


def _changes_its_own(x: Tensor) -> Tensor:
    total = torch.zeros(4)
    total.index_add_(0, torch.tensor([0, 0, 2]), x[1:].view(-1))
    total[1:3].mul_(2)
    return total


CASES: dict[str, _Compute] = {
    "views with offsets": lambda x: x.t()[1:, ::2].reshape(-1) + x[1:].flatten()[:1],
    "several outputs": lambda x: torch.cat(x.view(2, 3).max(1)[:1] + x.unbind(0)[:1]),
    "what it makes itself is changed": _changes_its_own,
    "constants": lambda x: x * (torch.arange(3) * 2.5)[None],
    "the input itself": lambda x: x.view(6).view(2, 3),
    "attention": lambda x: functional.scaled_dot_product_attention(y := x.view(1, 1, 2, 3), y, y),
}


@pytest.mark.parametrize("compute", CASES.values(), ids=CASES.keys())
def test_a_program_computes_values_and_gradients(compute: _Compute) -> None:
    def outputs(x: Tensor) -> list[Tensor]:
        x = x.detach().requires_grad_()
        out = compute(x)
        return [out.detach(), *torch.autograd.grad((out * out).sum(), [x])]

    draws = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 2, 3, generator=draws).unbind()
    program = make_program(record(lambda: outputs(first), [first]))
    with torch.no_grad():
        results = program([second])
    for result, expected in zip(results, outputs(second), strict=True):
        assert torch.equal(result, expected)
        assert result.stride() == expected.stride()


def test_a_program_takes_the_recorded_way_only() -> None:
    program = make_program(
        record(lambda: [x + 1 if bool(x.sum() > 0) else x], [x := torch.ones(2)])
    )
    assert program([torch.tensor([3.0, -1.0])])[0].tolist() == [4.0, 0.0]
    with pytest.raises(ReplayMismatchError):
        program([torch.tensor([-3.0, 1.0])])


def _in_place(x: Tensor) -> Tensor:
    return x.add_(1)


UNREPEATABLE: dict[str, _Compute] = {
    "random": torch.rand_like,
    "reads values": lambda x: x * x.tolist()[0],
    "depends": lambda x: x[x > 0],
    "changes": _in_place,
    "running statistics": lambda x: functional.batch_norm(
        x.view(2, 1), torch.zeros(1), torch.ones(1), training=True
    ),
}


@pytest.mark.parametrize(("words", "compute"), UNREPEATABLE.items())
def test_what_would_not_be_the_same_again_is_not_recorded(words: str, compute: _Compute) -> None:
    with pytest.raises(UnrecordableError, match=words):
        record(lambda: [compute(x)], [x := torch.ones(2)])


def _repeat(compute: _Compute, inputs: Sequence[Tensor]) -> tuple[Replays, list[Tensor]]:
    def outcome(x: Tensor) -> StepOutcome:
        return StepOutcome(compute(x), [1.0], [])

    replays = Replays()
    kind = StepKind("a kind")
    return replays, [replays.outcome(kind, [x], partial(outcome, x)).losses for x in inputs]


def test_steps_that_go_another_way_are_computed_the_usual_way() -> None:
    def compute(x: Tensor) -> Tensor:
        return x + 1 if bool(x[0] > 0) else x - 1

    inputs = [torch.tensor([1.0])] * (USUAL_STEPS + 1)
    replays, losses = _repeat(compute, [*inputs, torch.tensor([-1.0]), torch.tensor([2.0])])
    assert replays.programs == 1
    assert [float(loss) for loss in losses] == [*[2.0] * len(inputs), -2.0, 3.0]


def test_steps_with_other_bits_are_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    calls = iter(range(100))
    with caplog.at_level(logging.INFO):
        replays, losses = _repeat(lambda x: x + next(calls), [torch.zeros(1)] * 12)
    assert replays.programs == 0
    assert losses[-1] == 12  # one more than there were steps before: the recorded one ran twice
    assert "other bits" in caplog.text
