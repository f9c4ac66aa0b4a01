"""What is given is used or refused: a setting that would mean nothing is answered by a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

import submodel as library
from submodel.config import Config, parse
from submodel.config.reading import section_class
from submodel.errors import ConfigError
from submodel.options import compose
from submodel.plugins import Kind
from submodel.prepare.engine import choose_engine
from submodel.prepare.setup import prepare
from tests.pins import errors
from tests.support.commands import Command

SMALL = {"name": "mlp", "width": 8}


def factory(width: int = 4) -> nn.Module:
    """A model of the user's own, as a configuration names it."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


FACTORY = "tests.config.test_nothing_is_ignored:factory"

IN_A_CONFIGURATION: dict[str, dict[str, Any]] = {
    "scheme.windows: 'random' has no such key; it goes with scheme.name = rolling": {
        "scheme": {"name": "random", "windows": 8}
    },
    "scheme.sampling: 'rolling' has no such key; it goes with scheme.name = random or unbiased": {
        "scheme": {"sampling": "fixed"}
    },
    "scheme.scope: 'static' has no such key; it goes with scheme.name = importance": {
        "scheme": {"name": "static", "scope": "global"}
    },
    "scheme.sequence: 'random' has no such key; it goes with scheme.name = masked-sgd": {
        "scheme": {"name": "random", "sequence": "random"}
    },
    "scheme.options: 'rolling' takes keys, not options, which are for own code": {
        "scheme": {"options": {"windows": 8}}
    },
    f"model.width: '{FACTORY}' has no such key; it goes with model.name = mlp": {
        "model": {"name": FACTORY, "width": 8}
    },
    "model.options: 'cnn' takes keys, not options, which are for own code": {
        "model": {"name": "cnn", "options": {"width": 8}}
    },
    "model.rank_share: goes with factorised = true": {"model": {"rank_share": 0.5}},
    'model.adapter_rank: goes with adapters = "lora"': {"model": {"adapter_rank": 4}},
    'model.adapter_dropout: goes with adapters = "lora"': {"model": {"adapter_dropout": 0.0}},
    "model.adapters: stand beside layers as they are": {
        "model": {"adapters": "lora", "factorised": True}
    },
    "task.options: 'auto' takes keys": {"task": {"options": {"reduction": "sum"}}},
    "data.alpha: 'iid' has no such key; it goes with data.partition = dirichlet": {
        "data": {"partition": "iid", "alpha": 0.5}
    },
    "data.path: 'digits' has no such key; it goes with data.name = cifar10": {
        "data": {"path": "digits.csv"}
    },
    "local.decay: 'constant' has no such key; it goes with local.schedule = step": {
        "local": {"decay": 0.5}
    },
    "local.milestones: 'cosine' has no such key; it goes with local.schedule = step": {
        "local": {"schedule": "cosine", "milestones": [3]}
    },
    "local.steps: give epochs or steps, not both": {"local": {"steps": 3, "epochs": 1}},
    "merge.radius: 'none' has no such key; it goes with merge.projection = ball or box": {
        "merge": {"radius": 1.0}
    },
    "server.momentum: 'plain' has no such key; it goes with server.name = momentum": {
        "server": {"momentum": 0.5}
    },
    "engine.processes: 'local' has no such key; it goes with engine.name = auto or torchrun": {
        "engine": {"name": "local", "processes": 2}
    },
    "clients.groups: go with sampling = cyclic or shuffled-cyclic": {"clients": {"groups": 2}},
    "devices.least: goes with engine.name = flower": {"devices": {"least": 2}},
    "devices.transport: goes with engine.name = flower": {"devices": {"transport": "half"}},
    "clients.cuont: no such key; did you mean 'count'?": {"clients": {"cuont": 5}},
    "sceme: no such key; did you mean 'scheme'?": {"sceme": {"name": "full"}},
    "clients.width: no such key; there is model.width; allowed here": {"clients": {"width": 5}},
    "clients.lr: no such key; there are server.lr and local.lr": {"clients": {"lr": 0.1}},
    "rounds: no such key; there is train.rounds": {"rounds": 5},
    "scheme.alpha: no such key; there is data.alpha (with data.partition = dirichlet)": {
        "scheme": {"alpha": 0.5}
    },
}


