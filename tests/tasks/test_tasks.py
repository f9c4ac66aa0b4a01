"""Tasks in training, on both local engines; metrics equal scikit-learn's on all examples."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import submodel
from submodel.core.errors import ConfigError, SubmodelError
from submodel.runs.checkpoint import model_sha256
from submodel.tasks.builtin_tasks import METRICS
from submodel.tasks.metrics import BatchMetric, MetricContext
from submodel.tasks.task import make_metrics

FACTS = MetricContext(classes=7, bytes_per_token=2.0)


def in_batches(metric: BatchMetric, outputs: Tensor, targets: Tensor, loss: float = 0.0) -> float:
    parts = zip(torch.split(outputs, 4), torch.split(targets, 4), strict=True)
    sums = torch.stack([metric.sums(o, t) for o, t in parts])
    assert sums.shape[1] == metric.width
    return metric.value(sums.sum(0), loss)


@given(st.integers(1, 30), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_labels_are_scored_as_scikit_learn_does(count: int, seed: int) -> None:
    from sklearn import metrics as sklearn_metrics

    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, 7, generator=random)
    labels = torch.randint(0, 7, (count,), generator=random)
    metrics = make_metrics(["accuracy", "top5", "f1"], FACTS)
    answers = logits.argmax(1)
    assert in_batches(metrics["accuracy"], logits, labels) == pytest.approx(
        sklearn_metrics.accuracy_score(labels, answers), abs=1e-12
    )
    assert in_batches(metrics["top5"], logits, labels) == pytest.approx(
        sklearn_metrics.top_k_accuracy_score(labels, logits, k=5, labels=range(7)), abs=1e-12
    )
    assert in_batches(metrics["f1"], logits, labels) == pytest.approx(
        sklearn_metrics.f1_score(labels, answers, average="macro"), abs=1e-12
    )


@given(st.integers(2, 30), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_numbers_are_scored_as_scikit_learn_does(count: int, seed: int) -> None:
    from sklearn import metrics as sklearn_metrics

    random = torch.Generator().manual_seed(seed)
    outputs, targets = torch.randn(2, count, 1, generator=random, dtype=torch.float64)
    metrics = make_metrics(["mae", "r2"], FACTS)
    assert in_batches(metrics["mae"], outputs, targets) == pytest.approx(
        sklearn_metrics.mean_absolute_error(targets, outputs), abs=1e-12
    )
    assert in_batches(metrics["r2"], outputs, targets) == pytest.approx(
        sklearn_metrics.r2_score(targets, outputs),
        rel=1e-6,
        abs=1e-9,  # of y^2 less the mean's
    )


def test_the_mean_absolute_error_is_in_the_unit_of_the_users_targets() -> None:
    outputs, targets = torch.zeros(2, 1), torch.tensor([[1.0], [-2.0]])
    metrics = make_metrics(["mae", "r2"], MetricContext(unit=10.0))
    assert in_batches(metrics["mae"], outputs, targets) == 15.0
    plain = make_metrics(["r2"], MetricContext())["r2"]
    assert in_batches(metrics["r2"], outputs, targets) == in_batches(plain, outputs, targets)


def test_calibration_is_the_mean_distance_of_confidence_from_being_right() -> None:
    confidence = torch.tensor([0.55, 0.58, 0.95, 0.99])
    logits = torch.stack([confidence.log(), (1 - confidence).log()], 1)
    labels = torch.tensor([0, 1, 0, 0])
    metric = make_metrics(["calibration"], FACTS)["calibration"]
    bins = np.array([(0.5, [0.55, 0.58]), (1.0, [0.95, 0.99])], dtype=object)
    expected = sum(len(c) / 4 * abs(right - np.mean(c)) for right, c in bins)
    assert in_batches(metric, logits, labels) == pytest.approx(expected, abs=1e-6)


def test_tokens_that_do_not_count_are_left_out() -> None:
    logits = torch.zeros(2, 3, 7)
    logits[..., 1] = 1
    targets = torch.tensor([[1, 1, -100], [0, -100, -100]])
    assert in_batches(make_metrics(["accuracy"], FACTS)["accuracy"], logits, targets) == 2 / 3


def test_perplexity_and_bits_per_byte_follow_from_the_loss() -> None:
    metrics = make_metrics(["perplexity", "bits_per_byte"], FACTS)
    nothing = torch.zeros(0)
    assert metrics["perplexity"].value(nothing, math.log(5)) == pytest.approx(5)
    assert metrics["bits_per_byte"].value(nothing, math.log(4)) == 1.0


def test_a_function_is_a_metric_weighted_by_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_metrics.py").write_text(
        "def error(outputs, targets):\n    return (outputs != targets).double().mean()\n\n\n"
        "error.higher_is_better = False\n"
    )
    monkeypatch.chdir(tmp_path)
    metric = make_metrics(["my_metrics:error"], FACTS)["error"]
    outputs, targets = torch.arange(6.0), torch.tensor([0.0, 1, 2, 0, 0, 5])
    assert in_batches(metric, outputs, targets) == pytest.approx(2 / 6)
    assert not metric.higher_is_better


@pytest.mark.parametrize(
    ("name", "reason"),
    [("f1", "class labels"), ("bits_per_byte", "text"), ("f2", "f1")],
)
def test_a_metric_that_cannot_be_had_is_refused(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"^task\.metrics: .*'{name}' .*{reason}"):
        make_metrics([name], MetricContext())


def test_every_metric_says_which_direction_is_better() -> None:
    better = {n: m.higher_is_better for n, m in make_metrics(list(METRICS.entries), FACTS).items()}
    assert better == {
        "accuracy": True, "top5": True, "f1": True, "calibration": False, "perplexity": False,
        "bits_per_byte": False, "mae": False, "r2": True,
    }  # fmt: skip


def test_the_token_loss_is_torchs_cross_entropy_in_either_order() -> None:
    from submodel.tasks.loss import TokenCrossEntropy

    random = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 7, generator=random)
    targets: Any = torch.tensor([[1, -100, 6], [0, 2, -100]])
    expected = functional.cross_entropy(logits.transpose(1, 2), targets)
    for smoothing in (0.0, 0.1):
        loss = TokenCrossEntropy(smoothing)
        expected = functional.cross_entropy(
            logits.transpose(1, 2), targets, label_smoothing=smoothing
        )
        assert torch.allclose(loss(logits, targets), expected)
        assert torch.allclose(loss(logits.transpose(1, 2), targets), expected)
        assert loss.count(targets) == 4


ROUNDS = 2
CLIENTS = {"count": 6, "per_round": 4, "capacities": [1, 0.5]}


def config(**sections: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "clients": CLIENTS,
        "data": {"partition": "iid"},
        "local": {"lr": 0.05, "batch_size": 4},
        "train": {"rounds": ROUNDS, "evaluate_every": 1},
    }
    for name, section in sections.items():
        base[name] = {**base.get(name, {}), **section}
    return base


def both_engines(net: nn.Module, data: submodel.Dataset, settings: dict[str, Any]) -> list[Any]:
    """Return the results of the serial engine and of stacks."""
    return [
        submodel.train(
            net, data, {**settings, "engine": {"name": "local", "batching": batching}},
            progress=False,
        )
        for batching in ("never", "always")
    ]  # fmt: skip


def assert_close(results: list[Any], tolerance: float = 1e-5) -> None:
    serial, stacked = (result.state.tensors for result in results)
    torch.testing.assert_close(stacked, serial, rtol=tolerance, atol=tolerance)


def images(count: int = 48) -> submodel.Dataset:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(count, 3, 8, 8, generator=random)
    y = torch.randint(0, 3, (count,), generator=random)
    return submodel.dataset((x, y), (x[:20], y[:20]))


def image_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 3),
    )  # fmt: skip


class TwoInputs(nn.Module):
    """A model that takes numbers and a mask by name."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """Return the logits of unmasked positions."""
        outputs: Tensor = self.last(torch.relu(self.first(values * mask)))
        return outputs


@pytest.mark.slow
@pytest.mark.parametrize(
    "local",
    [
        {"optimiser": "adam", "lr": 0.01},
        {"optimiser": "adamw", "lr": 0.01, "weight_decay": 0.1},
        {"optimiser": "adafactor", "lr": 0.05},
        {"optimiser": "sgd", "nesterov": True},
        {"proximal": 0.5, "epochs": 2},
        {"accumulate": 3, "batch_size": 8},
        {"step_schedule": "cosine", "warmup_steps": 2, "epochs": 3},
        {"warmup_rounds": 2, "schedule": "cosine"},
    ],
    ids=str,
)
def test_local_training_is_the_same_in_stacks(local: dict[str, Any]) -> None:
    results = both_engines(image_net(), images(), config(local=local))
    assert_close(results, 2e-5)


def test_pieces_of_a_batch_make_the_step_of_the_batch() -> None:
    data, settings = images(), {"batch_size": 8, "absent_labels": "keep"}
    whole, pieces = (
        submodel.train(image_net(), data, config(local={**settings, "accumulate": n}),
                       progress=False)
        for n in (1, 4)
    )  # fmt: skip
    assert_close([whole, pieces])
    assert pieces.history[-1]["train_loss"] == pytest.approx(whole.history[-1]["train_loss"])


@pytest.mark.slow
@pytest.mark.parametrize("data", [{"augment": ["crop", "flip"]}], ids=str)
def test_augmented_examples_are_the_same_in_stacks_and_after_a_stop(
    data: dict[str, Any], tmp_path: Path
) -> None:
    settings = config(data=data)
    results = both_engines(image_net(), images(), settings)
    assert_close(results)
    plain = submodel.train(image_net(), images(), config(), progress=False)
    assert model_sha256(plain.state.tensors) != model_sha256(results[0].state.tensors)
    half = {**settings, "engine": {"name": "local", "batching": "never"}}
    half["train"] = {**half["train"], "rounds": 1}
    submodel.train(image_net(), images(), half, out=tmp_path / "run", progress=False)
    half["train"]["rounds"] = ROUNDS
    resumed = submodel.train(
        image_net(), images(), half, out=tmp_path / "run", resume=True, progress=False
    )
    assert model_sha256(resumed.state.tensors) == model_sha256(results[0].state.tensors)


@pytest.mark.parametrize("batching", ["never", "always"])
def test_inputs_by_name_train_as_one_tensor_does(batching: str) -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(48, 5, generator=random)
    y = torch.randint(0, 3, (48,), generator=random)
    mask = (torch.rand(48, 5, generator=random) < 0.5).float()
    named = {"values": x, "mask": mask}
    test = {name: tensor[:20] for name, tensor in named.items()}
    data = submodel.dataset((named, y), (test, y[:20]))
    settings = {**config(), "engine": {"name": "local", "batching": batching}}
    both = submodel.train(TwoInputs(), data, settings, progress=False)

    class Product(TwoInputs):
        def forward(self, values: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(values, torch.ones_like(values))

    masked = submodel.dataset((x * mask, y), ((x * mask)[:20], y[:20]))
    one = submodel.train(Product(), masked, settings, progress=False)
    assert_close([one, both])


@pytest.mark.slow
def test_a_hugging_face_model_trains_as_it_is() -> None:
    torch.manual_seed(0)
    settings = transformers.GPT2Config(
        n_embd=16, n_layer=1, n_head=2, n_positions=8, vocab_size=11, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    net = transformers.GPT2LMHeadModel(settings)
    tokens = torch.randint(0, 11, (24, 8), generator=torch.Generator().manual_seed(0))
    part = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    data = submodel.dataset({**part, "labels": tokens}, {**part, "labels": tokens})
    adamw = config(local={"optimiser": "adamw", "lr": 0.01})
    result = submodel.train(net, data, adamw, progress=False)
    assert result.history[-1]["test_loss"] < result.history[0]["test_loss"]
    assert result.history[-1]["test_perplexity"] == pytest.approx(
        np.exp(result.history[-1]["test_loss"])
    )
    with torch.no_grad():
        theirs = result.model(**part, labels=tokens).loss
    assert result.history[-1]["test_loss"] == pytest.approx(float(theirs), rel=1e-5)


@pytest.mark.slow
def test_numbers_are_learned_by_squared_error_and_scored_by_r2() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=random)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5], [0.0]])
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    data = submodel.dataset((x, y), (x, y))
    settings = config(train={"rounds": 20}, local={"epochs": 2})
    last = submodel.train(net, data, settings, progress=False).history[-1]
    assert last["test_r2"] > 0.8
    assert set(last["capacity_loss"]) == {"1", "0.5"}


def test_natural_clients_keep_what_is_theirs(tmp_path: Path) -> None:
    rows = [f"{n % 7},{n % 5},{'abc'[n % 3]},{n % 2}" for n in range(90)]
    (tmp_path / "t.csv").write_text("\n".join(["p,q,who,label", *rows]))
    data = submodel.load_dataset(
        f"csv:{tmp_path / 't.csv'}", target="label", client="who", kind="labels"
    )
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    settings: dict[str, Any] = {"train": {"rounds": 1}, "clients": {"capacities": [1, 0.5]}}
    setup = submodel.train(net, data, settings, progress=False).setup
    assert (setup.population.count, setup.population.per_round) == (3, 3)
    assert data.owners is not None
    for client in range(3):
        assert np.array_equal(setup.clients.indices(client), data.owners.positions(client))
    settings["clients"] = {"count": 7, "per_round": 2}
    settings["data"] = {"partition": "natural"}
    with pytest.raises(SubmodelError, match=r"^clients\.count: 7 .*3"):
        submodel.train(net, data, settings, progress=False)


def test_a_torch_dataset_is_read_once() -> None:
    class Squares(torch.utils.data.Dataset[tuple[Tensor, int]]):
        def __len__(self) -> int:
            return 30

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return torch.full((4,), float(index)), index % 3

    data = submodel.dataset(Squares(), Squares())
    assert data.classes == 3
    assert torch.equal(data.train.x[7], torch.full((4,), 7.0))


@pytest.mark.slow
def test_smoothing_labels_is_torchs_own_also_where_labels_are_absent() -> None:
    settings = config(task={"label_smoothing": 0.2}, data={"partition": "labels",
                                                           "labels_per_client": 2})  # fmt: skip
    assert_close(both_engines(image_net(), images(), settings))
    kept = config(local={"absent_labels": "keep"})
    theirs = submodel.train(
        image_net(), images(), kept, loss=nn.CrossEntropyLoss(label_smoothing=0.2), progress=False
    )
    kept["task"] = {"label_smoothing": 0.2}
    ours = submodel.train(image_net(), images(), kept, progress=False)
    assert model_sha256(ours.state.tensors) == model_sha256(theirs.state.tensors)
