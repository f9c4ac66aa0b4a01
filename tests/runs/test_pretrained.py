"""Sub-models of models of transformers: their configs, runs of them, and exports."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import submodel as package
from submodel.core.errors import SubmodelError
from submodel.model.axes import Axes, trace
from submodel.model.build import build_module
from submodel.model.cut import UnitCut, prefix_cut
from submodel.model.inputs import Inputs, call
from submodel.model.zoo import factorised
from submodel.runs.export import write_pretrained
from submodel.runs.pretrained import (
    NoConfigError,
    as_pretrained,
    first_output,
    is_pretrained,
)
from tests.model.zoo import hugging_face
from tests.support.commands import Command
from tests.support.text import folder_of

pytestmark = pytest.mark.slow

ENTRIES = {entry.name: entry for entry in hugging_face.ENTRIES}


def whole_model(name: str) -> tuple[Any, Inputs, Axes]:
    torch.manual_seed(3)
    module, inputs = ENTRIES[name].make()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(3)  # so that attention is far from uniform, and scales matter
    example: Inputs = inputs[0]
    if name == "t5":
        example = {"input_ids": inputs[0], "decoder_input_ids": inputs[2]}
    return module.eval(), example, trace(module, example)


def cut_of(axes: Axes, share: float, seed: int | None = None) -> UnitCut:
    """Return the first units of every axis, or random ones."""
    units: dict[str, NDArray[np.int64]] = {}
    draws = np.random.default_rng(seed)
    for axis, size in axes.cut_by_capacity.items():
        count = max(1, int(np.ceil(share * size)))
        order = np.arange(size) if seed is None else draws.permutation(size)
        units[axis] = np.sort(order[:count])
    return UnitCut(axes, units)


def computed(module: nn.Module, example: Inputs) -> torch.Tensor:
    with torch.no_grad():
        return first_output(call(module, example))


def assert_same(model: nn.Module, small: nn.Module, example: Inputs) -> None:
    """Compare up to float32 errors of logits, which attention amplifies."""
    expected = computed(small, example)
    tolerance = 1e-5 * float(expected.abs().max())
    torch.testing.assert_close(computed(model, example), expected, rtol=0, atol=tolerance)


SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 12, "n_inner": 28, "n_head": 4},
    "bert": {"hidden_size": 12, "intermediate_size": 20, "num_attention_heads": 4},
    "distilbert": {"dim": 12, "hidden_dim": 20, "n_heads": 4},
    "llama": {"hidden_size": 16, "intermediate_size": 22, "head_dim": 4,
              "num_attention_heads": 4, "num_key_value_heads": 2},
    "t5": {"d_model": 24, "d_kv": 3, "d_ff": 20, "num_heads": 4},
}  # fmt: skip


@pytest.mark.every(3)
@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("name", SIZES)
def test_half_of_a_model_has_a_config(name: str, seed: int | None) -> None:
    module, example, axes = whole_model(name)
    small = build_module(module, cut_of(axes, 0.5, seed)).eval()
    model: Any = as_pretrained(small, example)
    assert type(model) is type(module)
    values = model.config.to_dict()
    assert {key: values[key] for key in SIZES[name]} == SIZES[name]
    assert_same(model, small, example)
    assert {n: t.shape for n, t in model.state_dict().items()} == {
        n: t.shape for n, t in small.state_dict().items()
    }


@pytest.mark.parametrize("name", SIZES)
def test_all_of_a_model_keeps_its_config(name: str) -> None:
    module, example, _ = whole_model(name)
    values = as_pretrained(module, example).config.to_dict()  # type: ignore[operator, union-attr]
    assert values | {"use_cache": None} == module.config.to_dict() | {"use_cache": None}
    assert values.get("use_cache", True)  # generation is not training


def test_heads_that_are_left_out_are_fewer_heads() -> None:
    """Two heads of six have the shapes of four heads of three."""
    module, example, axes = whole_model("gpt2")
    heads = {axis: np.array([0, 2]) for axis in axes.sizes if axis.endswith("c_attn#1")}
    width = {"transformer.wte": np.arange(12)}
    small = build_module(module, UnitCut(axes, {**heads, **width})).eval()
    model: Any = as_pretrained(small, example)
    assert (model.config.n_embd, model.config.n_head, model.config.n_inner) == (12, 2, 56)
    assert_same(model, small, example)


def test_the_first_frequencies_are_those_of_another_base() -> None:
    module, example, axes = whole_model("llama")
    model: Any = as_pretrained(build_module(module, cut_of(axes, 0.5)).eval(), example)
    assert model.config.rope_parameters == {"rope_type": "default", "rope_theta": 100.0}
    units = {"model.rotary_emb.inv_freq": np.array([1, 3])}  # 1/10 and 1/1000
    model = as_pretrained(build_module(module, UnitCut(axes, units)).eval(), example)
    parameters = model.config.rope_parameters
    assert parameters["rope_type"] == "longrope"
    assert parameters["short_factor"] == pytest.approx([10, 10])  # of 1 and 1/100


def test_sizes_that_no_config_says_are_refused() -> None:
    module, example, axes = whole_model("gpt2")
    with pytest.raises(NoConfigError) as caught:
        as_pretrained(build_module(module, cut_of(axes, 0.25)).eval(), example)
    for words in (
        "GPT2Config",
        "transformer.h.0.attn.c_attn.weight",
        "(6, 24)",
        "(6, 18)",
    ):
        assert words in str(caught.value)
    units = {"transformer.h.0.mlp.c_fc": np.arange(3)}  # and all 56 of the other layer
    with pytest.raises(NoConfigError, match=r"h\.[01]\.mlp\.c_fc\.weight"):
        as_pretrained(build_module(module, UnitCut(axes, units)).eval(), example)


def test_layers_that_were_replaced_are_named() -> None:
    module, example, _ = whole_model("bert")
    low_rank = factorised(module, 0.5).eval()
    with pytest.raises(NoConfigError, match="BertForSequenceClassification"):
        as_pretrained(low_rank, example)


def test_a_model_that_computes_something_else_is_refused() -> None:
    """No layer can absorb the number."""
    module, example, _ = whole_model("bert")
    module.bert.encoder.layer[0].attention.output.LayerNorm.eps = 0.5
    with pytest.raises(SubmodelError, match=r"LayerNorm\.eps .*5e\+11"):
        as_pretrained(module, example)
    assert is_pretrained(module)


WORDS = ["the", "whale", "rose", "and", "the", "men", "cried", "and", "the", "sea", "ran", "on"]
CONFIG = """
name = "pretrained"
[data]
name = "text:{text}"
tokens = "{tokens}"
length = 8
{keys}
[model]
name = "transformers:{kind}"
[model.options]
{options}
[clients]
capacities = [1, 0.5, 0.25]
[local]
epochs = 1
[train]
rounds = {rounds}
"""
GPT2 = "n_embd = 16\nn_head = 2\nn_layer = 1"
LLAMA = """hidden_size = 16
intermediate_size = 24
num_attention_heads = 2
num_key_value_heads = 1
num_hidden_layers = 1"""


def written_config(
    folder: Path,
    kind: str = "GPT2Config",
    options: str = GPT2,
    tokens: str = "bpe",
    rounds: int = 2,
) -> Path:
    texts = {
        f"{client}.txt": " ".join(WORDS[(client * i) % len(WORDS)] for i in range(1, 90))
        for client in (1, 2, 3)
    }
    text = folder_of(folder / "text", texts)
    keys = "vocabulary = 270" if tokens == "bpe" else ""
    path = folder / "config.toml"
    path.write_text(
        CONFIG.format(
            text=text, kind=kind, options=options, tokens=tokens, keys=keys, rounds=rounds
        )
    )
    return path


@pytest.fixture(scope="module")
def transformers() -> Any:
    return importlib.import_module("transformers")


def test_every_command_takes_a_config_class(
    tmp_path: Path, submodel: Command, transformers: Any
) -> None:
    config, run = written_config(tmp_path), tmp_path / "run"
    cost = submodel("cost", config)
    assert "0.25" in cost.stdout, cost.stderr
    plan = submodel("plan", config, "--memory", "1GB")
    assert plan.stdout.startswith("capacity 1 fits memory 1 G"), plan.stderr
    sizes = [word for key in GPT2.split("\n") for word in ("--set", key.replace(" ", ""))]
    inspect = submodel("inspect", "transformers:GPT2Config", *sizes)
    assert "verified: permuting every axis" in inspect.stdout, inspect.stderr
    assert submodel("train", config, "--out", run).returncode == 0
    for capacity, width in (("1", 16), ("1/2", 8), ("1/4", 4)):
        exported = submodel("export", run, "--capacity", capacity, "--format", "huggingface")
        assert exported.returncode == 0, exported.stderr
        assert exported.stderr == ""
        folder = run / f"export/capacity-{width / 16:g}"
        assert exported.stdout.startswith(f"{folder}/model.safetensors: capacity {width / 16:g}")
    for capacity, width in (("1", 16), ("1/2", 8), ("1/4", 4)):
        folder = run / f"export/capacity-{width / 16:g}"
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        assert model.config.n_embd == width
        ours: Any = package.open(run).submodel(capacity)
        tokeniser = transformers.AutoTokenizer.from_pretrained(folder)
        tokens = tokeniser("the sea", return_tensors="pt")["input_ids"]
        assert tokeniser.decode(tokens[0]) == "the sea"
        with torch.no_grad():
            torch.testing.assert_close(model(tokens).logits, ours(tokens).logits)
        assert model.generate(tokens, max_new_tokens=2, do_sample=False).shape[1] > tokens.shape[1]
        assert not list(folder.glob(".partial*"))
    assert submodel("resume", run, "--set", "train.rounds=3").returncode == 0


def test_a_llama_in_the_middle_of_an_epoch(
    tmp_path: Path, submodel: Command, transformers: Any
) -> None:
    """After one round the windows have moved, so frequencies are not the first ones."""
    config = written_config(tmp_path, "LlamaConfig", LLAMA, "bytes", rounds=1)
    run = tmp_path / "run"
    assert submodel("train", config, "--out", run).returncode == 0
    path, score = package.open(run).export("1/2", "huggingface", tmp_path / "out")
    model = transformers.LlamaForCausalLM.from_pretrained(path.parent)
    assert (model.config.hidden_size, model.config.head_dim) == (8, 4)
    assert model.config.rope_parameters["rope_type"] == "longrope"
    ours: Any = package.open(run).submodel("1/2")
    tokens = torch.tensor([list(b"the sea")])
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, ours(tokens).logits)
    assert not (path.parent / "tokenizer.json").exists()  # bytes are tokens
    assert score is not None
    assert json.loads((path.parent / "model.json").read_text())["score"]["loss"] == score.loss


def test_what_has_no_such_form_is_said(tmp_path: Path, submodel: Command) -> None:
    options = GPT2.replace("16", "24").replace("n_head = 2", "n_head = 4")  # heads of 6 units
    config, run = (
        written_config(tmp_path, options=options, tokens="bytes", rounds=1),
        tmp_path / "r",
    )
    assert submodel("train", config, "--out", run).returncode == 0
    refused = submodel("export", run, "--capacity", "1/4", "--format", "huggingface")
    assert refused.returncode == 2
    assert re.search("error: export: format 'huggingface': .*GPT2Config", refused.stderr)
    assert list((run / "export/capacity-0.25").iterdir()) == []
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4), torch.nn.Linear(4, 10))
    own = tmp_path / "own"
    package.train(net, package.digits(), {"train": {"rounds": 1}}, out=own)
    with pytest.raises(SubmodelError, match=r"transformers.*Sequential"):
        package.open(own, model=net, data=package.digits()).export(1, "huggingface")


WIDTH: dict[str, Any] = {"vocab_size": 40, "max_position_embeddings": 16, "use_cache": False}
ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "experts, whose product knows no double precision": (
        "Qwen2MoeConfig", "Qwen2MoeForCausalLM",
        {"hidden_size": 32, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40,
         "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
         "num_experts": 4, "num_experts_per_tok": 2},
    ),
    "a scale of words that the classifier shares": (
        "BioGptConfig", "BioGptForCausalLM",
        {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
         "num_attention_heads": 4},
    ),
    "positions that the library does not save": (
        "MarianConfig", "MarianMTModel",
        {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 56,
         "pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1},
    ),
    "positions that a config computes": (
        "XGLMConfig", "XGLMForCausalLM",
        {"d_model": 32, "ffn_dim": 48, "num_layers": 1, "attention_heads": 4},
    ),
}  # fmt: skip


def architecture(case: str) -> tuple[nn.Module, dict[str, torch.Tensor], Axes]:
    library: Any = importlib.import_module("transformers")
    config, kind, options = ARCHITECTURES[case]
    torch.manual_seed(3)
    model = getattr(library, kind)(getattr(library, config)(**WIDTH, **options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # so that attention is far from uniform
    example = {"input_ids": torch.randint(2, 40, (2, 7))}
    if kind == "MarianMTModel":
        example["decoder_input_ids"] = torch.randint(2, 40, (2, 5))
    return model, example, trace(model, example, outputs=lambda result: result.logits)


@pytest.mark.every(2)
@pytest.mark.parametrize("case", ARCHITECTURES)
@pytest.mark.parametrize("share", [0.5, 1])
def test_sub_models_load_and_compute_the_same(case: str, share: float, tmp_path: Path) -> None:
    model, example, axes = architecture(case)
    small = build_module(model, prefix_cut(axes, share)).eval()
    if share < 1 and "a config computes" in case:
        with pytest.raises(SubmodelError, match=r"embed_positions\.weights"):
            write_pretrained(small, example, None, tmp_path)
        return
    write_pretrained(small, example, None, tmp_path)
    loaded: Any = type(model)
    loaded = loaded.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected = small(**example).logits
        torch.testing.assert_close(
            loaded(**example).logits, expected, rtol=0, atol=1e-5 * float(expected.abs().max())
        )


def test_a_model_that_the_library_cannot_run_is_refused(tmp_path: Path) -> None:
    """Its grouped product needs widths of 16 bytes; sub-models here are padded."""
    model, example, axes = architecture("experts, whose product knows no double precision")
    small = build_module(model, prefix_cut(axes, 0.25)).eval()
    with pytest.raises(SubmodelError, match="run"):
        write_pretrained(small, example, None, tmp_path)
    assert not any(tmp_path.iterdir())
