"""Models of `transformers`, built from a configuration: no weights are downloaded."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.model.zoo.entry import Entry, Inputs

VOCABULARY, STEPS = 29, 6


def _library() -> Any:
    return importlib.import_module("transformers")


def _ids() -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (2, STEPS))


def _gpt2() -> tuple[nn.Module, Inputs]:
    transformers = _library()
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=10,
        n_embd=24,
        n_layer=2,
        n_head=4,
        n_inner=56,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config), (_ids(),)


def _bert() -> tuple[nn.Module, Inputs]:
    transformers = _library()
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=10,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
        num_labels=5,
    )
    return transformers.BertForSequenceClassification(config), (_ids(),)


def _distilbert() -> tuple[nn.Module, Inputs]:
    transformers = _library()
    config = transformers.DistilBertConfig(
        vocab_size=VOCABULARY,
        dim=24,
        n_layers=2,
        n_heads=4,
        hidden_dim=40,
        max_position_embeddings=10,
        dropout=0,
        attention_dropout=0,
        seq_classif_dropout=0,
        num_labels=5,
    )
    return transformers.DistilBertForSequenceClassification(config), (_ids(),)


def _llama() -> tuple[nn.Module, Inputs]:
    transformers = _library()
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=44,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config), (_ids(),)


def _t5() -> tuple[nn.Module, Inputs]:
    transformers = _library()
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=24,
        d_kv=6,
        d_ff=40,
        num_layers=2,
        num_heads=4,
        relative_attention_num_buckets=8,
        dropout_rate=0,
        use_cache=False,
    )
    return transformers.T5ForConditionalGeneration(config), (_ids(), None, _ids()[:, :4])


def _logits(output: Any) -> Any:
    return output.logits


def _entry(name: str, make: Callable[[], tuple[nn.Module, Inputs]]) -> Entry:
    return Entry(name, make, _logits, mixes=True)


ENTRIES = (
    _entry("gpt2", _gpt2),
    _entry("bert", _bert),
    _entry("distilbert", _distilbert),
    _entry("llama", _llama),
    _entry("t5", _t5),
)
