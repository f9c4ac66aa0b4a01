"""Models of `transformers`, built from configurations: no weights are downloaded."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.model.nets import Entry, Inputs

VOCABULARY, STEPS = 29, 6
TEXT = {"vocab_size": VOCABULARY, "num_hidden_layers": 1, "num_attention_heads": 4}
TEXT |= {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
DECODER: dict[str, Any] = TEXT | {"hidden_size": 32, "intermediate_size": 44}
DECODER |= {"num_key_value_heads": 2, "max_position_embeddings": 16}
ROUTED = {"num_local_experts": 4, "num_experts_per_tok": 2}
ENCODER: dict[str, Any] = TEXT | {"hidden_size": 24, "intermediate_size": 40, "num_labels": 5}
ENCODER |= {"max_position_embeddings": 20}
VISION: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4}
VISION |= {"intermediate_size": 40, "image_size": 16, "patch_size": 4, "num_labels": 5}
STAGES: dict[str, Any] = {"image_size": 32, "embed_dim": 12, "num_labels": 5}
SPEECH: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "conv_dim": (12, 16),
    "conv_kernel": (4, 3),
    "conv_stride": (2, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 16,
    "num_labels": 5,
    "vocab_size": VOCABULARY,
    "apply_spec_augment": False,
}
SEQUENCES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 36,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": None,
}


def _library() -> Any:
    return importlib.import_module("transformers")


def _ids() -> Tensor:
    return torch.randint(3, VOCABULARY, (2, STEPS))


def _logits(output: Any) -> Any:
    return output.logits


def _text() -> Inputs:
    return (_ids(),)


def _pair() -> Inputs:
    return (_ids(), None, _ids()[:, :4])


def _sound() -> Inputs:
    return (torch.randn(2, 60),)


def _image(size: int = 16) -> Callable[[], Inputs]:
    return lambda: (torch.randn(2, 3, size, size),)


def _entry(
    name: str,
    config: str,
    model: str,
    inputs: Callable[[], Inputs],
    outputs: Callable[[Any], Tensor] = _logits,
    mixes: bool = True,
    **settings: Any,
) -> Entry:
    def factory() -> tuple[nn.Module, Inputs]:
        library = _library()
        made = getattr(library, config)(**settings)
        made.use_cache = False
        return getattr(library, model)(made), inputs()

    return Entry(name, factory, outputs, mixes=mixes)


def _causal(name: str, prefix: str, **settings: Any) -> Entry:
    given = DECODER | settings
    return _entry(name, f"{prefix}Config", f"{prefix}ForCausalLM", _text, **given)


def _text_class(name: str, prefix: str, **settings: Any) -> Entry:
    model = f"{prefix}ForSequenceClassification"
    return _entry(name, f"{prefix}Config", model, _text, **(ENCODER | settings))


def _image_class(name: str, prefix: str, size: int = 16, **settings: Any) -> Entry:
    model = f"{prefix}ForImageClassification"
    return _entry(name, f"{prefix}Config", model, _image(size), **settings)


def _sound_class(name: str, prefix: str, **settings: Any) -> Entry:
    model = f"{prefix}ForSequenceClassification"
    return _entry(name, f"{prefix}Config", model, _sound, **(SPEECH | settings))


OPT: dict[str, Any] = TEXT | {"hidden_size": 24, "max_position_embeddings": 16}
FALCON = {k: v for k, v in DECODER.items() if k != "num_key_value_heads"}
LAYERS: dict[str, Any] = TEXT | {"num_hidden_layers": 2}
GPT2: dict[str, Any] = {"vocab_size": VOCABULARY, "n_positions": 10, "n_embd": 24, "n_layer": 2}
GPT2 |= {"n_head": 4, "n_inner": 56, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
GPT2 |= {"bos_token_id": 0, "eos_token_id": 0}
BERT: dict[str, Any] = LAYERS | {"hidden_size": 24, "intermediate_size": 40, "num_labels": 5}
BERT |= {"max_position_embeddings": 10, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
DISTILBERT: dict[str, Any] = {"vocab_size": VOCABULARY, "dim": 24, "n_layers": 2, "n_heads": 4}
DISTILBERT |= {"hidden_dim": 40, "max_position_embeddings": 10, "dropout": 0, "num_labels": 5}
DISTILBERT |= {"attention_dropout": 0, "seq_classif_dropout": 0}
LLAMA: dict[str, Any] = DECODER | {"num_hidden_layers": 2}
T5: dict[str, Any] = {"vocab_size": VOCABULARY, "d_model": 24, "d_kv": 6, "d_ff": 40}
T5 |= {"num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8, "dropout_rate": 0}
ENTRIES = (
    _entry("gpt2", "GPT2Config", "GPT2LMHeadModel", _text, **GPT2),
    _entry("bert", "BertConfig", "BertForSequenceClassification", _text, **BERT),
    _entry(
        "distilbert",
        "DistilBertConfig",
        "DistilBertForSequenceClassification",
        _text,
        **DISTILBERT,
    ),
    _entry("llama", "LlamaConfig", "LlamaForCausalLM", _text, **LLAMA),
    _entry("t5", "T5Config", "T5ForConditionalGeneration", _pair, **T5),
)
MORE = (
    _causal("mixtral", "Mixtral", **ROUTED),
    _causal("gpt-oss", "GptOss", head_dim=8, sliding_window=4, **ROUTED),
    _causal(
        "qwen3-moe",
        "Qwen3Moe",
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=20,
    ),
    _causal("gemma2", "Gemma2", head_dim=8, query_pre_attn_scalar=8, sliding_window=4),
    _causal("gpt-neox", "GPTNeoX"),
    _entry(
        "falcon",
        "FalconConfig",
        "FalconForCausalLM",
        _text,
        new_decoder_architecture=True,
        num_kv_heads=2,
        **FALCON,
    ),
    _entry(
        "falcon-alibi",
        "FalconConfig",
        "FalconForCausalLM",
        _text,
        alibi=True,
        multi_query=False,
        **FALCON,
    ),
    _entry(
        "codegen",
        "CodeGenConfig",
        "CodeGenForCausalLM",
        _text,
        vocab_size=VOCABULARY,
        n_positions=16,
        n_ctx=16,
        n_embd=32,
        n_layer=1,
        n_head=4,
        rotary_dim=4,
        bos_token_id=0,
        eos_token_id=0,
    ),
    _entry("opt", "OPTConfig", "OPTForCausalLM", _text, ffn_dim=40, word_embed_proj_dim=20, **OPT),
    _entry(
        "mamba",
        "MambaConfig",
        "MambaForCausalLM",
        _text,
        vocab_size=VOCABULARY,
        hidden_size=24,
        state_size=6,
        num_hidden_layers=1,
        conv_kernel=3,
        time_step_rank=5,
    ),
    _entry(
        "xlstm",
        "xLSTMConfig",
        "xLSTMForCausalLM",
        _text,
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_heads=4,
        num_hidden_layers=1,
        num_blocks=1,
        chunk_size=8,
        return_last_states=False,
        chunkwise_kernel="chunkwise--native_autograd",
        sequence_kernel="native_sequence__native",
        step_kernel="native",
    ),
    _text_class("albert", "Albert", embedding_size=16),
    _text_class("electra", "Electra", embedding_size=16),
    _text_class("roformer", "RoFormer", embedding_size=16),
    _entry("bart", "BartConfig", "BartForConditionalGeneration", _pair, **SEQUENCES),
    _sound_class("wav2vec2", "Wav2Vec2"),
    _sound_class("hubert", "Hubert"),
    _sound_class("wavlm", "WavLM"),
    _sound_class(
        "wav2vec2-conformer",
        "Wav2Vec2Conformer",
        conv_depthwise_kernel_size=3,
        position_embeddings_type="relative",
    ),
    _image_class("dinov2", "Dinov2", mlp_ratio=2, **VISION),
    _image_class("beit", "Beit", use_relative_position_bias=True, out_indices=[1], **VISION),
    _image_class(
        "cvt",
        "Cvt",
        32,
        embed_dim=[12, 16, 24],
        num_heads=[1, 2, 3],
        depth=[1, 2, 3],
        patch_stride=[2, 2, 2],
        mlp_ratio=[2.0, 2.0, 2.0],
        num_labels=5,
    ),
    _image_class(
        "focalnet",
        "FocalNet",
        32,
        depths=[1, 1],
        hidden_sizes=[24, 48],
        focal_levels=[2, 2],
        focal_windows=[3, 3],
        **STAGES,
    ),
    _image_class(
        "swin",
        "Swinv2",
        32,
        depths=[2, 1],
        num_heads=[2, 4],
        window_size=4,
        mlp_ratio=2.0,
        patch_size=4,
        **STAGES,
    ),
    _image_class(
        "hiera",
        "Hiera",
        32,
        depths=[1, 1],
        num_heads=[1, 2],
        patch_size=[7, 7],
        patch_stride=[4, 4],
        patch_padding=[3, 3],
        masked_unit_size=[2, 2],
        query_stride=[2, 2],
        num_query_pool=1,
        masked_unit_attention=[True, False],
        **(STAGES | {"image_size": [32, 32]}),
    ),
    _image_class(
        "convnext", "ConvNext", hidden_sizes=[8, 12], depths=[1, 1], num_stages=2, num_labels=5
    ),
    _entry(
        "segformer",
        "SegformerConfig",
        "SegformerForSemanticSegmentation",
        _image(32),
        hidden_sizes=[8, 16, 24, 32],
        num_attention_heads=[1, 2, 4, 4],
        depths=[1, 1, 1, 1],
        sr_ratios=[4, 2, 2, 1],
        mlp_ratios=[2, 2, 2, 2],
        decoder_hidden_size=20,
        num_labels=5,
    ),
)

LEVIT = _image_class(
    "levit",
    "Levit",
    64,
    image_size=64,
    hidden_sizes=[16, 24, 32],
    num_attention_heads=[2, 3, 4],
    depths=[1, 1, 1],
    key_dim=[4, 4, 4],
    num_labels=5,
    mixes=False,
)
"""It caches computed weights, so permutations of the weights have no effect."""
