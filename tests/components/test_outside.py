"""An outside component of every type in its own file, in Python and by the command."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from torch import Tensor

import submodel as library
from submodel.algorithm.types import State
from submodel.config import parse
from submodel.config.reading import section_class
from submodel.config.sections import TRACKERS, Config
from submodel.config.setup import prepare
from submodel.core import ConfigError, Registry
from submodel.data.builtin_data import AUGMENTATIONS, TOKENS
from submodel.runs.checkpoint import model_sha256
from submodel.runs.folder import RunFolder
from submodel.runs.loop import run_rounds
from submodel.runs.training import Training
from submodel.schemes.builtin_schemes import SCHEMES
from submodel.tasks.builtin_tasks import METRICS
from tests.support.commands import Command

OUTSIDE = Path(__file__).parent / "outside"
LR = 1 / 64  # a power of two, whose multiples are exact
ROUNDS = 2
BASE: dict[str, Any] = {
    "model": {"name": "mlp", "width": 8},
    "data": {"examples": 60, "test_examples": 20, "partition": "iid"},
    "clients": {"count": 6, "per_round": 2, "capacities": [1.0, 0.5]},
    "local": {"lr": LR, "absent_labels": "keep"},
    "train": {"rounds": ROUNDS, "evaluate_every": 2},
    "engine": {"name": "local", "batching": "never"},
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a working folder with the outside files, which are not importable otherwise."""
    for file in OUTSIDE.glob("*.py"):
        shutil.copy(file, tmp_path)
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
    (tmp_path / "play.txt").write_text("to be, or not to be: " * 60)
    (tmp_path / "raising.py").write_text('raise RuntimeError("out of order")\n')
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def laid_over(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Merge changes into a configuration; a section with another engine or model starts anew."""
    merged = {**base, **change}
    for name in base.keys() & change.keys() - {"model", "engine"}:
        section = {**base[name], **change[name]}
        merged[name] = {key: value for key, value in section.items() if value is not None}
    return merged


@dataclass
class Trained:
    """A run in Python with all its states."""

    training: Training
    states: list[State] = field(default_factory=list)
    history: list[Any] = field(default_factory=list)

    @property
    def sha256(self) -> str:
        return model_sha256(self.states[-1].tensors)

    def tensors(self, name: str) -> list[Tensor]:
        return [state.tensors[name] for state in self.states]


class States(library.Callback):
    """Record all states."""

    def __init__(self) -> None:
        self.seen: list[State] = []

    def after_round(self, before: State, after: State, line: Any) -> None:
        self.seen += [after] if self.seen else [before, after]


RUN = Path("python")


def from_python(change: dict[str, Any]) -> Trained:
    """Train; a folder `RUN` is made if trackers need it."""
    config = parse(laid_over(BASE, change))
    training, states, folder = Training(config, prepare(config)), States(), None
    if config.train.trackers:
        folder = RunFolder(RUN)
        folder.create(config)
    _, history = run_rounds(training, folder, [states])
    return Trained(training, states.seen, history)


@dataclass(frozen=True)
class Case:
    """Settings that name an outside component, and a check of a run with it."""

    change: dict[str, Any]
    special: Callable[[Trained], None]


def _scheme(run: Trained) -> None:
    """Check that all clients but one hold the last four of eight units, so the others keep their
    bits.
    """
    first, *_, last = run.tensors("1.weight")
    held = torch.tensor([False, False, False, True, True, True, True, False])
    assert torch.equal(first[~held], last[~held])
    assert (first != last)[held].any(1).all()


def _model(run: Trained) -> None:
    shapes = {name: tuple(t.shape) for name, t in run.states[-1].tensors.items()}
    weights = {name: shape for name, shape in shapes.items() if name.endswith("weight")}
    assert weights == {
        "1.weight": (5, 64),
        "3.weight": (5, 5),
        "5.weight": (5, 5),
        "7.weight": (10, 5),
    }


def _source(run: Trained) -> None:
    data = run.training.setup.clients.dataset
    assert (len(data.train), data.classes, data.inputs) == (30, 2, (3,))
    means = [float(data.train.x[data.train.y == label].mean()) for label in (0, 1)]
    assert means[1] - means[0] == pytest.approx(50, abs=1)  # standard normal around 0 and 50


def _partition(run: Trained) -> None:
    clients = run.training.setup.clients
    assert [len(clients.examples(client)) for client in range(6)] == [7, 7, 7, 7, 7, 25]
    data = clients.dataset.train
    assert torch.equal(clients.examples(1).x, data.x[7:14])


def _loss(run: Trained) -> None:
    """Check that twice the loss equals twice the learning rate; doubling does not round."""
    plain = from_python({"local": {"lr": 2 * LR, "momentum": 0.0}})
    assert plain.sha256 == run.sha256
    for line, other in zip(run.history, plain.history, strict=True):
        assert line["train_loss"] == 2 * other["train_loss"]


def _task(run: Trained) -> None:
    """Check that the loss is trained, and the metric is reported as headline."""
    plain = from_python({"local": {"lr": 2 * LR, "momentum": 0.0}})
    assert plain.sha256 == run.sha256
    assert run.history[-1]["test_good"] == plain.history[-1]["test_accuracy"]
    assert run.history[-1]["capacity_good"] == plain.history[-1]["capacity_accuracy"]
    assert "test_accuracy" not in run.history[-1]


def _signs(run: Trained) -> None:
    """Check that every weight moves by exactly lr per step, or has no gradient and stays."""
    for before, after in zip(run.states, run.states[1:], strict=False):
        for name, old in before.tensors.items():
            new = after.tensors[name]
            assert ((new == old) | (new == old + 2 * LR) | (new == old - 2 * LR)).all()
            assert (new != old).any()


def _schedule(run: Trained) -> None:
    hashes = [model_sha256(state.tensors) for state in run.states]
    assert hashes[0] != hashes[1] == hashes[2]


def _halves(run: Trained) -> None:
    """Check that with one client per round, the change is exactly halved."""
    change = {"clients": {"per_round": 1}, "train": {"rounds": 1}}
    selective = from_python(change).states
    for name, start in selective[0].tensors.items():
        old, new = start.double(), selective[1].tensors[name].double()
        assert torch.equal(run.states[1].tensors[name], (old + (new - old) / 2).float())


def _projection(run: Trained) -> None:
    assert any((tensor < 0).any() for tensor in run.states[0].tensors.values())
    for state in run.states[1:]:
        assert all((tensor >= 0).all() for tensor in state.tensors.values())


def _server(run: Trained) -> None:
    """Check the steps: whole in the first round, a quarter in the second, with memory."""
    assert [float(state.memory["server/share"]) for state in run.states] == [1, 0.25, 0.0625]
    plain = from_python({}).states
    for name, start in plain[1].tensors.items():
        assert torch.equal(run.states[1].tensors[name], start)
        old, new = start.double(), plain[2].tensors[name].double()
        assert torch.equal(run.states[2].tensors[name], (old + 0.25 * (new - old)).float())


def _engine(run: Trained) -> None:
    """Check that any order gives the same model."""
    noted = [tuple(map(int, line.split())) for line in Path("notes.txt").read_text().splitlines()]
    assert [round_ for round_, _ in noted] == [0, 0, 1, 1]
    assert from_python({}).sha256 == run.sha256


def _metric(run: Trained) -> None:
    """Check that the metric is reported, with the highest values as the worst clients."""
    line = run.history[-1]
    assert line["test_misses"] == pytest.approx(1 - line["test_accuracy"])
    clients = line["client_misses"]
    assert clients["mean"] == pytest.approx(1 - line["client_accuracy"]["mean"])
    assert clients["worst_quarter"] == pytest.approx(1 - line["client_accuracy"]["worst_quarter"])
    assert clients["worst_quarter"] > clients["mean"]


def _augmentation(run: Trained) -> None:
    """Check that training differs from the plain one, and is repeatable."""
    assert run.sha256 != from_python({}).sha256
    assert run.sha256 == from_python({"data": {"augment": [AUGMENTATION]}}).sha256


def _tokeniser(run: Trained) -> None:
    data = run.training.setup.clients.dataset
    assert data.text is not None
    assert data.text.vocabulary == 3
    assert data.train.x[0, :5].tolist() == [1, 0, 2, 1, 0]  # as in "to be"
    assert run.history[-1]["test_perplexity"] > 1


def _tracker(run: Trained) -> None:
    _check_notes(RUN, run.history)


def _check_notes(run: Path, history: list[Any]) -> None:
    lines = [f"digits {line['round']} {line['train_loss']}" for line in history]
    assert (run / "notes.txt").read_text().splitlines() == lines


SIGNS = {
    "local": {
        "optimiser": "an_optimiser:SignSgd",
        "stretch": 2.0,
        "steps": 1,
    },
    "clients": {"per_round": 1, "capacities": [1.0]},
}
AUGMENTATION = "an_augmentation:negatives"
TEXT: dict[str, Any] = {
    "model": {"name": "gpt", "width": 8, "layers": 1, "heads": 2},
    "data": {
        "name": "text:play.txt",
        "tokens": "a_tokeniser:Sounds",
        "length": 8,
        "examples": None,
        "test_examples": None,
    },
}
CASES = {
    "scheme": Case(
        {"scheme": {"name": "a_scheme:Last", "spare": 1}, "clients": {"capacities": [0.5]}}, _scheme
    ),
    "model": Case({"model": {"name": "a_model:Tower", "floors": 3, "rooms": 5}}, _model),
    "data source": Case(
        {"data": {"name": "a_source:clouds", "options": {"distance": 50}, "examples": 30}}, _source
    ),
    "partition": Case(
        {"data": {"partition": "a_partition:blocks", "options": {"size": 7}}}, _partition
    ),
    "loss": Case({"task": {"loss": "a_loss:doubled"}, "local": {"momentum": 0.0}}, _loss),
    "task": Case(
        {
            "task": {"name": "a_task:insistent", "options": {"name": "good"}},
            "local": {"momentum": 0.0},
        },
        _task,
    ),
    "optimiser": Case(SIGNS, _signs),
    "optimiser, in stacks": Case(
        {**SIGNS, "engine": {"name": "local", "batching": "always"}}, _signs
    ),
    "schedule": Case(
        {"local": {"schedule": "a_schedule:Rests", "options": {"after": 1}}}, _schedule
    ),
    "merge rule": Case(
        {"merge": {"rule": "a_merge_rule:Cautious"}, "clients": {"per_round": 1}}, _halves
    ),
    "projection": Case({"merge": {"projection": "a_projection:positive"}}, _projection),
    "server step": Case({"server": {"name": "a_server_step:Slowing", "keep": "1/4"}}, _server),
    "engine": Case(
        {"engine": {"name": "an_engine:Backwards", "options": {"notes": "notes.txt"}}}, _engine
    ),
    "metric": Case(
        {
            "task": {"metrics": ["accuracy", "a_metric:misses"]},
            "train": {"evaluate_clients": "submodel"},
        },
        _metric,
    ),
    "augmentation": Case({"data": {"augment": [AUGMENTATION]}}, _augmentation),
    "tokeniser": Case(TEXT, _tokeniser),
    "tracker": Case({"train": {"trackers": ["a_tracker:Notes"]}}, _tracker),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_it_trains_from_python_and_from_the_command_line(kind: str, submodel: Command) -> None:
    case = CASES[kind]
    run = from_python(case.change)
    assert len(run.history) == ROUNDS
    case.special(run)
    Path("run.toml").write_text(tomli_w.dumps(laid_over(BASE, case.change)))
    done = submodel("train", "run.toml", "--out", "command")
    assert done.returncode == 0, done.stderr
    opened = library.open("command")
    assert opened.summary is not None
    assert opened.summary["model_sha256"] == run.sha256
    if kind == "tracker":
        _check_notes(Path("command"), opened.history)


@pytest.mark.slow
@pytest.mark.parametrize("path_leads_there", [True, False])
@pytest.mark.parametrize("kind", [kind for kind in CASES if "," not in kind])
def test_the_class_or_function_may_stand_for_its_path(
    kind: str, path_leads_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[kind]
    by_path = from_python(case.change)
    shutil.rmtree(RUN, ignore_errors=True)
    Path("notes.txt").unlink(missing_ok=True)
    kinds = {**KINDS, "task.metrics": METRICS, "data.augment": AUGMENTATIONS, "data.tokens": TOKENS}
    key = next(key for key, one in kinds.items() if one.noun == kind)
    section, name = key.split(".")
    value = case.change[section][name]
    path = value[-1] if isinstance(value, list) else value
    target = kinds[key].find(path).target
    if not path_leads_there:
        monkeypatch.setattr(target, "__module__", "__main__")
    given = [*value[:-1], target] if isinstance(value, list) else target
    run = from_python({**case.change, section: {**case.change[section], name: given}})
    assert run.sha256 == by_path.sha256
    case.special(run)
    recorded = getattr(getattr(run.training.config, section), name)
    recorded = recorded[-1] if isinstance(recorded, list) else recorded
    assert recorded == (path if path_leads_there else f"python:{target.__name__}")


def test_a_callback_trains_from_python(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(here)
    from a_callback import Distance  # type: ignore[import-not-found]

    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    config = {"train": {"rounds": ROUNDS}, "scheme": {"granularity": "coordinate"}}
    result = library.train(net, library.digits(), config, callbacks=[Distance()], progress=False)
    start = dict(net.named_parameters())
    moves = [(t - start[n].detach()).double() for n, t in result.state.tensors.items()]
    distance = float(sum(move.square().sum() for move in moves)) ** 0.5
    assert result.history[-1]["distance"] == distance > 0


KINDS: dict[str, Registry[Any]] = {
    f"{section}.{choice}": kind
    for section in Config.model_fields
    for choice, kind in getattr(section_class(section), "choices", {}).items()
} | {TRACKERS.key: TRACKERS}


def test_there_is_an_outsider_of_every_kind() -> None:
    assert {kind.noun for kind in KINDS.values()} <= CASES.keys()
    assert all(key == kind.key for key, kind in KINDS.items())


def path_of(kind: Registry[Any]) -> str:
    section, _, key = kind.key.partition(".")
    value = CASES[kind.noun].change[section][key]
    return str(value[0] if isinstance(value, list) else value)


@pytest.fixture
def installed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a package with entry points for all components, like an installer."""
    info = here / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: outside\nVersion: 1.0\n")
    groups = [
        f"[{kind.group}]\noutside = {path_of(kind)}\nruin = raising:It\n" for kind in KINDS.values()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))
    monkeypatch.syspath_prepend(here)


