"""Inspecting models and budgets: inspect and plan, own modules by path, overrides of the axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from submodel.algorithm.dispatch import cut_of
from submodel.algorithm.types import Assignment
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.amounts import parse_amount
from submodel.core.errors import ConfigError
from submodel.model.axes import trace
from submodel.model.budget import Budget, activation_bytes
from submodel.model.build import skeleton
from submodel.model.inspect import axes_remarks, inspect_axes, subject
from tests.support.commands import Command
from tests.support.common import tiny_images, tiny_setup
from tests.support.forked import run_command


def test_inspect_shows_axes_reasons_exactness_and_cost(submodel: Command) -> None:
    result = submodel("inspect", "preresnet18", "--set", "width=8", "--capacities", "1,1/4")
    assert result.returncode == 0, result.stderr
    assert "stages.3.1.conv1       64  " in result.stdout
    assert "frozen, it meets an input: stem.weight[1]" in result.stdout
    assert "sub-model = masked model: yes, exactly" in result.stdout
    assert "verified: permuting every axis" in result.stdout
    assert "│     0.25 │" in result.stdout


@pytest.mark.slow
def test_inspect_takes_any_factory_and_any_hugging_face_config(
    tmp_path: Path, submodel: Command
) -> None:
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n"
        "def make(width=8):\n"
        "    return nn.Sequential(nn.Linear(6, width), nn.LayerNorm(width), nn.Linear(width, 3))\n"
    )
    result = run_command("inspect", "nets:make", "--set", "width=12", "--input", "6", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "12  0.weight[0], 0.bias[0]" in result.stdout
    assert "sub-model = masked model: no" in result.stdout
    options = ["n_layer=1", "n_embd=16", "n_head=2", "vocab_size=50", "n_positions=32"]
    for meta in ([], ["--meta"]):
        sets = [part for option in options for part in ("--set", option)]
        result = submodel("inspect", "transformers:GPT2Config", *sets, *meta)
        assert result.returncode == 0, result.stderr
        assert "looked up by index: transformer.wte.weight[0]" in result.stdout
        assert "native_layer_norm takes statistics over it" in result.stdout
        assert ("not verified" in result.stdout) == bool(meta)


BAD = {
    "unknown": (["inspect", "alexnet"], "mlp, cnn"),
    "no module": (["inspect", "nowhere:make"], "'nowhere'"),
    "no name": (["inspect", "torch.nn:Nothing"], "'Nothing'"),
    "no module made": (["inspect", "builtins:dict"], "nn.Module"),
    "arguments": (["inspect", "torch.nn:Linear"], "(Linear.__init__() missing"),
    "no shape": (
        ["inspect", "torch.nn:Linear", "--set", "in_features=2", "--set", "out_features=3"],
        "--input 3,32,32",
    ),
    "bad shape": (["inspect", "cnn", "--input", "3,x"], "--input: '3,x'"),
    "bad capacity": (["inspect", "cnn", "--capacities", "1,2"], "capacity: 2 "),
    "no budget": (["plan"], "--memory 2GB"),
    "bad amount": (["plan", "--memory", "lots"], "'lots'"),
    "model name": (["train", "--set", "model.name=vgg"], "model.name: 'vgg'"),
    "axis": (["train", "--set", 'axes.whole=["nothing"]'], "whole: 'nothing'"),
    "least": (["train", "--set", "axes.least={nothing = 0.5}"], "axes.least: 'nothing'"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_clear_error(case: str, tmp_path: Path, submodel: Command) -> None:
    arguments, message = BAD[case]
    result = submodel(*arguments, cwd=tmp_path)
    assert result.returncode == 2, result.stdout
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_plan_shows_the_arithmetic_and_says_when_nothing_fits(submodel: Command) -> None:
    result = submodel("plan", "--memory", "100kB")
    assert result.returncode == 0, result.stderr
    assert "capacity 0.1" in result.stdout
    assert "parameters + " in result.stdout
    assert "the next larger capacity" in result.stdout
    nothing = submodel("plan", "--memory", "1kB")
    assert nothing.returncode == 1
    assert "no capacity fits" in nothing.stdout


def test_the_largest_capacity_fits_and_the_next_one_does_not() -> None:
    setup = tiny_setup("cnn", width=32)
    example = setup.clients.dataset.example
    budget = Budget(setup.module, setup.axes, example, batch_size=10)
    for limit in (60_000, 200_000, 400_000):
        fit = budget.largest(lambda needs, limit=limit: needs.memory <= limit)  # type: ignore[misc]
        assert fit.needs is not None
        assert fit.too_large is not None
        assert fit.needs.memory <= limit < fit.too_large.memory
    everything = budget.largest(lambda needs: needs.memory < 10**9)
    assert everything.capacity == 1
    assert everything.too_large is None
    needs = budget.needs(1.0)
    values = sum(p.numel() for p in setup.module.parameters())
    assert needs.parameters == needs.gradients == needs.optimizer == 4 * values
    assert needs.traffic == 8 * values


@pytest.mark.slow
def test_activations_counted_without_values_are_those_that_are_really_kept() -> None:
    setup = tiny_setup("preresnet18")
    inputs = torch.randn(5, 1, 8, 8)
    meta = activation_bytes(skeleton(setup.module), inputs.to("meta"))
    real = activation_bytes(setup.module, inputs)
    # the meta device may count other intermediate copies of kernels
    assert 0.8 < meta / real < 1.25


def test_amounts() -> None:
    assert parse_amount("1 GiB") == 2**30
    for bad in ("", "-3", "2XB", "GB"):
        with pytest.raises(ConfigError):
            parse_amount(bad)


@pytest.mark.slow
def test_an_own_module_is_trained_from_a_config(tmp_path: Path, submodel: Command) -> None:
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n"
        "def make(hidden):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.GELU(),\n"
        "                         nn.Linear(hidden, 10))\n"
    )
    settings = ["model.name=nets:make", "model.options={hidden = 24}", "train.rounds=2"]
    sets = [part for setting in settings for part in ("--set", setting)]
    result = run_command("train", *sets, "--out", "run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "nets:make on digits" in result.stdout
    assert submodel("show", "run", cwd=tmp_path).returncode == 0


def test_overrides_reach_the_cuts() -> None:
    setup = tiny_setup("mlp")
    first, second = setup.axes.cut_by_capacity
    held: dict[str, Any] = {"clients": {"capacities": [0.25]}}
    tied = tiny_setup("mlp", axes={"tie": [[first, second]]}, **held)
    assert len(tied.axes.cut_by_capacity) == 1
    whole = tiny_setup("mlp", axes={"whole": [first]}, **held)
    assert list(cut_of(whole, Assignment(0, 0, 0.25)).shape_key) == [(second, 4)]
    frozen = tiny_setup("mlp", axes={"freeze": [first]}, **held)
    assert first not in frozen.axes.sizes
    least = tiny_setup("mlp", axes={"least": {first: 0.5}}, **held)
    assert dict(cut_of(least, Assignment(0, 0, 0.25)).shape_key) == {first: 8, second: 4}


def test_a_module_without_axes_is_told_so() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    config = parse({"data": {"partition": "iid"}, "local": {"absent_labels": "keep"}})
    with pytest.raises(ConfigError, match=r"^scheme\.granularity: 'unit' .*'coordinate'"):
        prepare(config, net, tiny_images())


def test_findings_tell_of_factors_that_are_kept() -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 1), nn.GroupNorm(4, 8), nn.Conv2d(8, 2, 1))
    text = axes_remarks(trace(net, torch.randn(2, 1, 3, 3)), is_verified=True)
    assert "kept whole: " in text
    assert inspect_axes(subject("mlp", {"width": 4})).exact
