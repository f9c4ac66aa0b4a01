"""The public interface is documented, and its arguments are used or refused."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import BaseModel
from torch import Tensor, nn

import submodel
from submodel.core.errors import ConfigError

CONFIG: dict[str, Any] = {"train": {"rounds": 2}, "clients": {"capacities": [1, 0.5]}}


def functions() -> dict[str, Any]:
    """List every public function, and every public method of a public class."""
    found: dict[str, Any] = {}
    for name in submodel.__all__:
        value = getattr(submodel, name)
        if inspect.isfunction(value):
            found[name] = value
        elif inspect.isclass(value) and not issubclass(value, Exception):
            if not issubclass(value, BaseModel):  # whose fields have descriptions
                found[name] = value
            for method, function in inspect.getmembers(value, inspect.isfunction):
                ours = function.__module__.startswith("submodel")
                if ours and not method.startswith("_") and not method.startswith("model_"):
                    found[f"{name}.{method}"] = function
    return found


@pytest.mark.parametrize("name", functions())
def test_every_parameter_is_described(name: str) -> None:
    function = functions()[name]
    if inspect.isclass(function) and function.__init__ is object.__init__:
        return  # it takes nothing
    names = [p for p in inspect.signature(function).parameters if p not in ("self", "cls")]
    text = inspect.getdoc(function) or ""
    assert text
    if names:
        assert "Args:" in text
    for parameter in names:
        assert re.search(rf"^\s+{parameter}: \S", text, re.M), f"{name}: {parameter}"


@pytest.mark.parametrize("name", submodel.__all__)
def test_every_name_can_be_imported_and_is_described(name: str) -> None:
    assert inspect.getdoc(getattr(submodel, name))


def test_every_section_of_the_configuration_is_offered_and_typed() -> None:
    sections = [value for _, value in submodel.Config() if isinstance(value, BaseModel)]
    names = {type(value).__name__ for value in sections}
    assert names == {name for name in submodel.__all__ if name.endswith("Section")}
    for value in sections:
        assert isinstance(value, getattr(submodel, type(value).__name__))
    train = submodel.TrainSection(rounds=2, evaluate_every=1)
    given = submodel.Config(train=train, clients=submodel.ClientsSection(count=4, per_round=2))
    result = submodel.train(made("plain"), submodel.digits(), given)
    assert [line["clients"] for line in result.history] == [2, 2]
    assert all("test_loss" in line for line in result.history)


class Several(nn.Module):
    """Two linear layers with one of several types of outputs."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.hidden, self.head = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Any:
        hidden = torch.relu(self.hidden(x.flatten(1)))
        found = self.head(hidden)
        if self.kind == "plain":
            return found
        return (hidden, found) if self.kind == "tuple" else {"logits": found, "name": "a text"}


def made(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return Several(kind)


@pytest.mark.slow
def test_outputs_chooses_what_counts() -> None:
    plain = submodel.train(made("plain"), submodel.digits(), CONFIG)
    for kind, outputs in (("tuple", lambda r: r[1]), ("dict", lambda r: r["logits"])):
        for batching in ("never", "auto"):
            config = {**CONFIG, "engine": {"batching": batching}}
            model = made(kind)
            result = submodel.train(model, submodel.digits(), config, outputs=outputs)
            assert not model._forward_hooks
            for name, tensor in plain.state.tensors.items():
                assert torch.allclose(result.state.tensors[name], tensor, atol=1e-5), (kind, name)
            assert result.accuracy == pytest.approx(plain.accuracy or 0, abs=0.01)
            assert type(result.submodel(0.5)(submodel.digits().test.x)).__name__ == kind
    wrong: Any
    for wrong, reason in (
        (lambda r: r, "^outputs: .*tuple"),
        (lambda r: r["logits"], "^outputs: .*tuple"),
        ("logits", "^outputs: 'logits' "),
    ):
        with pytest.raises(ConfigError, match=reason):
            submodel.train(made("tuple"), submodel.digits(), CONFIG, outputs=wrong)
    with pytest.raises(ConfigError, match="outputs=lambda returned"):
        submodel.train(made("tuple"), submodel.digits(), CONFIG)


@pytest.mark.slow
def test_clients_says_who_has_what() -> None:
    lists = [[3, 1, 2], np.arange(10, 50), torch.arange(60, 65), range(100, 300)]
    config = {**CONFIG, "clients": {"per_round": 4}}
    result = submodel.train(made("plain"), submodel.digits(), config, clients=lists)
    federation = result.setup.clients
    assert result.setup.population.count == 4
    assert federation.indices(0).tolist() == [1, 2, 3]
    assert result.training.config.data.partition == "own"
    assert [federation.size(client) for client in range(4)] == [3, 40, 5, 200]
    data = submodel.digits()
    numbers = submodel.dataset(
        (data.train.x, data.train.y[:, None].float()), (data.test.x, data.test.y[:, None].float())
    )
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 1))
    no_labels = {**CONFIG, "local": {"absent_labels": "keep"}}
    fitted = submodel.train(net, numbers, no_labels, loss=nn.functional.mse_loss, clients=lists)
    assert fitted.history[-1]["test_loss"] > 0
    default = submodel.train(made("plain"), submodel.digits(), CONFIG, clients=lists)
    assert default.setup.population.per_round == 4
    assert default.history[0]["clients"] == 4


@pytest.mark.parametrize(
    ("clients", "config", "reason"),
    [
        (3, {}, "^clients: .*int"),
        ([], {}, "^clients: .*empty"),
        ([[0], []], {}, r"^clients\[1\]: "),
        ([[0.5]], {}, r"^clients\[0\]: .*float64"),
        ([[[1]]], {}, r"^clients\[0\]: .*\(1, 1\)"),
        ([[0], [5000]], {}, r"^clients\[1\]: 5000 .*1441"),
        ([[-1]], {}, r"^clients\[0\]: -1 "),
        ([[1, 1]], {}, r"^clients\[0\]: .*\b1\b"),
        ([[0], [1]], {"clients": {"count": 20}}, "^clients.count: 20.* 2"),
        ([[0], [1]], {"clients": {"per_round": 5}}, "^clients.per_round: 5 .*2"),
        ([[0], [1]], {"data": {"partition": "iid"}}, "^data.partition: clients="),
        ([[0], [1]], {"data": {"partition": "dirichlet", "alpha": 1.0}}, "^data.alpha: clients="),
        ([[0], [1]], {"data": {"examples": 100}}, "^data.examples: clients="),
    ],
)
def test_clients_that_cannot_be_are_refused(
    clients: Any, config: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        submodel.train(made("plain"), submodel.digits(), config, clients=clients)


def test_what_the_package_shows_is_its_own() -> None:
    names = set(dir(submodel))
    assert names == {*submodel.__all__, "__version__"}
    assert all(hasattr(submodel, name) for name in names)