@pytest.mark.usefixtures("installed")
def test_an_offer_whose_code_raises_is_told_by_its_name() -> None:
    (problem,) = started(KINDS["scheme.name"], "ruin").problems
    assert re.match("scheme.name: 'ruin': 'raising' .*RuntimeError: out of order", problem)


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_each_is_found_by_the_name_that_its_package_offers() -> None:
    change: dict[str, Any] = {}
    for kind in KINDS.values():
        assert "outside" in kind.names()
        assert kind.find("outside").target is kind.find(path_of(kind)).target
        section, _, key = kind.key.partition(".")
        given = dict(CASES[kind.noun].change[section])
        given[key] = ["outside"] if kind is TRACKERS else "outside"
        change[section] = laid_over(change.get(section, {}), given)
    del change["data"]["options"], change["data"]["partition"]  # both have options
    del change["task"]["options"]
    run = from_python(change)
    assert len(run.history) == ROUNDS
    _check_notes(RUN, run.history)


def started(kind: Registry[Any], name: str, **keys: Any) -> ConfigError:
    """Collect all messages about a component before the first round."""
    section, _, key = kind.key.partition(".")
    value = [name] if kind is TRACKERS else name
    with pytest.raises(ConfigError) as caught:
        from_python({section: {key: value, **keys}})
    return caught.value


