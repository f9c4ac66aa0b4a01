"""The recipes of docs/extending work as written; every kind of component is in the table."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import submodel
from submodel.algorithm.merge.rules import average
from submodel.config import parse
from submodel.config.reading import section_class
from submodel.config.sections import TRACKERS, Config
from submodel.config.setup import prepare
from submodel.core import generator
from submodel.core.registry import Registry, find
from submodel.data.builtin_data import AUGMENTATIONS, TOKENS
from submodel.data.sources import load_dataset
from submodel.data.text.tokens import TokensContext
from submodel.tasks.builtin_tasks import METRICS

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs/extending").glob("*.md"))
PAGE = "\n".join(path.read_text("utf-8") for path in PAGES)
FILES = dict(re.findall(r"<!-- (\w+)\.py -->\n```python\n(.*?)```", PAGE, re.DOTALL))
ENTRIES = re.findall(r'`"(\w+)":\s+Entry\("submodel\.[\w.]+:(\w+)"', PAGE)
KINDS: list[Registry[Any]] = [
    *(AUGMENTATIONS, METRICS, TOKENS, TRACKERS),
    *(kind for name in Config.model_fields
      for kind in getattr(section_class(name), "choices", {}).values()),
]  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a working folder with the recipes' files."""
    for name, code in FILES.items():
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


def test_every_recipe_has_its_code_and_its_registration() -> None:
    recipes = re.findall(r"^## An? ", PAGE, re.MULTILINE)
    assert len(recipes) == len(ENTRIES) == 13
    assert set(FILES) == {"test_middle", *(name for name, _ in ENTRIES)}
    for name in FILES.keys() - {"test_middle"}:
        assert 10 <= len([line for line in FILES[name].splitlines() if line.strip()]) <= 25


@pytest.mark.parametrize(("name", "target"), ENTRIES)
def test_what_is_registered_is_there(name: str, target: str) -> None:
    assert callable(recipe(f"{name}:{target}"))
    assert all(name not in kind.entries for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.noun)
def test_the_table_says_where_each_kind_is_registered(kind: Registry[Any]) -> None:
    row = rf"\| {kind.noun} \| `{kind.key}` \| `([\w./]+)` \| `{re.escape(kind.group)}` \|"
    (file,) = re.findall(row, PAGE)
    assert f'key="{kind.key}"' in (ROOT / file).read_text() or kind is TRACKERS
    assert "entries={" in (ROOT / file).read_text()


def test_the_entry_points_are_toml() -> None:
    for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL):
        assert tomllib.loads(block)["project"]["entry-points"]


