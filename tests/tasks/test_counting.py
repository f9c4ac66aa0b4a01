"""Losses weigh their counted targets: ignored targets, batches without targets, sub-models."""

from __future__ import annotations

import io
import json
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional

import submodel
from submodel.algorithm.dispatch import Dispatcher
from submodel.algorithm.execution import Engine
from submodel.algorithm.rounds import initial_state, output_step, step
from submodel.algorithm.score import score
from submodel.algorithm.types import Assignment, Setup, Task, Update
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.errors import DataError, DivergedError, SubmodelError
from submodel.data import Dataset, Examples, dataset
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.serial import SerialEngine
from submodel.federation.wire import Message, WireError, read_update, update_message
from submodel.model.cost import CostModel
from submodel.report.tables import history_table
from submodel.runs.loop import Metrics
from submodel.tasks.loss import value_of
from submodel.tasks.training import LocalWork, batches, train_module
from tests.support.rounds import step_of

TOKENS, LENGTH, CLIENTS, EACH = 5, 4, 6, 4
IGNORED = -100


class Speller(nn.Module):
    """A model that predicts a token for every position; outputs (batch, length, tokens)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 8)
        self.hidden = nn.Linear(8, 8)
        self.head = nn.Linear(8, TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.hidden(self.embedding(x)).relu())
        return out


def by_function(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def by_module(outputs: Tensor, targets: Tensor) -> Tensor:
    value: Tensor = nn.CrossEntropyLoss()(outputs.transpose(1, 2), targets)
    return value


def shifted(outputs: Tensor, targets: Tensor) -> Tensor:
    return by_function(outputs[:, :-1], targets[:, 1:])


def another_number(outputs: Tensor, targets: Tensor) -> Tensor:
    moved = targets.masked_fill(targets == IGNORED, TOKENS - 1)
    return functional.cross_entropy(outputs.flatten(0, 1), moved.flatten(), ignore_index=TOKENS - 1)


def with_class_weights(outputs: Tensor, targets: Tensor) -> Tensor:
    weight = torch.arange(1, TOKENS + 1).to(outputs)
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), weight)


def nll(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.nll_loss(outputs.log_softmax(2).flatten(0, 1), targets.flatten())


def chosen(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over masked-in targets."""
    counted = targets != IGNORED
    return functional.cross_entropy(outputs[counted], targets[counted])


def by_hand(outputs: Tensor, targets: Tensor) -> Tensor:
    counted = targets != IGNORED
    each = functional.cross_entropy(outputs.transpose(1, 2), targets, reduction="none")
    return (each * counted).sum() / counted.sum()


def summed(outputs: Tensor, targets: Tensor) -> Tensor:
    total = functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="sum")
    return total / (targets != IGNORED).sum().item()


def penalised(outputs: Tensor, targets: Tensor) -> Tensor:
    return by_function(outputs, targets) + 0 * outputs.square().mean()


WEIGHTS = torch.ones(7, 3, dtype=torch.float64)


def decaying(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return a loss with a mean that does not depend on the batch."""
    return squares(outputs, targets) + 0.1 * WEIGHTS.square().mean()


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    counted = targets != IGNORED
    return (outputs[..., 0] - targets)[counted].square().mean()


class CustomAverage:
    """A loss with a custom average that declares its count."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        counted = (targets != IGNORED).to(outputs)
        each = functional.cross_entropy(outputs.transpose(1, 2), targets, reduction="none")
        return torch.einsum("bt,bt->", each, counted) * counted.sum().reciprocal()

    def count(self, targets: Tensor) -> Tensor:
        return (targets != IGNORED).sum()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    **{own.__name__: own for own in (
        by_function, by_module, shifted, another_number, with_class_weights, nll, chosen, by_hand,
        summed, penalised, squares, decaying,
    )},
    "telling": CustomAverage(),
    "partial": partial(by_function),
}  # fmt: skip