@pytest.mark.parametrize("sentence", IN_A_CONFIGURATION)
def test_a_configuration_with_a_key_that_nothing_uses_is_refused(sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(IN_A_CONFIGURATION[sentence])
    errors.check("unused in a configuration", IN_A_CONFIGURATION[sentence], caught.value)
    (problem,) = caught.value.problems
    assert problem.startswith(sentence)


CHOICES = [
    (section, choice, kind)
    for section in Config.model_fields
    for choice, kind in getattr(section_class(section), "choices", {}).items()
]


@pytest.mark.parametrize(
    ("section", "choice", "kind"), CHOICES, ids=lambda x: getattr(x, "noun", x)
)
def test_a_key_of_another_component_is_refused_with_every_component(
    section: str, choice: str, kind: Kind[Any]
) -> None:
    names = {n: f"{n}:x" if n in kind.prefixes else n for n in kind.offers}
    keys = {n: set(kind.find(name).options.model_fields) for n, name in names.items()}
    base = section_class(section)
    assert base is not None
    for name in names.values():
        for key in set().union(*keys.values()) - set(compose(base, {choice: name}).model_fields):
            with pytest.raises(ConfigError) as caught:
                parse({section: {choice: name, key: 1}})
            owners = " or ".join(other for other in keys if key in keys[other])
            sentence = f"{section}.{key}: {name!r} has no such key; it goes with "
            assert f"{sentence}{section}.{choice} = {owners}" in caught.value.problems


IN_A_RUN: dict[str, dict[str, Any]] = {
    "axes.least: says how many units of an axis a client holds": {
        "scheme": {"granularity": "coordinate"},
        "axes": {"least": {"1": 0.5}},
    },
    "axes.whole: nothing is cut along axes with scheme.granularity = 'coordinate'": {
        "scheme": {"granularity": "coordinate"},
        "local": {"absent_labels": "keep"},
        "axes": {"whole": ["1"]},
    },
    "train.evaluate_train_examples: goes with train.evaluate_train = true": {
        "train": {"evaluate_train_examples": 5}
    },
    "local.drop_last: goes with batches": {"local": {"drop_last": True, "batch_size": 0}},
    "axes.least: 'nowhere' is not an axis": {"axes": {"least": {"nowhere": 0.5}}},
    "model.options: ": {"model": {"name": FACTORY, "options": {"wdith": 8}}},
}


@pytest.mark.parametrize("sentence", IN_A_RUN)
def test_a_run_with_a_setting_that_it_cannot_use_is_refused(sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(parse({"model": SMALL, **IN_A_RUN[sentence]}))
    errors.check("unused in a run", IN_A_RUN[sentence], caught.value)
    (problem,) = caught.value.problems
    assert problem.startswith(sentence)


def test_fewer_examples_are_taken_also_of_a_source_that_does_not_count_them() -> None:
    data = {"name": "submodel:digits", "examples": 100, "test_examples": 20, "partition": "iid"}
    found = prepare(parse({"model": SMALL, "data": data})).clients.dataset
    assert (len(found.train), len(found.test)) == (100, 20)


ELSEWHERE = "engine: submodel.train computes in this process"
FROM_PYTHON: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    ELSEWHERE: ({"engine": {"name": "torchrun"}}, {}),
    f"{ELSEWHERE} (name 'auto' or 'local', no processes); 'submodel serve": (
        {"engine": {"name": "flower"}},
        {},
    ),
    f"{ELSEWHERE} (": ({"engine": {"processes": 2}}, {}),
    "model.name: 'cnn' is given, and a model in Python; leave one out": (
        {"model": {"name": "cnn"}},
        {},
    ),
    "model.width: goes with the models of a configuration": ({"model": {"width": 8}}, {}),
    "data.name: 'digits' is given, and data in Python; leave one out": (
        {"data": {"name": "digits"}},
        {},
    ),
    "data.path: 'digits' has no such key": ({"data": {"path": "x"}}, {}),
    "devices.deadline: goes with engine.name = flower": ({"devices": {"deadline": 5}}, {}),
    "resume: goes with out": ({}, {"resume": True}),
    "axes.freeze: changes the traced axes, and axes= gives others": (
        {"axes": {"freeze": ["1"]}},
        {"axes": {}},
    ),
    "data.partition: clients= lists who has which examples": (
        {"data": {"partition": "iid"}},
        {"clients": [[0, 1], [2, 3]]},
    ),
}


@pytest.mark.parametrize("sentence", FROM_PYTHON)
def test_training_from_python_refuses_what_it_would_not_follow(sentence: str) -> None:
    config, arguments = FROM_PYTHON[sentence]
    with pytest.raises(ConfigError) as caught:
        library.train(factory(), library.digits(), config, progress=False, **arguments)
    errors.check("unused from Python", FROM_PYTHON[sentence], caught.value)
    (problem,) = caught.value.problems
    assert problem.startswith(sentence)


def test_the_path_of_a_source_is_refused_with_data_in_python() -> None:
    config = {"data": {"name": "cifar10", "path": "x"}}
    with pytest.raises(ConfigError, match=r"data\.path: goes with the data sources") as caught:
        library.train(factory(), library.digits(), config, progress=False)
    assert len(caught.value.problems) == 2


AT_THE_COMMAND_LINE = {
    "engine.processes: 0 is less than 1": ["--processes", "0"],
    "--processes: goes with the engine torchrun, not with 'local'": [
        *("--processes", "2", "--engine", "local"),
    ],
    "engine.processes: 'local' has no such key; it goes with": [
        *("--set", "engine.name=local", "--set", "engine.processes=2"),
    ],
    "engine.name: real devices are served": ["--engine", "flower"],
    "clients.cuont: no such key; did you mean 'count'?": ["--set", "clients.cuont=5"],
}


@pytest.mark.slow
@pytest.mark.parametrize("sentence", AT_THE_COMMAND_LINE)
def test_the_command_refuses_it_too_and_begins_no_run(
    sentence: str, submodel: Command, tmp_path: Path
) -> None:
    done = submodel("train", *AT_THE_COMMAND_LINE[sentence], cwd=tmp_path)
    errors.check("unused at the command line", AT_THE_COMMAND_LINE[sentence], done)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_loss_in_the_configuration_and_one_in_python_are_one_too_many() -> None:
    config = {"task": {"loss": "squared-error"}}
    loss = nn.functional.cross_entropy
    with pytest.raises(ConfigError, match=r"task\.loss: 'squared-error' is given, and a loss in"):
        library.train(factory(), library.digits(), config, loss=loss, progress=False)


def test_an_own_engine_is_not_replaced_by_the_processes_of_torchrun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    config = parse({"model": SMALL, "engine": {"name": "my_engines:Engine"}})
    with pytest.raises(ConfigError, match=r"engine\.name: 'my_engines:Engine' computes in one"):
        choose_engine(config, prepare(config))
    assert (
        choose_engine(parse({"model": SMALL}), prepare(parse({"model": SMALL}))).engine.processes
        == 2
    )


def test_what_is_set_to_its_default_is_no_mistake() -> None:
    assert parse({"devices": {"quorum": 1.0}}) == parse({})
