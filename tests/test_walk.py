"""The walk of one client's tensors in docs/architecture.md: it runs, and agrees with a round."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from submodel.algorithm.rounds import step
from submodel.model.cost import CostModel

PAGE = (Path(__file__).parents[1] / "docs/architecture.md").read_text("utf-8")


@pytest.fixture(scope="module")
def walk() -> dict[str, Any]:
    (code,) = re.findall(r"tests/test_walk.py -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/architecture.md", "exec"), names)
    return names


def test_the_walk_ends_where_a_round_does(walk: dict[str, Any]) -> None:
    setup, state = walk["setup"], walk["state"]
    costs = CostModel(setup.module, setup.clients.dataset.example)
    after, report = step(setup, state, walk["engine"], costs)
    assert {n: t.tolist() for n, t in after.tensors.items()} == {
        n: t.tolist() for n, t in setup.projection(walk["parameters"]).items()
    }
    assert report.units_covered == 3 / 4


def test_the_numbers_on_the_page_are_those_of_the_walk(walk: dict[str, Any]) -> None:
    holders = walk["sums"].holder_weights(["1.weight"])["1.weight"].flatten()
    merged = walk["sums"].merge()["1.weight"].flatten()
    assert f"{', '.join(f'{h:g}' for h in holders)}; coverage 3/4" in PAGE
    assert f"`1.weight` = {', '.join(f'{w:g}' for w in merged)}:" in PAGE
    units = [
        walk["dispatcher"].task(one).cut.units["0"].tolist()
        for one in walk["plan"](walk["setup"], 0)
    ]
    assert units == [[0, 4, 5, 7], [1, 4, 6, 7]]
    assert "client 0 holds units 0, 4, 5, 7, client 1 units 1, 4, 6, 7" in PAGE
    assert walk["task"].tensors["0.weight"].shape == (4, 4)
    assert walk["update"].loss == 1
    assert torch.equal(walk["update"].tensors["1.weight"], torch.full((1, 4), 0.75))