def test_the_commands_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make ([\w-]+)`", (ROOT / "CONTRIBUTING.md").read_text("utf-8")):
        assert f"\n{target}:" in makefile


def recipe(path: str) -> Any:
    """Return the class of a recipe, by file and name."""
    return find(path, "recipe")


def small_net(width: int = 8, outputs: int = 10) -> torch.nn.Module:
    """Make a net for the digits."""
    first, last = torch.nn.Linear(64, width), torch.nn.Linear(width, outputs)
    return torch.nn.Sequential(torch.nn.Flatten(), first, last)


@pytest.mark.slow
def test_the_scheme_passes_the_test_of_its_page() -> None:
    module = importlib.import_module("test_middle")
    module.test_it_is_a_window_that_moves()
    module.test_it_keeps_what_schemes_must_keep()


def test_capacities_cut_the_hidden_layer_of_the_model() -> None:
    setup = prepare(parse({"model": {"name": "tiny:Tiny", "width": 12}}))
    assert dict(setup.axes.cut_by_capacity) == {"1": 12}


def test_the_dataset_has_two_classes_of_points_in_the_plane() -> None:
    data = load_dataset("moons:Moons", examples=100, noise=0.01)
    assert (len(data.train), data.classes, data.inputs) == (100, 2, (2,))
    assert (data.train.x.norm(dim=1)[data.train.y == 0] - 1).abs().max() < 0.06  # six deviations


def test_the_tokeniser_restores_text() -> None:
    tokens = recipe("words:Words")(TokensContext(lambda: ["to be, or not to be"]))
    assert tokens.decode(tokens.encode("not to be")) == "not to be"
    assert tokens.encode("whether").tolist() == [0]


def test_a_text_is_read_with_the_tokeniser(tmp_path: Path) -> None:
    (tmp_path / "play.txt").write_text("to be, or not to be: " * 50)
    data = load_dataset(f"text:{tmp_path / 'play.txt'}", tokens="words:Words", length=8)
    assert data.text is not None
    assert data.text.vocabulary == 8  # four words, blank, comma, colon, and all others


def test_the_augmentation_blackens_a_quarter() -> None:
    after = recipe("erase:Erase")((0.5,))(torch.ones(5, 1, 8, 8), generator(0, "test"))
    assert [(image == 0.5).sum().item() for image in after] == [16] * 5


@pytest.mark.slow
def test_the_augmentation_trains() -> None:
    config = {"data": {"augment": ["erase:Erase"]}, "train": {"rounds": 2}}
    assert submodel.train(small_net(), submodel.digits(), config, progress=False).setup.augment


def test_the_optimiser_moves_every_weight_by_the_learning_rate() -> None:
    weights = [torch.tensor([1.0, 1.0, 1.0])]
    recipe("sign:SignSgd")().step(weights, [torch.tensor([3.0, -0.1, 0.0])], [], lr=0.25)
    assert weights[0].tolist() == [0.75, 1.25, 1.0]


def test_the_merge_rule_halves_the_change_of_one_holder() -> None:
    whole, change, holder_weight = torch.tensor([[0.0, 0.0], [2.0, 6.0], [1.0, 3.0]])
    new = average(whole, change, holder_weight, 3.0, recipe("shrinking:Shrinking")(1.0))
    assert new.tolist() == [1.0, 1.5]


def test_the_server_step_bounds_the_change_of_a_weight() -> None:
    old, target = {"w": torch.zeros(3)}, {"w": torch.tensor([0.25, 2.0, -3.0])}
    covered = {"w": torch.ones(3, dtype=torch.bool)}
    new, memory = recipe("capped:Capped")(0.5).step(old, target, covered, {})
    assert (new["w"].tolist(), memory) == ([0.25, 0.5, -0.5], {})


@pytest.mark.slow
def test_the_engine_gives_the_same_model() -> None:
    torch.manual_seed(0)
    net, models = small_net(), []
    for engine in ({"name": "local", "batching": "never"}, {"name": "backwards:Backwards"}):
        config = {"engine": engine, "train": {"rounds": 2}}
        models.append(submodel.train(net, submodel.digits(), config, progress=False).state.tensors)
    assert all(torch.equal(tensor, models[1][name]) for name, tensor in models[0].items())


@pytest.mark.slow
def test_the_tracker_notes_every_round(tmp_path: Path) -> None:
    net, config = small_net(), {"train": {"rounds": 3, "trackers": ["notes:Notes"]}}
    submodel.train(net, submodel.digits(), config, out=tmp_path / "run", progress=False)
    run = submodel.open(tmp_path / "run", model=net, data=submodel.digits())
    run.resume({"train": {"rounds": 4}}, progress=False)
    lines = (tmp_path / "run/notes.txt").read_text().splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"round {n}" for n in (1, 2, 3, 4)]


@pytest.mark.slow
def test_the_task_learns_its_inputs() -> None:
    config = {
        "task": {"name": "reconstruction:Reconstruction", "robust": True},
        "train": {"rounds": 6, "evaluate_every": 3},
    }
    net = small_net(16, 64)
    history = submodel.train(net, submodel.digits(), config, progress=False).history
    assert history[5]["test_r2"] > history[2]["test_r2"]
    assert set(history[5]["capacity_r2"]) == {"1", "0.5", "0.25", "0.125"}


def test_the_metric_is_the_accuracy_of_the_worst_class() -> None:
    metric, outputs = recipe("weakest:Weakest")(2), torch.eye(2)[[0, 0, 0, 1, 1]]
    sums = metric.sums(outputs, torch.tensor([0, 0, 1, 1, 1]))
    assert metric.value(sums, 0.0) == pytest.approx(2 / 3)


@pytest.mark.slow
def test_the_metric_is_evaluated_at_every_capacity() -> None:
    config = {"task": {"metrics": ["accuracy", "weakest:Weakest"]}, "train": {"rounds": 2}}
    line = submodel.train(small_net(), submodel.digits(), config, progress=False).history[-1]
    assert line["capacity_Weakest"]["1"] == line["test_Weakest"] <= line["test_accuracy"]


def test_the_loss_without_gamma_is_the_cross_entropy() -> None:
    outputs, targets = torch.randn(8, 3), torch.arange(8) % 3
    loss = recipe("focal:Focal")(0.0)(outputs, targets)
    # up to the rounding of float32: the order of the sums differs
    assert torch.allclose(loss, functional.cross_entropy(outputs, targets))


@pytest.mark.slow
def test_the_loss_trains() -> None:
    config = {
        "task": {"loss": "focal:Focal", "gamma": 1.0},
        "local": {"absent_labels": "keep"},
        "train": {"rounds": 2, "evaluate_every": 1},
    }
    net = small_net()
    first, last = submodel.train(net, submodel.digits(), config, progress=False).history
    assert last["test_loss"] < first["test_loss"]