MISTAKES = {
    "not of the kind": ("broken:Nothing", "a Nothing, "),
    "its code raises": ("broken:Raising", "ValueError: no luck today"),
    "its module raises": ("raising:It", "RuntimeError: out of order"),
    "not there": ("broken:Lost", "'broken' .*'Lost'"),
    "no such module": ("lost:It", "'lost'"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_is_wrong_with_a_component_is_said_in_a_sentence(kind: str, mistake: str) -> None:
    name, reason = MISTAKES[mistake]
    (problem,) = started(KINDS[kind], name).problems
    assert re.match(f"{kind}: {name!r}.*{reason}", problem)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind] is not TRACKERS])
def test_what_is_wrong_with_its_keys_is_said_in_a_sentence(kind: str) -> None:
    section = kind.partition(".")[0]
    name = "broken:Needy"
    reasons: dict[str, dict[str, Any]] = {
        f"{section}.amuont: {name!r} .*'amount'": {"amuont": 3, "amount": 1},
        f"{section}.amount: 'much' .*number .*{name!r}": {"amount": "much"},
        f"{section}.amount: 0 .*1 .*{name!r}": {"amount": 0},
        f"{section}.amount: .*missing .*{name!r}": {},
    }
    for reason, keys in reasons.items():
        (problem,) = started(KINDS[kind], name, **keys).problems
        assert re.match(reason, problem)


