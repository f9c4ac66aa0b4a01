"""Tasks in training: what a user tries first, on both local engines, from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

import submodel
from submodel.errors import SubmodelError
from submodel.runs.checkpoint import model_sha256

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
    """The serial engine's result, and that of stacks."""
    return [
        submodel.train(
            net, data, {**settings, "engine": {"name": "local", "batching": batching}},
            progress=False,
        )
        for batching in ("never", "always")
    ]  # fmt: skip


def assert_close(results: list[Any], tolerance: float = 1e-5) -> None:
    serial, stacked = (result.state.tensors for result in results)
    for name, tensor in serial.items():
        torch.testing.assert_close(stacked[name], tensor, rtol=tolerance, atol=tolerance)


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
    """Takes numbers and a mask by name."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """Logits of what is not masked."""
        outputs: Tensor = self.last(torch.relu(self.first(values * mask)))
        return outputs


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
    with pytest.raises(SubmodelError, match=r"clients.count: 7 given, but the data is of 3"):
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
