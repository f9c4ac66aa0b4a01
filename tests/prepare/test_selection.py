"""Models that return an object with logits are trained on the logits automatically."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import submodel
from submodel.config import parse
from submodel.config.model_facts import (
    logits_of,
    returns_logits,
    select_outputs,
    selection_of,
    without_selection,
)
from submodel.runs.folder import RunFolder
from submodel.runs.loop import run_rounds
from submodel.runs.training import Material
from tests.support.tokens import LENGTH, VOCABULARY, tiny_labelled_text, tiny_text, token_loss

OPTIONS = {
    "n_layer": 2,
    "n_embd": 16,
    "n_head": 2,
    "resid_pdrop": 0,
    "embd_pdrop": 0,
    "attn_pdrop": 0,
}
SECTIONS: dict[str, Any] = {
    "data": {"partition": "iid"},
    "clients": {"count": 4, "per_round": 4, "capacities": [1, 0.5, 0.25]},
    "local": {"lr": 0.5, "batch_size": 7, "absent_labels": "keep"},
    "train": {"rounds": 3},
}


def gpt2() -> Any:
    transformers: Any = importlib.import_module("transformers")
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, bos_token_id=0, eos_token_id=0, **OPTIONS
    )
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config)


class Pair(nn.Linear):
    """A model that returns two tensors, neither named logits."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


def test_logits_are_selected_and_nothing_else() -> None:
    tokens = tiny_text().train.x[:2]
    model = gpt2()
    assert returns_logits(model, tokens)
    selecting = select_outputs(model, logits_of)
    assert torch.equal(selecting.eval()(tokens), model.eval()(tokens).logits)
    assert selection_of(model) is None
    assert without_selection(selecting)(tokens).logits.shape == (2, LENGTH, VOCABULARY)
    for other, example in ((nn.Linear(2, 2), torch.ones(1, 2)), (Pair(2, 2), torch.ones(1, 2))):
        assert not returns_logits(other, example)


def test_what_the_user_selects_stays() -> None:
    model = select_outputs(gpt2(), lambda returned: returned.logits[:, -1])
    assert not returns_logits(model, tiny_text().train.x[:2])


def test_a_model_that_does_not_run_is_left_for_the_check_of_the_fit() -> None:
    model = nn.Linear(3, 2)
    assert not returns_logits(model, torch.ones(1, 2))
    with pytest.raises(submodel.SubmodelError, match=r"run on .*input"):
        submodel.train(model, tiny_labelled_text(), SECTIONS, progress=False)


@pytest.mark.slow
def test_a_model_of_transformers_trains_from_python() -> None:
    result = submodel.train(gpt2(), tiny_text(), SECTIONS, loss=token_loss, progress=False)
    selection = selection_of(result.setup.module)
    assert selection is not None
    assert selection.outputs is logits_of
    losses = [line["test_loss"] for line in result.history if line.get("test_loss") is not None]
    assert losses[-1] < 0.99 * torch.tensor(VOCABULARY).log()
    logits = result.submodel("1/4")(tiny_text().test.x).logits  # it returns the object of its class
    assert logits.shape == (56, LENGTH, VOCABULARY)


@pytest.mark.slow
def test_a_config_class_trains_from_a_configuration_and_resumes(tmp_path: Path) -> None:
    model = {"name": "transformers:GPT2Config", "options": OPTIONS}
    config = parse({**SECTIONS, "model": model})
    material = Material(data=tiny_text(), loss=token_loss)
    folder = RunFolder(tmp_path / "run")
    folder.create(config)
    state, history = run_rounds(material.training(config), folder)
    assert history[-1]["test_loss"] < history[0]["train_loss"]
    assert state.tensors["transformer.wte.weight"].shape == (VOCABULARY, 16)
    again, _ = run_rounds(material.training(config), folder, resume=True)
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in state.tensors.items())


@pytest.mark.slow
def test_labels_are_classified_from_a_configuration() -> None:
    options = {
        "num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 24,
        "num_attention_heads": 2, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0,
    }  # fmt: skip
    model = {"name": "transformers:BertConfig", "options": options}
    training = Material(data=tiny_labelled_text()).training(parse({**SECTIONS, "model": model}))
    _, history = run_rounds(training)
    assert "test_accuracy" in history[-1]
