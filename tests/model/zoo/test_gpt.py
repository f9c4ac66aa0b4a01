"""The built-in transformer: its function, its cuts, and training in stacks."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch.nn import functional

from submodel.config import parse
from submodel.config.model_facts import identify
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError
from submodel.data import dataset
from submodel.engines.batched.vmap import MappedForward
from submodel.model.axes import trace
from submodel.model.build import build_module
from submodel.model.inspect import inspect_axes, subject
from submodel.model.zoo import ModelContext, make_model
from submodel.model.zoo.gpt import Decoder
from submodel.schemes import Draw, Static
from submodel.schemes.draw import draw_units
from tests.model.nets import randomise
from tests.support.common import tiny_images
from tests.support.engines import EXACT_TOLERANCE, assert_equal_updates
from tests.support.reference import RestrictedStatistics, masked
from tests.support.tokens import LENGTH, VOCABULARY, tiny_text, token_loss

SECTIONS = {
    "model": {"name": "gpt", "width": 16, "layers": 2, "heads": 2},
    "data": {"partition": "iid"},
    "clients": {"count": 7, "per_round": 7, "capacities": [1, 0.5, 0.25]},
    "local": {"lr": 0.05, "batch_size": 4, "absent_labels": "keep"},
}


def decoder() -> Decoder:
    torch.manual_seed(0)
    module = Decoder(LENGTH, VOCABULARY, width=16, layers=2, heads=2).double()
    randomise(module)
    return module.eval()


def test_a_place_sees_itself_and_those_before() -> None:
    module, tokens = decoder(), tiny_text().train.x[:2]
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % VOCABULARY
    before, after = module(tokens), module(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert bool((before[:, 5:] != after[:, 5:]).any(-1).all())


def test_attention_is_that_of_torch() -> None:
    layer: Any = decoder().blocks[0].attention
    x = torch.randn(2, LENGTH, 16, dtype=torch.float64)
    q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in layer.project(x).chunk(3, -1))
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(layer(x), layer.out(mixed.transpose(1, 2).flatten(2)))


def test_shorter_sequences_will_do_and_the_head_has_weights_of_its_own() -> None:
    module = decoder()
    assert module(tiny_text().train.x[:3, :5]).shape == (3, 5, VOCABULARY)
    assert module.head.weight is not module.tokens.weight


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [0.5, 0.25])
def test_width_hidden_and_head_size_are_cut_exactly(capacity: float) -> None:
    module, tokens = decoder(), tiny_text().train.x[:4]
    axes = trace(module, tokens, verify=True, capacities=[capacity])
    cut = draw_units(Static(), axes, capacity, Draw(0, 0, 0))
    small = build_module(module, cut)
    sizes = {name: tuple(p.shape) for name, p in small.named_parameters()}
    width, head, hidden = int(16 * capacity), int(8 * capacity), int(64 * capacity)
    assert sizes["tokens.weight"] == (VOCABULARY, width)
    assert sizes["positions"] == (LENGTH, width)
    assert sizes["blocks.1.attention.project.weight"] == (3 * 2 * head, width)
    assert sizes["blocks.1.attention.out.weight"] == (width, 2 * head)
    assert sizes["blocks.1.mlp.0.weight"] == (hidden, width)
    assert sizes["head.weight"] == (VOCABULARY, width)
    with torch.no_grad(), RestrictedStatistics():
        expected = masked(module, cut)(tokens)
    torch.testing.assert_close(small(tokens), expected, rtol=1e-10, atol=1e-10)


def test_stacks_train_as_single_clients_do(caplog: pytest.LogCaptureFixture) -> None:
    tokens = tiny_text().train.x[:2]
    module = decoder()
    MappedForward(module, module, tokens)  # raises where vmap refuses
    setup = prepare(parse(SECTIONS), data=tiny_text(), loss=token_loss)
    setup.module.double()
    with caplog.at_level(logging.WARNING):
        assert_equal_updates(setup, EXACT_TOLERANCE)
    assert not caplog.records


def test_length_and_vocabulary_are_those_of_the_data() -> None:
    module: Any = prepare(parse(SECTIONS), data=tiny_text(), loss=token_loss).module
    assert module.tokens.num_embeddings == module.head.out_features == VOCABULARY
    assert tuple(module.positions.shape) == (LENGTH, 16)


@pytest.mark.slow
def test_another_vocabulary_is_another_model_in_the_same_process() -> None:
    config, subjects = parse(SECTIONS), set()
    for vocabulary in (VOCABULARY, 11):
        part = (tiny_text().train.x % vocabulary, tiny_text().train.y % vocabulary)
        data = dataset(part, part)
        setup = prepare(config, data=data, loss=token_loss)
        assert_equal_updates(setup)
        subjects.add(identify(config, setup.module, data))
    assert len(subjects) == 2  # facts about one are not used for the other


def test_what_it_is_not_for_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^model\.name: 'gpt' .*tokens.*8\).*classification"):
        prepare(parse({"model": {"name": "gpt"}}), data=tiny_images())
    with pytest.raises(ConfigError, match=r"^model\.heads: 3 .*16$"):
        make_model("gpt", (LENGTH,), VOCABULARY, 16, heads=3)
    with pytest.raises(ConfigError, match=r"^model\.name: 'gpt' .*tokens.*\(1, 8, 8\)$"):
        ModelContext((1, 8, 8), 10).sequences("gpt")


def test_inspect_feeds_it_tokens() -> None:
    found = subject("gpt", {"width": 16, "layers": 1, "classes": VOCABULARY}, (LENGTH,))
    assert isinstance(found.inputs, torch.Tensor)
    assert found.inputs.dtype == torch.int64
    assert inspect_axes(found).sizes["tokens"] == 16
    without_values = subject("gpt", {"width": 16}, on_meta_device=True).inputs
    assert isinstance(without_values, torch.Tensor)
    assert without_values.shape == (2, 64)
