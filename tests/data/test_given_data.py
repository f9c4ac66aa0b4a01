"""Data from programs: arrays, and Hugging Face data sets in memory; and their representation."""

from __future__ import annotations

from typing import Any

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

import submodel
from submodel.core.errors import DataError
from submodel.data.examples import as_dataset
from tests.pins import errors

DRAWS = np.random.default_rng(0)
X = DRAWS.normal(size=(60, 8))
Y = (X[:, 0] > 0).astype(np.int32)
PARTS = (X[:40], Y[:40]), (X[40:], Y[40:])
CONFIG = {
    "data": {"partition": "iid"},
    "clients": {"count": 4, "per_round": 2},
    "train": {"rounds": 1},
}


def net(inputs: int = 8) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Linear(inputs, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
    return torch.nn.Sequential(torch.nn.Flatten(), *layers)


def trained(data: Any, inputs: int = 8) -> dict[str, bytes]:
    tensors = submodel.train(net(inputs), data, CONFIG, progress=False).state.tensors
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def tensors(part: tuple[Any, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(part[0], dtype=torch.float32), torch.tensor(part[1]).long()


def hub(columns: dict[str, Any], **kinds: Any) -> Any:
    """Use the first 40 rows for training, the others for testing."""
    whole = datasets.Dataset.from_dict(columns)
    for name, kind in kinds.items():
        whole = whole.cast_column(name, kind)
    rows = {"train": range(40), "test": range(40, 60)}
    return datasets.DatasetDict({name: whole.select(places) for name, places in rows.items()})


PETS = datasets.ClassLabel(names=["dog", "cat"])  # not in the order of the alphabet


def test_arrays_are_data() -> None:
    same = trained(submodel.dataset(*map(tensors, PARTS)))
    assert trained(PARTS) == trained(submodel.dataset(*PARTS)) == same
    read_only = np.ascontiguousarray(X[::-1])[::-1]
    read_only.flags.writeable = False
    assert torch.equal(submodel.dataset((read_only, Y), PARTS[1]).train.x, torch.tensor(X).float())


def test_columns_of_numbers_with_a_label_are_data() -> None:
    columns = {f"number {place}": X[:, place] for place in range(8)} | {"label": Y}
    data = hub(columns, label=PETS)
    same = trained(PARTS)
    assert trained(data) == same
    assert trained((data["train"].with_format("torch"), data["test"])) == same
    assert trained(hub({"x": X.tolist(), "label": Y})) == same
    assert submodel.dataset(*hub({"x": X[:, 0], "label": X[:, 1]}).values()).outputs == 1


def test_images_with_a_label_are_data() -> None:
    pixels = DRAWS.integers(0, 256, (60, 4, 4), dtype=np.uint8)
    pictures = [Image.fromarray(each) for each in pixels]
    data = as_dataset(hub({"image": pictures, "label": Y}, image=datasets.Image(), label=PETS))
    assert data.about.names == ("dog", "cat")
    assert data.train.y.tolist() == Y[:40].tolist()
    assert float(data.train.x.mean()) == pytest.approx(0, abs=1e-6)  # normalised by the channel
    assert trained(data, inputs=16)


WRONG: dict[str, tuple[Any, str]] = {
    "a part alone": (lambda: hub({"x": X[:, 0], "label": Y})["train"], "^data: one part"),
    "no test part": (
        lambda: datasets.DatasetDict({"train": hub({"x": X[:, 0], "label": Y})["train"]}),
        "^data: .*'train' and 'test'",
    ),
    "inputs and targets alone": (lambda: (X, Y), "^training data: .*ndarray"),
    "words": (
        lambda: hub({"x": ["a"] * 60, "label": Y}),
        r"^data: column 'x' .*remove_columns\('x'\)",
    ),
    "no label": (lambda: hub({"x": X[:, 0], "y": Y}), "^data: .*class labels"),
    "a label alone": (lambda: hub({"label": Y}), "^data: .*'label'"),
    "an array of words": (lambda: ((np.array(["a"] * 60), Y), PARTS[1]), " <U1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_data_is_told(case: str) -> None:
    make, reason = WRONG[case]
    with pytest.raises(DataError, match=reason) as caught:
        submodel.train(net(), make(), CONFIG, progress=False)
    errors.check("given data", case, caught.value)


def test_inputs_of_trace_and_build_may_be_arrays() -> None:
    module, example = net(), X[:2]
    axes = submodel.trace(module, example)
    small = submodel.build(module, axes, {"1": np.array([0, 3])}, example_inputs=example)
    assert small.get_submodule("1").weight.shape == (2, 8)


def test_data_is_shown_in_a_line() -> None:
    text = repr(submodel.digits())
    assert text == (
        "Dataset(train=Examples(1,442: float32 1 x 8 x 8, targets int64), "
        "test=Examples(355: float32 1 x 8 x 8, targets int64), classes=10)"
    )
    named = submodel.dataset(*[({"a": torch.ones(3, 2), "b": torch.ones(3)}, torch.arange(3))] * 2)
    assert repr(named.train) == "Examples(3: a float32 2, b float32, targets int64)"
