"""The examples run, and show what they say that they show."""

from __future__ import annotations

import math

import numpy as np
import pytest
from examples import gpt2_on_text, own_scheme

from submodel.config import parse
from submodel.errors import ConfigError
from submodel.prepare.setup import prepare
from submodel.schemes import Draw, units_held


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
    with pytest.raises(ConfigError, match=r"scheme\.options\.stride: 4 and the 32 units of axis"):
        prepare(config)
