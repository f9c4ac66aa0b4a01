"""Facts about a model: determined once in a process, and once for all processes of a run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from submodel.algorithm.rounds import initial_state
from submodel.algorithm.types import Setup
from submodel.config import Config, model_facts, parse
from submodel.config.model_facts import facts_of, pass_on, passed_facts
from submodel.config.setup import prepare
from submodel.core.errors import SubmodelError
from submodel.data import Dataset, dataset
from submodel.model.axes import Axes, trace
from submodel.model.build import local_of

BASE: dict[str, Any] = {
    "model": {"name": "mlp", "width": 8},
    "data": {"examples": 100, "test_examples": 50},
    "clients": {"count": 5, "per_round": 2, "capacities": [1, 0.5]},
}


@pytest.fixture
def traced_modules(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """Record traced modules in a process with empty caches."""
    modules: list[nn.Module] = []

    def watch(module: nn.Module, *arguments: Any, **keywords: Any) -> Axes:
        modules.append(module)
        return trace(module, *arguments, **keywords)

    monkeypatch.setattr("submodel.config.parts.trace", watch)
    monkeypatch.setattr("submodel.config.model_facts._facts", {})
    return modules


def configured(**sections: dict[str, Any]) -> Config:
    return parse({n: {**BASE.get(n, {}), **sections.get(n, {})} for n in {**BASE, **sections}})


def test_another_seed_scheme_and_way_to_train_have_the_same_axes(
    traced_modules: list[nn.Module],
) -> None:
    setups = [
        prepare(configured()),
        prepare(configured(scheme={"name": "static"}, local={"lr": 0.5, "steps": 3})),
        prepare(configured(clients={"count": 4, "capacity_mode": "dynamic"})),
        prepare(parse({**BASE, "seed": 1})),
    ]
    assert len(traced_modules) == 1
    assert all(setup.axes == setups[0].axes for setup in setups)
    assert len({id(setup.module) for setup in setups}) == 4
    first, last = (setup.module.get_parameter("1.weight") for setup in (setups[0], setups[-1]))
    assert not torch.equal(first, last)  # each has its own weights


OTHERS: dict[str, dict[str, dict[str, Any]]] = {
    "another width": {"model": {"width": 12}},
    "another model": {"model": {"name": "cnn"}},
    "low rank": {"model": {"factorised": True}},
    "other capacities": {"clients": {"capacities": [1, 0.25]}},
    "labels that are kept": {"local": {"absent_labels": "keep"}},
    "axes that are kept": {"axes": {"whole": ["1"]}},
    "images of another size": {"data": {"name": "tests.prepare.test_model_facts:wide_images"}},
}


def traced_axes(setup: Setup) -> tuple[Axes, tuple[float, ...]]:
    return setup.axes, setup.axes.measured


def wide_images() -> Dataset:
    images = torch.arange(200 * 8 * 12, dtype=torch.float32).sin().view(200, 1, 8, 12)
    labels = torch.arange(200) % 10
    return dataset((images[:100], labels[:100]), (images[100:], labels[100:]))


@pytest.mark.parametrize("case", OTHERS)
def test_what_the_axes_depend_on_is_looked_at_anew(
    case: str, traced_modules: list[nn.Module]
) -> None:
    first, other = configured(), configured(**OTHERS[case])
    before, after = prepare(first), prepare(other)
    assert len(traced_modules) == 2
    assert traced_axes(after) != traced_axes(before)
    assert traced_axes(prepare(first)) == traced_axes(before)
    assert traced_axes(prepare(other)) == traced_axes(after)
    assert len(traced_modules) == 2


def test_the_axes_are_those_of_a_trace_of_the_run_itself(traced_modules: list[nn.Module]) -> None:
    prepare(parse({**BASE, "seed": 1}))
    setup = prepare(configured())
    example = setup.clients.dataset.example
    assert setup.axes == trace(setup.module, example, classes=True, capacities=[0.5])


def net_of_the_user() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


def test_other_peoples_models_are_looked_at_every_time(traced_modules: list[nn.Module]) -> None:
    by_path = parse({**BASE, "model": {"name": "tests.prepare.test_model_facts:net_of_the_user"}})
    for _ in range(2):
        prepare(by_path)
        prepare(configured(), net_of_the_user())
    assert len(traced_modules) == 4


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
    assert facts_of(first, config) is None  # a small model is prepared quickly
    monkeypatch.setattr(model_facts, "LARGE_MODEL", 0)
    with pass_on(facts_of(first, config)):
        monkeypatch.setenv("LOCAL_RANK", "1")
        facts = passed_facts()
    assert facts is not None
    assert facts.is_empty
    assert passed_facts() is None  # no files remain
    second = prepare(config, facts=facts)
    assert all(parameter.is_meta for parameter in second.module.parameters())
    assert second.axes == first.axes
    shapes = [{n: p.shape for n, p in s.module.named_parameters()} for s in (first, second)]
    assert shapes[0] == shapes[1]
    buffers = [local_of(setup.module) for setup in (first, second)]
    assert all(torch.equal(value, buffers[1][name]) for name, value in buffers[0].items())
    with pytest.raises(SubmodelError, match="prepare a new one"):
        initial_state(second)
    assert initial_state(second, follows=True, take=True).tensors.keys() == shapes[0].keys()


def test_the_first_of_a_machine_has_values(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse(LLAMA)
    setup = prepare(config)
    monkeypatch.setattr(model_facts, "LARGE_MODEL", 0)
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pass_on(facts_of(setup, config)):
        again = prepare(config, facts=passed_facts())
    tensors = dict(again.module.named_parameters())
    assert all(torch.equal(p, tensors[n]) for n, p in setup.module.named_parameters())
