"""Adapters: the model starts unchanged, only ranks are cut, trained and sent, on both engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

import submodel
from submodel.algorithm.round_statistics import RoundReport
from submodel.algorithm.rounds import initial_state, step
from submodel.algorithm.types import Setup, State
from submodel.config import Config, parse
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError
from submodel.data import dataset
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.serial import SerialEngine
from submodel.model.axes import trace
from submodel.model.build import build_module
from submodel.model.cost import CostModel
from submodel.model.cut import prefix_cut
from submodel.model.travel import size_in_bytes
from submodel.model.zoo import add_adapters, fold_adapters, only_ranks
from submodel.model.zoo.gpt import Decoder
from submodel.model.zoo.low_rank import AdapterLayer, adapters_of
from submodel.runs.folder import RunFolder
from submodel.runs.loop import run_rounds
from submodel.runs.training import Training
from submodel.testing import check_scheme
from tests.support.common import tiny_images
from tests.support.schemes import VARIANTS

BY_UNITS = {
    name: sections
    for name, sections in VARIANTS.items()
    if sections["scheme"].get("granularity") != "coordinate"
}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))


def conv1d(outputs: int, inputs: int) -> nn.Module:
    """A layer of GPT-2."""
    layer: nn.Module = Conv1D(outputs, inputs)
    return layer


def with_values(module: nn.Module) -> nn.Module:
    """Make trained adapters, whose second factor is not zero."""
    torch.manual_seed(1)
    for layer in adapters_of(module).values():
        nn.init.normal_(layer.up.weight)
    return module


def setup_of(**sections: Any) -> Setup:
    values: dict[str, Any] = {
        "model": {"name": "own", "adapters": "lora", "adapter_rank": 4},
        "data": {"name": "own", "partition": "iid"},
        "clients": {"count": 4, "per_round": 4, "capacities": [0.5]},
        "local": {"lr": 0.05, "absent_labels": "keep"},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return prepare(parse(values), net(), tiny_images())


def rounds(setup: Setup, batched: bool = False, count: int = 2) -> tuple[State, RoundReport]:
    engine = BatchedEngine(setup, always=True) if batched else SerialEngine(setup)
    costs = CostModel(setup.module, setup.clients.dataset.example)
    state = initial_state(setup)
    for _ in range(count):
        state, report = step(setup, state, engine, costs)
    return state, report


class TestLayers:
    """Adapted layers and their computation."""

    def test_the_model_begins_as_it_is_and_only_ranks_are_trained(self) -> None:
        base = Decoder(length=8, vocabulary=11, width=16, layers=2, heads=2)
        tokens = torch.arange(8).view(1, 8)
        adapted = add_adapters(base, rank=3)
        assert torch.equal(adapted(tokens), base(tokens))
        assert all(p.requires_grad for p in base.parameters())  # it is not changed
        trained = [p for p in adapted.parameters() if p.requires_grad]
        # query, key and value; output of attention; the two layers of the MLP
        sizes = (16 + 48, 16 + 16, 16 + 64, 64 + 16)
        assert sum(p.numel() for p in trained) == 2 * 3 * sum(sizes)
        assert list(adapters_of(adapted))[:4] == [
            "blocks.0.attention.project",
            "blocks.0.attention.out",
            "blocks.0.mlp.0",
            "blocks.0.mlp.2",
        ]

    def test_the_transposed_layer_of_transformers_is_adapted_as_a_linear_one(self) -> None:
        linear, transposed = nn.Linear(6, 9), conv1d(9, 6)
        with torch.no_grad():
            transposed.get_parameter("weight").copy_(linear.weight.t())
            transposed.get_parameter("bias").copy_(linear.bias)
        one, two = (add_adapters(nn.Sequential(x, nn.ReLU(), nn.Linear(9, 2)), rank=2)
                    for x in (linear, transposed))  # fmt: skip
        two.load_state_dict(
            {**one.state_dict(), "0.base.weight": transposed.get_parameter("weight").detach()},
            strict=True,
        )
        x = torch.randn(5, 6)
        torch.testing.assert_close(with_values(one)(x), with_values(two)(x), rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("first", [nn.Linear(6, 9), conv1d(9, 6)], ids=["linear", "transposed"])
    def test_folded_in_they_compute_the_same(self, first: nn.Module) -> None:
        adapted = with_values(add_adapters(nn.Sequential(first, nn.ReLU(), nn.Linear(9, 2)), 4))
        folded, x = fold_adapters(adapted), torch.randn(5, 6)
        assert not adapters_of(folded)
        torch.testing.assert_close(folded(x), adapted(x), rtol=1e-5, atol=1e-5)
        weights = (m.get_submodule("0").weight for m in (folded, adapted))
        torch.testing.assert_close(*weights)

    def test_alpha_by_rank_is_what_they_count(self) -> None:
        layer = add_adapters(nn.Linear(3, 2, bias=False), rank=4, alpha=12.0)
        assert isinstance(layer, AdapterLayer)
        with torch.no_grad():
            layer.base.get_parameter("weight").zero_()
            layer.down.weight.fill_(1.0)
            layer.up.weight.fill_(1.0)
        assert layer(torch.ones(3)).tolist() == [3 * 4 * 3.0] * 2  # scale x ranks x inputs

    def test_layers_are_named_by_path_or_its_last_parts(self) -> None:
        base = Decoder(length=8, vocabulary=11, width=16, layers=2, heads=2)
        adapted = add_adapters(base, layers=["attention.project", "head"])
        assert list(adapters_of(adapted)) == [
            "blocks.0.attention.project",
            "blocks.1.attention.project",
            "head",
        ]
        with pytest.raises(ConfigError, match=r"^model\.adapter_layers: 'qkv' .*head$"):
            add_adapters(base, layers=["qkv"])

    def test_shared_weights_and_insides_of_torchs_layers_stay_as_they_are(self) -> None:
        class Tied(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.attention = nn.MultiheadAttention(8, 2)
                self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)
                self.two.weight = self.one.weight
                self.three, self.head = nn.Linear(8, 8), nn.Linear(8, 2)

        assert list(adapters_of(add_adapters(Tied()))) == ["three"]
        with pytest.raises(ConfigError, match=r"^model\.adapters: Conv2d .*no layer"):
            add_adapters(nn.Conv2d(1, 2, 3))


class TestRanks:
    """Capacity means rank."""

    def test_a_sub_model_is_the_model_without_the_other_ranks(self) -> None:
        adapted = with_values(add_adapters(Decoder(8, 11, 16, 2, 2), rank=4))
        tokens = torch.arange(16).view(2, 8) % 11
        axes = only_ranks(adapted, trace(adapted, tokens))
        assert set(axes.cut_by_capacity.values()) == {4}
        assert len(axes.cut_by_capacity) == 8  # every layer has its own ranks
        small = build_module(adapted, prefix_cut(axes, 0.5))
        assert {layer.rank for layer in adapters_of(small).values()} == {2}
        with torch.no_grad():
            for layer in adapters_of(adapted).values():
                layer.up.weight[:, 2:] = 0
        torch.testing.assert_close(small(tokens), adapted(tokens), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("variant", BY_UNITS)
    def test_every_scheme_trains_ranks_alone_alike_on_both_engines(self, variant: str) -> None:
        setup = setup_of(**BY_UNITS[variant])
        assert setup.axes.cut_by_capacity == {"1.down": 4}
        before = initial_state(setup).tensors
        (one, report), (two, _) = rounds(setup), rounds(setup, batched=True)
        for name, tensor in one.tensors.items():
            torch.testing.assert_close(tensor, two.tensors[name], rtol=1e-5, atol=1e-6)
            if not name.endswith(("down.weight", "up.weight")):
                assert torch.equal(tensor, before[name])
        assert not torch.equal(one.tensors["1.up.weight"], before["1.up.weight"])
        assert report.bytes_up % (4 * (64 + 12)) == 0  # whole ranks
        assert report.bytes_once == size_in_bytes(
            {n: t for n, t in before.items() if not n.endswith(("down.weight", "up.weight"))}
        )

    @pytest.mark.parametrize("scheme", ["static", "rolling", "random", "importance", "ordered"])
    def test_schemes_keep_their_contracts(self, scheme: str) -> None:
        model = {"name": "own", "adapters": "lora", "adapter_rank": 8}
        passed = check_scheme({"name": scheme, "granularity": "unit"}, model=model)
        assert "unit: at capacity 1 it is FedAvg, bit for bit (contract 1)" in passed

    def test_given_in_python_only_ranks_are_cut_too(self) -> None:
        adapted = add_adapters(net(), rank=4)
        config = {"clients": {"count": 2, "per_round": 2, "capacities": [0.5]},
                  "local": {"absent_labels": "keep"}}  # fmt: skip
        result = submodel.train(adapted, tiny_images(), config, progress=False)
        assert {p.shape for p in result.submodel(0.5).parameters()} == {
            (12, 64), (12,), (2, 64), (12, 2), (10, 12), (10,),
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("problem", "sections"),
        {
            "^scheme.granularity: .*model.adapters": {"scheme": {"granularity": "coordinate"}},
            "^axes.cut: .*model.adapters": {"axes": {"cut": ["1"]}},
            "^model.adapter_layers: '7' .* 1, 3": {"model": {"adapter_layers": ["7"]}},
        }.items(),
    )
    def test_what_contradicts_it_is_refused(self, problem: str, sections: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match=problem):
            setup_of(**sections)


@pytest.mark.slow
def test_a_round_of_a_small_gpt_sends_two_percent_of_it_at_most() -> None:
    tokens = torch.arange(4 * 33).view(4, 33) % 64
    x, y = tokens[:, :-1], tokens[:, 1:]
    config = parse(
        {
            "model": {"name": "gpt", "adapters": "lora", "adapter_rank": 4,
                      "adapter_layers": ["attention.project", "attention.out"]},
            "data": {"name": "own", "partition": "iid"},
            "task": {"name": "language"},
            "clients": {"count": 2, "per_round": 2, "capacities": [1]},
            "local": {"steps": 1, "absent_labels": "keep"},
        }
    )  # fmt: skip
    setup = prepare(config, data=dataset((x, y), (x, y)))
    state = initial_state(setup)
    ranks = 4 * 4 * (128 + 384 + 128 + 128)  # layers x ranks x inputs and outputs
    _, report = rounds(setup, count=1)
    assert report.bytes_down == report.bytes_up == 2 * 4 * ranks
    assert report.bytes_once == size_in_bytes(state.tensors) - 4 * ranks
    assert 4 * ranks <= 0.02 * report.bytes_once  # one client, one way


@pytest.mark.slow
def test_a_run_begins_with_weights_and_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "model": {"name": "mlp", "width": 16},
        "data": {"examples": 100, "test_examples": 50},
        "clients": {"count": 4, "per_round": 2, "capacities": [1, 0.5]},
        "train": {"rounds": 2, "checkpoint_every": 1},
    }
    first = run(parse(values), tmp_path / "base")
    model = {**values["model"], "weights": str(tmp_path / "base"), "adapters": "lora"}
    adapt = {**values, "model": model}
    short = run(parse(adapt), tmp_path / "parts")
    longer = parse({**adapt, "train": {"rounds": 4, "checkpoint_every": 1}})
    whole, parts = run(longer, tmp_path / "whole"), run(longer, tmp_path / "parts", resume=True)
    assert all(torch.equal(t, parts.tensors[n]) for n, t in whole.tensors.items())
    assert not torch.equal(short.tensors["1.up.weight"], whole.tensors["1.up.weight"])
    for name, tensor in first.tensors.items():
        layer, _, kind = name.rpartition(".")
        same = whole.tensors.get(f"{layer}.base.{kind}", whole.tensors.get(name))
        assert same is not None
        assert torch.equal(same, tensor), name


def run(config: Config, path: Path, resume: bool = False) -> State:
    folder = RunFolder(path)
    if not resume:
        folder.create(config)
    return run_rounds(Training(config, prepare(config)), folder, resume=resume)[0]
