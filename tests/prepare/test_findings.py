"""What one process found of a large model, another of the same run takes over."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from submodel.algorithm.rounds import initial_state
from submodel.config import parse
from submodel.errors import SubmodelError
from submodel.model.build import local_of
from submodel.prepare import findings as room
from submodel.prepare.findings import findings_of, pass_on, passed_findings
from submodel.prepare.setup import prepare

LLAMA: dict[str, Any] = {
    "data": {"name": "text:examples/data/moby_dick.txt", "tokens": "bytes", "length": 8},
    "model": {
        "name": "transformers:LlamaConfig",
        "options": {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
        },
    },
    "clients": {"count": 2, "per_round": 2, "capacities": ["1/2"]},
}


def test_a_follower_has_the_same_setup_without_values(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse(LLAMA)
    first = prepare(config)
    assert findings_of(first, config) is None  # a small model is prepared in a moment
    monkeypatch.setattr(room, "LARGE_MODEL", 0)
    with pass_on(findings_of(first, config)):
        monkeypatch.setenv("LOCAL_RANK", "1")
        findings = passed_findings()
    assert findings is not None
    assert findings.is_empty
    assert passed_findings() is None  # nothing is left for others
    second = prepare(config, findings=findings)
    assert all(parameter.is_meta for parameter in second.module.parameters())
    assert second.axes == first.axes
    shapes = [{n: p.shape for n, p in s.module.named_parameters()} for s in (first, second)]
    assert shapes[0] == shapes[1]
    buffers = [local_of(setup.module) for setup in (first, second)]
    assert all(torch.equal(value, buffers[1][name]) for name, value in buffers[0].items())
    with pytest.raises(SubmodelError, match="prepare it"):
        initial_state(second)
    assert initial_state(second, follows=True, take=True).tensors.keys() == shapes[0].keys()


def test_the_first_of_a_machine_has_values(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse(LLAMA)
    setup = prepare(config)
    monkeypatch.setattr(room, "LARGE_MODEL", 0)
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pass_on(findings_of(setup, config)):
        again = prepare(config, findings=passed_findings())
    tensors = dict(again.module.named_parameters())
    assert all(torch.equal(p, tensors[n]) for n, p in setup.module.named_parameters())