def sequences(count: int, seed: int, ignored: float) -> Examples:
    """Make sequences, some with many ignored positions, some with none."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randint(0, TOKENS, (count, LENGTH), generator=draw)
    y = (x + 1) % TOKENS
    often = torch.rand(count, 1, generator=draw) * 2 * ignored
    return Examples(x, y.masked_fill(torch.rand(count, LENGTH, generator=draw) < often, IGNORED))


def some_ignored() -> Dataset:
    train_part, test = sequences(CLIENTS * EACH, 0, 0.4), sequences(230, 1, 0.4)
    test.y[:200, 1:] = IGNORED  # the first batch counts little, the second all
    test.y[200:] = (test.x[200:] + 1) % TOKENS
    return dataset((train_part.x, train_part.y), (test.x, test.y))


def make_setup(
    loss: Callable[[Tensor, Tensor], Tensor] = by_function,
    data: Dataset | None = None,
    **sections: dict[str, Any],
) -> Setup:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "data": {"partition": "iid"},
        "clients": {"count": CLIENTS, "per_round": CLIENTS, "capacities": [1.0, 0.5]},
        "local": {"batch_size": 1, "lr": 0.1, "momentum": 0.5, "weight_decay": 0.01,
                  "absent_labels": "keep"},
    }  # fmt: skip
    for name, values in sections.items():
        settings[name] = settings.get(name, {}) | values
    return prepare(parse(settings), Speller().double(), data or some_ignored(), loss=loss)


@pytest.mark.parametrize("name", LOSSES)
def test_a_score_is_the_loss_of_all_examples_in_one_piece(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    setup = make_setup(LOSSES[name])
    module, test = setup.module.eval(), setup.clients.dataset.test
    with torch.no_grad():
        expected = float(LOSSES[name](module(test.x), test.y))
    found = score(module, test, setup)
    assert math.isclose(found.loss, expected, rel_tol=1e-12)
    assert found.accuracy is None
    parts = [(len(y), LOSSES[name](module(x), y).item()) for x, y in
             zip(torch.split(test.x, 200), torch.split(test.y, 200), strict=True)]  # fmt: skip
    by_examples = sum(n * value for n, value in parts) / len(test)
    assert not abs(by_examples - expected) < 1e-4  # it would have been another number
    assert not caplog.records


def test_plain_cross_entropy_of_sequences_leaves_out_what_it_ignores() -> None:
    class Turned(Speller):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).transpose(1, 2)

    setup = replace(make_setup(), module=Turned().double(), loss=functional.cross_entropy)
    test = setup.clients.dataset.test
    expected = functional.cross_entropy(setup.module(test.x), test.y).item()
    assert math.isclose(score(setup.module, test, setup).loss, expected, rel_tol=1e-12)


@pytest.mark.parametrize(
    "loss",
    [
        functional.cross_entropy,
        lambda o, y: functional.cross_entropy(o, y),
        lambda o, y: functional.cross_entropy(o, y, reduction="none").mean(),
        lambda o, y: (o.logsumexp(1) - o.gather(1, y[:, None])[:, 0]).sum() / len(y),
    ],
)
def test_a_plain_mean_over_examples_is_scored_as_ever_to_the_last_bit(loss: Any) -> None:
    setup = replace(make_setup(), loss=loss)
    torch.manual_seed(1)
    net, x, y = nn.Linear(3, 4), torch.randn(470, 3), torch.randint(0, 4, (470,))
    rows = [
        [loss(net(part), labels).item() * len(labels), 0.0]
        for part, labels in zip(torch.split(x, 200), torch.split(y, 200), strict=True)
    ]
    expected = torch.tensor(rows, dtype=torch.float64).sum(0)[0].item() / len(x)
    assert score(net, Examples(x, y), setup).loss == expected


def test_a_part_in_which_nothing_counts_has_no_score() -> None:
    setup = make_setup()
    nothing = Examples(torch.zeros(3, LENGTH, dtype=torch.long), torch.full((3, LENGTH), IGNORED))
    with pytest.raises(DataError, match=r"targets .*3 examples"):
        score(setup.module, nothing, setup)


def test_a_loss_that_averages_unseen_is_asked_to_tell(caplog: pytest.LogCaptureFixture) -> None:
    def hidden(outputs: Tensor, targets: Tensor) -> Tensor:
        return CustomAverage()(outputs, targets)

    setup = make_setup(hidden)
    for _ in range(2):
        score(setup.module, setup.clients.dataset.test, setup)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "hidden" in record.message
    assert "loss.count(targets)" in record.message


def test_a_step_is_not_left_out_for_a_term_that_counts_nothing() -> None:
    def mended(outputs: Tensor, targets: Tensor) -> Tensor:
        return by_function(outputs, targets) + outputs[:0].mean().nan_to_num()

    def mended_squares(outputs: Tensor, targets: Tensor) -> Tensor:
        return squares(outputs, targets) + outputs[:0].mean().nan_to_num()

    outputs, targets = torch.zeros(3, LENGTH, TOKENS), torch.ones(3, LENGTH)
    assert value_of(mended, outputs, targets.long()).count == 3
    assert value_of(mended_squares, outputs, targets).count == 3


@pytest.mark.parametrize("answer", [-1, math.nan, "many", None])
def test_a_wrong_count_is_told(answer: Any) -> None:
    class Wrong(CustomAverage):
        def count(self, targets: Tensor) -> Any:  # noqa: ARG002
            return answer

    with pytest.raises(SubmodelError, match=r"loss\.count\(targets\): "):
        score((setup := make_setup(Wrong())).module, setup.clients.dataset.test, setup)


def run_round(setup: Setup, engine: Engine) -> tuple[dict[str, Tensor], Any]:
    state, report = step_of(setup, engine=engine)
    return dict(state.tensors), report


@pytest.mark.parametrize("batch", [1, 3])
def test_train_loss_is_the_mean_over_all_that_counts(batch: int) -> None:
    """With a step too small to move a weight, it is the loss of the sent model."""
    data = some_ignored()
    data.train.y[::5] = IGNORED
    setup = make_setup(
        data=data,
        local={"batch_size": batch, "lr": 1e-30},
        clients={"capacities": [1.0]},
    )
    with torch.no_grad():
        expected = float(by_function(setup.module(data.train.x), data.train.y))
    for engine in (SerialEngine(setup), BatchedEngine(setup, always=True)):
        _, report = run_round(setup, engine)
        assert math.isclose(report.train_loss, expected, rel_tol=1e-12)
        assert not report.refusals


def test_ragged_batches_weigh_their_examples_in_train_loss() -> None:
    torch.manual_seed(0)
    net, x, y = nn.Linear(3, 2), torch.randn(7, 3), torch.randint(0, 2, (7,))
    work = LocalWork(lr=1e-30, batch_size=3)
    result = train_module(
        net, Examples(x, y), batches(7, work, 0, 0, 0), work, functional.cross_entropy
    )
    assert math.isclose(result.loss, functional.cross_entropy(net(x), y).item(), rel_tol=1e-6)
    assert (result.examples_used, result.examples_counted) == (7, 7)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_a_batch_in_which_nothing_counts_is_no_step_on_either_engine(clip: float | None) -> None:
    """Such examples have no effect on training: no decay, no momentum, no NaN."""
    local = {} if clip is None else {"clip": clip}
    data = some_ignored()
    data.train.y[:, 0] = data.train.x[:, 0]  # targets count everywhere ...
    data.train.y[::3] = IGNORED  # ... except here
    setup = make_setup(data=data, local=local)
    batched, alone = BatchedEngine(setup, always=True), SerialEngine(setup)
    one, of_one = run_round(setup, alone)
    many, of_many = run_round(setup, batched)
    assert not of_one.refusals
    assert not of_many.refusals
    assert math.isclose(of_one.train_loss, of_many.train_loss, rel_tol=1e-10)
    torch.testing.assert_close(many, one, rtol=0, atol=1e-10)
    # for one client: the steps of the counted batches, in order
    dispatcher = Dispatcher(setup, initial_state(setup), setup.work)
    task = dispatcher.task(Assignment(0, 0, 1.0))
    (update,) = alone.run([task])
    own = setup.clients.examples(0)
    order = list(batches(len(own), setup.work, setup.seed, 0, 0))
    counting = [b for b in order if bool((own.y[b] != IGNORED).any())]
    assert 0 < len(counting) < len(order)
    net = Speller().double()
    net.load_state_dict(task.tensors)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5, weight_decay=0.01)
    for positions in counting:
        sgd.zero_grad()
        by_function(net(own.x[positions]), own.y[positions]).backward()  # type: ignore[no-untyped-call]
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        sgd.step()
    torch.testing.assert_close(update.tensors, net.state_dict(), rtol=0, atol=1e-12)
    assert update.examples_used == len(own)  # they were all passed through the model


def nothing_counts_for(client: int) -> Setup:
    """Make targets that count in every example except those of one client."""
    data = some_ignored()
    setup = make_setup(data=data)
    data.train.y[:, 0] = data.train.x[:, 0]
    data.train.y[torch.from_numpy(setup.clients.indices(client))] = IGNORED
    return setup


def test_a_client_for_whom_nothing_counts_is_refused_by_name() -> None:
    setup = nothing_counts_for(2)
    for engine in (SerialEngine(setup), BatchedEngine(setup, always=True)):
        tensors, report = run_round(setup, engine)
        assert report.refusals.keys() == {"2"}
        assert "targets" in report.refusals["2"]
        assert report.clients == CLIENTS - 1
        assert math.isfinite(report.train_loss)
        assert all(bool(torch.isfinite(t).all()) for t in tensors.values())


def test_a_round_and_an_output_step_without_anything_to_count_say_so() -> None:
    data = some_ignored()
    data.train.y[:] = IGNORED
    setup = make_setup(data=data)
    engine, costs = SerialEngine(setup), CostModel(setup.module, data.example)
    with pytest.raises(DivergedError, match=r"targets .*loss") as caught:
        step(setup, initial_state(setup), engine, costs)
    assert "local.lr" not in str(caught.value)
    with pytest.raises(DivergedError, match=r"targets .*loss"):
        output_step(setup, initial_state(setup), engine, costs, 10.0)


def test_an_update_whose_loss_is_not_finite_is_refused() -> None:
    def broken(outputs: Tensor, targets: Tensor) -> Tensor:
        value = by_function(outputs, targets.clamp(min=0))
        return value + math.nan if bool((targets == IGNORED).all()) else value

    setup = replace(nothing_counts_for(1), loss=broken)
    for engine in (SerialEngine(setup), BatchedEngine(setup, always=True)):
        _, report = run_round(setup, engine)
        assert report.refusals == {"1": "its loss is not finite"}
        assert math.isfinite(report.train_loss)


def test_what_counted_travels_with_an_update() -> None:
    setup = make_setup()
    task: Task = Dispatcher(setup, initial_state(setup), setup.work).task(Assignment(0, 1, 0.5))
    (update,) = SerialEngine(setup).run([task])
    assert isinstance(update, Update)
    own = setup.clients.examples(1)
    assert update.examples_counted == int((own.y != IGNORED).sum()) / LENGTH
    message = Message.from_bytes(update_message(update, task, "exact").to_bytes())
    assert read_update(message, task).examples_counted == update.examples_counted
    for given in (-1.0, math.inf, "all"):
        with pytest.raises(WireError, match="counted"):
            read_update(replace(message, head={**message.head, "counted": given}), task)


@pytest.mark.slow
def test_sub_models_are_scored_by_their_loss_where_targets_are_not_labels(tmp_path: Path) -> None:
    lines: list[Metrics] = []
    config = {
        "data": {"partition": "iid"},
        "clients": {"count": CLIENTS, "per_round": 2, "capacities": [1.0, 0.5, 0.25]},
        "local": {"absent_labels": "keep", "batch_size": 2},
        "train": {"rounds": 2, "evaluate_every": 1, "output_step": 20.0},
    }
    data, out = some_ignored(), tmp_path / "run"
    result = submodel.train(
        Speller(), data, config, loss=by_function, out=out, on_round=lines.append
    )
    last = lines[-1]
    assert set(last["capacity_loss"]) == {"1", "0.5", "0.25"}
    assert last["capacity_loss"]["1"] == last["test_loss"]
    assert "capacity_accuracy" not in last
    summary = json.loads((out / "summary.json").read_text())
    with torch.no_grad():
        small = result.submodel(0.5)(data.test.x)
    expected = float(by_function(small, data.test.y))
    assert math.isclose(summary["capacity_loss"]["0.5"], expected, rel_tol=1e-5)
    assert (out / "curves.png").stat().st_size > 10_000
    console = Console(file=io.StringIO(), width=200)
    console.print(history_table(lines, "run"))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "loss at 0.5" in text
    assert f"{last['capacity_loss']['0.25']:.4f}" in text
