"""The examples run and show their stated results."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from examples import generate_text, gpt2_on_text, own_scheme
from safetensors.torch import load_file

from submodel.config import parse, read
from submodel.config.model_facts import context_of
from submodel.config.parts import make_module
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError
from submodel.data import dataset
from submodel.data.examples import About
from submodel.model.travel import size_in_bytes
from submodel.runs.folder import RunFolder
from submodel.schemes import Draw, units_held
from tests.support.runs import run

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_a_gpt2_learns_through_rolling_sub_models(capsys: pytest.CaptureFixture[str]) -> None:
    losses = gpt2_on_text.main(rounds=3)
    _, characters = gpt2_on_text.read_text()
    assert len(losses) == 4
    assert losses[-1] < math.log(len(characters)) - 1  # far below a uniform guess
    assert losses[-1] < losses[1] < losses[0]
    shown = capsys.readouterr().out
    assert "round   3: test loss" in shown
    assert "capacity 0.25: 8,784 parameters (8%)" in shown
    assert "test loss of the sub-model of capacity 0.5" in shown


def test_an_own_scheme_passes_the_checks_and_learns(capsys: pytest.CaptureFixture[str]) -> None:
    striped, _ = own_scheme.main(rounds=10)
    assert striped > 0.5  # a guess is right one time in ten
    shown = capsys.readouterr().out
    assert "holds, unit: at capacity 1 it is FedAvg, bit for bit" in shown
    assert "examples.own_scheme:Striped: test accuracy" in shown


def test_stripes_visit_every_unit_equally_often_and_strides_that_would_not_are_refused() -> None:
    scheme = own_scheme.Striped(stride=3)
    for size, capacity in ((16, 0.25), (10, 0.3), (7, 1 / 16)):
        masks = [scheme.select("a", size, capacity, Draw(0, r, 0)) for r in range(size)]
        assert set(np.sum(masks, axis=0)) == {units_held(capacity, size)}
    config = parse({"scheme": {"name": "examples.own_scheme:Striped", "options": {"stride": 4}}})
    with pytest.raises(ConfigError, match=r"^scheme\.options\.stride: 4 .*32"):
        prepare(config)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_configuration_is_one_and_says_what_it_reaches(path: Path) -> None:
    config = read(path, [])
    assert config.name == path.stem
    remark = " ".join(line[1:] for line in path.read_text().splitlines() if line.startswith("#"))
    assert f"submodel train examples/{path.name}" in remark
    assert "on two cores" in " ".join(remark.split())


def test_a_model_of_one_author_is_adapted_to_others(tmp_path: Path) -> None:
    small = ["model.width=32", "model.layers=2", "train.evaluate_every=100", "engine.name=local"]
    one = [*small, "data.name=text:examples/data/moby_dick.txt", "data.test_examples=100",
           "train.rounds=1", "local.steps=100", "local.lr=0.01"]  # fmt: skip
    run(tmp_path / "base", read(EXAMPLES / "lora-base.toml", one))
    others = [*small, f"model.weights={tmp_path / 'base'}"]
    still = ["train.rounds=1", "local.steps=1", "local.lr=1e-9"]
    before = run(tmp_path / "before", read(EXAMPLES / "lora.toml", [*others, *still]))
    faster = ["train.rounds=2", "local.lr=0.03"]
    after = run(tmp_path / "after", read(EXAMPLES / "lora.toml", [*others, *faster]))
    assert after["test_bits_per_byte"] < before["test_bits_per_byte"] - 0.01
    line = RunFolder(tmp_path / "after").metrics()[-1]
    ranks = 2 * (32 + 96 + 32 + 32)  # layers x inputs and outputs of attention
    assert line["bytes_up"] % (4 * ranks) == 0
    assert line["bytes_once"] == size_in_bytes(load_file(tmp_path / "base/model.safetensors"))


@pytest.mark.parametrize("name", ["heterofl", "fedrolex", "fjord"])
def test_published_settings_make_their_model_and_refuse_nothing(name: str) -> None:
    draws, classes = torch.Generator().manual_seed(0), torch.arange(400) % 10
    part = torch.randn(400, 3, 32, 32, generator=draws), classes  # instead of CIFAR-10
    about = About("drawn", tuple("abcdefghij"), (0.5,) * 3, (0.25,) * 3)
    data = replace(dataset(part, part), about=about)
    whole = make_module(read(EXAMPLES / f"{name}.toml", []), context_of(data))
    assert sum(p.numel() for p in whole.parameters()) == 11_172_170  # HeteroFL's ResNet-18
    setup = prepare(read(EXAMPLES / f"{name}.toml", ["model.width=16"]), data=data)
    assert (setup.population.count, setup.population.per_round) == (100, 10)
    assert max(setup.axes.sizes.values()) == 8 * 16


def test_every_capacity_of_a_language_model_writes_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 20)
    model = {"name": "gpt", "width": 8, "layers": 1, "heads": 1}
    data = {"name": f"text:{tmp_path / 'text.txt'}", "length": 8, "partition": "iid"}
    clients = {"count": 4, "per_round": 2}
    config = {"clients": clients, "train": {"rounds": 1}, "model": model, "data": data}
    run(tmp_path / "run", parse(config))
    texts = generate_text.main(str(tmp_path / "run"), "the ", tokens=3)
    assert list(texts) == ["1", "1/2", "1/4"]
    assert all(text.startswith("the ") for text in texts.values())
    assert "capacity 1/4:\nthe " in capsys.readouterr().out
