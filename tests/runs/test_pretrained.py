"""Sub-models of models of transformers: a config says their sizes, and computes the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from submodel.errors import SubmodelError
from submodel.model.axes import Axes, trace
from submodel.model.build import build_module
from submodel.model.cut import UnitCut
from submodel.model.inputs import Inputs, call
from submodel.model.zoo import factorised
from submodel.runs.pretrained_folder import (
    NoConfigError,
    as_pretrained,
    first_output,
    is_pretrained,
)
from tests.model.zoo import hugging_face

ENTRIES = {entry.name: entry for entry in hugging_face.ENTRIES}


def whole_model(name: str) -> tuple[Any, Inputs, Axes]:
    torch.manual_seed(3)
    module, inputs = ENTRIES[name].make()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(3)  # so that attention is far from uniform, and scales count
    example: Inputs = inputs[0]
    if name == "t5":
        example = {"input_ids": inputs[0], "decoder_input_ids": inputs[2]}
    return module.eval(), example, trace(module, example)


def cut_of(axes: Axes, share: float, seed: int | None = None) -> UnitCut:
    """The first units of every axis, or some drawn at random."""
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
    """To what float32 leaves of logits that attention amplifies."""
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
    assert values.get("use_cache", True)  # generating is no training


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
        "no GPT2Config makes a model of the sub-model's sizes",
        "transformer.h.0.attn.c_attn.weight is (6, 24) in the sub-model and would be (6, 18)",
        "Another capacity may have one",
    ):
        assert words in str(caught.value)
    units = {"transformer.h.0.mlp.c_fc": np.arange(3)}  # and all 56 of the other layer
    with pytest.raises(NoConfigError, match=r"h\.[01]\.mlp\.c_fc\.weight is"):
        as_pretrained(build_module(module, UnitCut(axes, units)).eval(), example)


def test_layers_that_were_replaced_are_named() -> None:
    module, example, _ = whole_model("bert")
    low_rank = factorised(module, 0.5).eval()
    with pytest.raises(NoConfigError, match="other tensors than BertForSequenceClassification"):
        as_pretrained(low_rank, example)


def test_a_model_that_computes_something_else_is_refused() -> None:
    """A number that no layer can take up."""
    module, example, _ = whole_model("bert")
    module.bert.encoder.layer[0].attention.output.LayerNorm.eps = 0.5
    with pytest.raises(SubmodelError, match=r"LayerNorm\.eps is 5e\+11 times as large"):
        as_pretrained(module, example)
    assert is_pretrained(module)
