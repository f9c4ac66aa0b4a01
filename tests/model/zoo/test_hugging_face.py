"""Models of a config class of transformers: made for the data, or refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from submodel.core.errors import ConfigError
from submodel.core.options import FreeOptions
from submodel.model.builtin_models import MODELS
from submodel.model.zoo import ModelContext
from tests.support.tokens import LENGTH, VOCABULARY

LANGUAGE = ModelContext((LENGTH,), VOCABULARY, VOCABULARY, "language")
LABELS = ModelContext((LENGTH,), 4, VOCABULARY, "classification")
GPT2 = {"n_layer": 2, "n_embd": 16, "n_head": 2}
BERT = {
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
}


def make(name: str, options: dict[str, Any], context: ModelContext) -> Any:
    model = MODELS.find(f"transformers:{name}")
    return model.make(FreeOptions(options=options), context).eval()


def test_sizes_are_those_of_the_data() -> None:
    model = make("GPT2Config", GPT2, LANGUAGE)
    assert type(model).__name__ == "GPT2LMHeadModel"
    assert model.transformer.wte.weight.shape == (VOCABULARY, 16)
    assert model.transformer.wpe.weight.shape == (LENGTH, 16)
    assert not model.config.use_cache
    assert model.config.eos_token_id is None  # 50256 is none of these tokens
    assert model.config.resid_pdrop == 0.1  # like in transformers


def test_larger_sizes_that_are_given_stay() -> None:
    options = {**GPT2, "vocab_size": 40, "n_positions": 20, "eos_token_id": 39}
    model = make("GPT2Config", options, LANGUAGE)
    assert model.transformer.wte.weight.shape == (40, 16)
    assert model.transformer.wpe.weight.shape == (20, 16)
    assert model.config.eos_token_id == 39


@pytest.mark.parametrize(("name", "extra"), [("BertConfig", 0), ("RobertaConfig", 2)])
def test_labels_make_a_classifier(name: str, extra: int) -> None:
    model = make(name, BERT, LABELS)
    assert type(model).__name__ == name.replace("Config", "ForSequenceClassification")
    assert model.config.max_position_embeddings == LENGTH + extra  # RoBERTa's begin after padding
    assert model(torch.full((3, LENGTH), VOCABULARY - 1)).logits.shape == (3, 4)


def test_images_make_a_classifier_of_images() -> None:
    options = {**BERT, "patch_size": 4}
    model = make("ViTConfig", options, ModelContext((1, 8, 8), 10, None, "classification"))
    assert model(torch.zeros(2, 1, 8, 8)).logits.shape == (2, 10)


@pytest.mark.parametrize(("name", "options"), [("GPT2Config", GPT2), ("BertConfig", BERT)])
def test_no_place_sees_the_token_that_it_is_to_tell(name: str, options: dict[str, Any]) -> None:
    model = make(name, options, LANGUAGE)
    tokens = torch.arange(LENGTH)[None]
    changed = tokens.clone()
    changed[0, 5] = 20
    with torch.no_grad():
        before, after = model(tokens).logits, model(changed).logits
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


BAD: list[tuple[str, dict[str, Any], ModelContext, str]] = [
    ("GPT2Config", {"vocab_size": 28}, LANGUAGE, "model.options.vocab_size: 28 .*29 tokens"),
    ("GPT2Config", {"n_positions": 7}, LANGUAGE, "model.options.n_positions: 7 .*8 positions"),
    (
        "GPT2Config",
        {"max_position_embeddings": 7},
        LANGUAGE,
        "model.options.max_position_embeddings: 7 .*8 positions",
    ),
    ("BertConfig", {"num_labels": 3}, LABELS, "model.options.num_labels: 3 .*4 classes"),
    ("GPT2Config", {"eos_token_id": 29}, LANGUAGE, "model.options.eos_token_id: 29 .*29 tokens"),
    ("GPT2Config", {"use_cache": True}, LANGUAGE, "model.options.use_cache: .*cache"),
    ("GPT2Config", {"n_layers": 2}, LANGUAGE, "model.options.n_layers: GPT2Config "),
    ("ViTConfig", {}, LANGUAGE, "model.name: .*CausalLM .*ViTConfig"),
]


@pytest.mark.parametrize(("name", "options", "context", "reason"), BAD)
def test_what_does_not_fit_is_said(
    name: str, options: dict[str, Any], context: ModelContext, reason: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{reason}.*$"):
        make(name, options, context)


def test_other_paths_are_as_they_were() -> None:
    made = MODELS.find("torch.nn:Linear").make(
        FreeOptions(options={"in_features": 2, "out_features": 3}), LABELS
    )
    assert isinstance(made, nn.Linear)
