"""The examples run, and show what they say that they show."""

from __future__ import annotations

import math

import pytest
from examples import gpt2_on_text


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