@pytest.mark.parametrize(
    "change",
    [
        {"data": {"name": "a_source:clouds", "options": {"distnace": 1}}},
        {"engine": {"name": "an_engine:Backwards"}},
        {"local": {"schedule": "a_schedule:Rests"}},
    ],
)
def test_arguments_that_it_does_not_take_or_lacks_are_named(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        from_python(change)
    (problem,) = caught.value.problems
    ((section, keys),) = change.items()
    name = next(value for value in keys.values() if ":" in str(value))
    assert re.match(rf"{section}\.\w+: '{name}' .*(distnace|missing 1 required)", problem)


CONTEXTS = {
    "model.name": "ModelContext",
    "task.name": "NoneType",
    "task.loss": "NoneType",
    "data.name": "SourceContext",
    "data.partition": "PartitionContext",
    "merge.rule": "NoneType",
    "merge.projection": "NoneType",
    "server.name": "NoneType",
    "local.optimiser": "NoneType",
    "local.schedule": "int",
    "engine.name": "EngineContext",
    "train.trackers": "TrackerContext",
}
"""Arguments of components by type; schemes are checked when they are made."""


@pytest.mark.parametrize("name", ["picky:Picky", "picky:Heir"])
@pytest.mark.parametrize("kind", CONTEXTS)
def test_one_that_is_not_defined_for_a_run_says_so_and_is_not_made(kind: str, name: str) -> None:
    keys = {} if kind == TRACKERS.key else {"amount": 7}
    problems = started(KINDS[kind], name, **keys).problems
    assert problems == (f"{keys.get('amount', 3)} of a {CONTEXTS[kind]}",)


def test_every_kind_but_schemes_is_asked_before() -> None:
    assert CONTEXTS.keys() == KINDS.keys() - {"scheme.name"}
    assert [key for key, kind in KINDS.items() if kind.checks_made_objects] == ["scheme.name"]


def test_what_components_say_is_told_at_once() -> None:
    change = {
        "merge": {"rule": "picky:Halves", "weights": "examples", "projection": "lost:It"},
        "server": {"name": "picky:Picky"},
        "local": {"optimiser": "picky:Picky", "drop_last": True, "batch_size": 0},
        "data": {"name": "picky:Picky", "amount": 9},
    }
    with pytest.raises(ConfigError) as caught:
        from_python(change)
    *others, projection, server, unused = caught.value.problems
    assert others == [
        "9 of a SourceContext",
        "3 of a NoneType",
        "merge.weights: 'examples' is not for halves",
    ]
    assert projection.startswith("merge.projection: 'lost:It': ")
    assert server == "3 of a NoneType"
    assert unused.startswith("local.drop_last: ")


def test_trackers_say_it_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        from_python({"train": {"trackers": ["picky:Picky", "picky:Heir"]}})
    assert caught.value.problems == ("3 of a TrackerContext",) * 2


def test_a_component_without_problems_is_made() -> None:
    alike = {"merge": {"rule": "picky:Halves"}, "clients": {"per_round": 1}}
    same = from_python({"merge": {"rule": "a_merge_rule:Cautious"}, "clients": {"per_round": 1}})
    assert from_python(alike).sha256 == same.sha256


@pytest.mark.parametrize("kind", CONTEXTS)
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("picky:Late", ".*classmethod"),
        ("picky:Silent", ".*'no'.*list"),
        ("picky:Clumsy", ".*LookupError: no words"),
    ],
)
def test_one_that_says_it_wrongly_is_told_how(kind: str, name: str, reason: str) -> None:
    (problem,) = started(KINDS[kind], name).problems
    assert re.match(f"{kind}: {name!r}: {reason}", problem)


@pytest.mark.slow
def test_files_of_the_working_folder_stand_in_for_no_package(here: Path) -> None:
    """A user's files may have the names of packages, also in the processes of a run."""
    for name in ("sklearn", "matplotlib", "datasets", "typer"):
        (here / f"{name}.py").write_text('raise RuntimeError("not the package")\n')
    settings = ["scheme.name=a_scheme:Last", "scheme.spare=0", "train.rounds=1", "model.name=mlp"]
    words = ["train", *(f"--set={text}" for text in settings), "--out=run", "--processes=2"]
    code = "from submodel.cli import main; main()"
    command = [sys.executable, "-P", "-c", code, *words]  # the path of the installed script
    done = subprocess.run(command, cwd=here, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (here / "run/curves.png").is_file()


def test_the_working_folder_counts_after_all_others_and_only_for_own_paths(here: Path) -> None:
    path = list(sys.path)
    assert SCHEMES.find("rolling").name
    assert sys.path == path
    assert SCHEMES.find("a_scheme:Last").name
    assert sys.path == [*path, str(here)]
    (here / "json.py").write_text("class Mine: ...\n")
    with pytest.raises(ConfigError, match=r"^scheme\.name: .* rename json\.py"):
        SCHEMES.find("json:Mine")
