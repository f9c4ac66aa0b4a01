"""FIARSE's masks: the largest weights of the global model, fixed for the round, counted as held."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

import submodel
from submodel.algorithm.dispatch import cut_of, knowledge_of
from submodel.algorithm.rounds import initial_state, plan
from submodel.algorithm.types import Assignment, PartitionedClients, Setup, State, Task, Update
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError
from submodel.data import dataset
from submodel.engines.serial import SerialEngine
from submodel.model.cut import CoordinateCut, UnitCut
from submodel.runs.loop import run_rounds
from submodel.runs.training import Training
from submodel.schemes import Draw, Importance, SchemeMemory, units_held
from submodel.schemes.importance import Scope
from submodel.tasks.training import batches
from tests.support.common import tiny_images, tiny_setup
from tests.support.rounds import step_of

SCOPES: list[Scope] = ["axis", "global"]


class Sizes:
    """A model with given magnitudes only."""

    def __init__(
        self, values: dict[str, Sequence[float]], shapes: Sequence[Sequence[int]] = ()
    ) -> None:
        self._values, self._shapes = values, shapes

    @property
    def memory(self) -> SchemeMemory:
        return {}

    @property
    def axes(self) -> Sequence[str]:
        return list(self._values)

    def magnitudes(self, axis: str) -> NDArray[np.float64]:
        return np.array(self._values[axis], dtype=np.float64)

    def pieces(self, axis: str) -> Sequence[int]:
        return [math.prod(shape) for shape in self._shapes] or [len(self._values[axis])]

    def shapes(self, axis: str) -> Sequence[Sequence[int]]:  # noqa: ARG002
        return self._shapes


def drawn(scheme: Importance, model: Sizes, capacity: float) -> dict[str, list[int]]:
    draw = Draw(0, 0, 0, knowledge=model)
    return {
        axis: np.flatnonzero(
            scheme.select(axis, len(model.magnitudes(axis)), capacity, draw)
        ).tolist()
        for axis in model.axes
    }


def test_the_largest_of_every_axis_or_of_all_axes() -> None:
    model = Sizes({"a": [5, 1, 6, 2], "b": [9, 8, 7, 3, 4, 10], "c": [0.1, 0.2]})
    assert drawn(Importance("axis"), model, 0.5) == {"a": [0, 2], "b": [0, 1, 5], "c": [1]}
    # 6 of 12 units: first 6, 10 and 0.2, the largest of each axis, then 9, 8 and 7
    assert drawn(Importance("global"), model, 0.5) == {"a": [2], "b": [0, 1, 2, 5], "c": [1]}
    # 2 of 12 would leave an axis empty, which is no net; every axis keeps its largest
    assert drawn(Importance("global"), model, 0.1) == {"a": [2], "b": [5], "c": [1]}


def test_single_weights_are_ranked_by_tensor_or_all_together() -> None:
    model = Sizes({"coordinates": [4, 3, 2, 1, 8, 7, 6, 5, 9]}, [(2, 2), (4, 1), (1, 1)])
    assert drawn(Importance("axis"), model, 0.5) == {"coordinates": [0, 1, 4, 5, 8]}
    assert drawn(Importance("global"), model, 0.5) == {"coordinates": [4, 5, 6, 7, 8]}


def test_everybody_holds_norms_and_biases_and_the_share_is_of_the_rest() -> None:
    """Like FIARSE for norms: the three one-dimensional tensors are neither ranked nor counted."""
    sizes = [4, 3, 2, 1, 0, 0, 0.5, 8, 7, 6, 5]
    model = Sizes({"coordinates": sizes}, [(2, 2), (2,), (), (1, 4)])
    assert drawn(Importance("axis"), model, 0.5) == {"coordinates": [0, 1, 4, 5, 6, 7, 8]}
    assert drawn(Importance("global"), model, 0.5) == {"coordinates": [4, 5, 6, 7, 8, 9, 10]}
    assert drawn(Importance("global"), model, 0.01) == {"coordinates": [4, 5, 6, 7]}


def test_units_are_ranked_by_axis_and_single_weights_all_together_unless_it_is_said() -> None:
    units = Sizes({"a": [5, 1, 6, 2], "b": [9, 8, 7, 3]})
    weights = Sizes({"coordinates": [4, 3, 2, 1, 8, 7, 6, 5]}, [(2, 2), (2, 2)])
    assert drawn(Importance(), units, 0.5) == drawn(Importance("axis"), units, 0.5)
    assert drawn(Importance(), weights, 0.5) == drawn(Importance("global"), weights, 0.5)
    assert drawn(Importance(), weights, 0.5) != drawn(Importance("axis"), weights, 0.5)


def test_what_a_configuration_says_of_the_scope_reaches_the_scheme() -> None:
    assert tiny_setup("mlp", scheme={"name": "importance"}).scheme == Importance()
    for scope in SCOPES:
        choice = {"name": "importance", "scope": scope}
        assert tiny_setup("mlp", scheme=choice).scheme == Importance(scope)


@pytest.mark.parametrize("scope", SCOPES)
def test_no_channel_of_a_norm_is_multiplied_by_zero(scope: Scope) -> None:
    """The scales of an untrained norm are all 1, so a share of equal ones would be the first few,
    and a small sub-model would lose most channels of every layer for any weights.
    """
    choice = {"name": "importance", "granularity": "coordinate", "scope": scope}
    setup = tiny_setup("preresnet18", scheme=choice)
    state = initial_state(setup)
    cut = cut_of(setup, Assignment(0, 0, 1 / 16), knowledge=knowledge_of(setup, state))
    assert isinstance(cut, CoordinateCut)
    small = {n: m for n, m in cut.masks.items() if m.dim() < 2}
    assert len(small) > 10
    assert all(mask.all() for mask in small.values())
    ranked = sum(m.numel() for m in cut.masks.values() if m.dim() > 1)
    held = sum(int(m.sum()) for m in cut.masks.values() if m.dim() > 1)
    shares = [units_held(1 / 16, m.numel()) for m in cut.masks.values() if m.dim() > 1]
    assert held == (sum(shares) if scope == "axis" else units_held(1 / 16, ranked))


@pytest.mark.slow
def test_a_small_sub_model_of_single_weights_learns() -> None:
    """With a share of every norm, the sub-model of 1/16 stayed at chance, 10 %, at any length."""
    settings = {
        "model": {"name": "preresnet18", "width": 4},
        "scheme": {"name": "importance", "granularity": "coordinate"},
        "clients": {"count": 4, "per_round": 4, "capacities": [1, "1/16"]},
        "data": {"partition": "iid", "examples": 240, "test_examples": 100},
        "local": {"lr": 0.05, "epochs": 2, "clip": 1.0, "absent_labels": "keep"},
        "train": {"rounds": 3, "evaluate_every": 3},
    }
    config = parse(settings)
    _, history = run_rounds(Training(config, prepare(config)))
    assert history[-1]["capacity_accuracy"]["0.0625"] > 0.3


def test_of_equals_the_earlier_is_held() -> None:
    model = Sizes({"a": [1, 2, 2, 2, 1, 2], "b": [2, 2]})
    assert drawn(Importance("axis"), model, 0.5) == {"a": [1, 2, 3], "b": [0]}
    # the first 2 of each axis is set; of the other 2s those of a come first
    assert drawn(Importance("global"), model, 0.5) == {"a": [1, 2, 3], "b": [0]}


values = st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 7.0]), min_size=1, max_size=12)


@pytest.mark.slow
@given(
    model=st.lists(values, min_size=1, max_size=4),
    scope=st.sampled_from(SCOPES),
    capacities=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)),
)
def test_smaller_cuts_lie_in_larger_ones_and_sizes_are_as_promised(
    model: list[list[float]], scope: Scope, capacities: tuple[float, float]
) -> None:
    known_sizes = Sizes({str(i): v for i, v in enumerate(model)})
    low, high = (drawn(Importance(scope), known_sizes, c) for c in sorted(capacities))
    everything = drawn(Importance(scope), known_sizes, 1.0)
    total = sum(map(len, model))
    for axis, v in enumerate(model):
        assert set(low[str(axis)]) <= set(high[str(axis)])
        assert everything[str(axis)] == list(range(len(v)))
        if scope == "axis":
            assert len(low[str(axis)]) == units_held(min(capacities), len(v))
        assert low[str(axis)]
    if scope == "global":
        count = max(units_held(min(capacities), total), len(model))
        assert sum(map(len, low.values())) == count


def flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])


@pytest.mark.parametrize("scope", SCOPES)
def test_cuts_of_a_real_net_are_those_of_sorting(scope: Scope) -> None:
    choice = {"name": "importance", "scope": scope}
    setup = tiny_setup("cnn", scheme=choice)
    state = initial_state(setup)
    model = knowledge_of(setup, state)
    for capacity in (0.5, 0.25):
        cut = cut_of(setup, Assignment(3, 1, capacity), knowledge=model)
        assert isinstance(cut, UnitCut)
        ranked = {a: np.argsort(-model.magnitudes(a), kind="stable") for a in model.axes}
        if scope == "axis":
            expected = {a: sorted(r[: units_held(capacity, len(r))]) for a, r in ranked.items()}
            assert {a: kept.tolist() for a, kept in cut.units.items()} == expected
        held = [model.magnitudes(a)[cut.units.get(a, slice(None))] for a in model.axes]
        free = [np.delete(model.magnitudes(a), cut.units.get(a, slice(None))) for a in model.axes]
        if scope == "global":  # except for the only one of an axis
            least = min(h.min() for h in held if len(h) > 1)
            assert least >= max(f.max() for f in free if len(f))
            units = sum(map(len, ranked.values()))
            assert sum(map(len, held)) == units_held(capacity, units)

    masked = tiny_setup("cnn", scheme={**choice, "granularity": "coordinate"})
    cut = cut_of(masked, Assignment(3, 1, 0.25), knowledge=knowledge_of(masked, state))
    assert isinstance(cut, CoordinateCut)
    if scope == "axis":
        for name, mask in cut.masks.items():
            count = units_held(0.25, mask.numel()) if mask.dim() > 1 else mask.numel()
            top = state.tensors[name].abs().reshape(-1).sort(descending=True, stable=True).indices
            assert set(mask.reshape(-1).nonzero()[:, 0].tolist()) == set(top[:count].tolist())
    else:
        matrices = [name for name, tensor in state.tensors.items() if tensor.dim() > 1]
        sizes = flat(state.tensors[name] for name in matrices).abs()
        mask = flat(cut.masks[name] for name in matrices)
        count = units_held(0.25, len(sizes))
        top = sizes.sort(descending=True, stable=True).indices
        assert set(mask.nonzero()[:, 0].tolist()) == set(top[:count].tolist())


class Watched(SerialEngine):
    """Record sent and returned tensors."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.tasks: list[Task] = []
        self.updates: list[Update] = []

    def run(self, tasks: Iterable[Task]) -> Iterator[Update]:
        for task in tasks:
            self.tasks.append(task)
            for update in super().run([task]):
                self.updates.append(update)
                yield update


def stepped(setup: Setup, state: State) -> tuple[State, Watched]:
    engine = Watched(setup)
    return step_of(setup, state, engine)[0], engine


@pytest.mark.parametrize("scope", SCOPES)
def test_the_mask_stands_for_the_round(scope: Scope) -> None:
    """Like SGD on the weights that were largest at the start of the round, whatever their later
    values. Code that ranks anew in every forward pass ends elsewhere.
    """
    work = {"steps": 6, "lr": 0.5, "momentum": 0.0}  # large steps, so that ranks change
    setup = tiny_setup(
        "mlp",
        scheme={"name": "importance", "scope": scope, "granularity": "coordinate"},
        clients={"capacities": [0.25]},
        local=work,
    )
    state = initial_state(setup)
    _, engine = stepped(setup, state)
    changed = 0
    for task, update in zip(engine.tasks, engine.updates, strict=True):
        draw = Draw(setup.seed, 0, task.assignment.client, knowledge=knowledge_of(setup, state))
        count = sum(t.numel() for t in state.tensors.values())
        mask = torch.from_numpy(setup.scheme.select("coordinates", count, 0.25, draw))
        net = submodel.model.zoo.make_model("mlp", (1, 8, 8), 10, 16)
        with torch.no_grad():
            start = 0
            for name, parameter in net.named_parameters():
                own = mask[start : start + parameter.numel()].view(parameter.shape)
                parameter.copy_(state.tensors[name] * own)
                start += parameter.numel()
        client = task.assignment.client
        examples = setup.clients.examples(client)
        for batch in batches(len(examples), task.work, setup.seed, 0, client):
            loss = functional.cross_entropy(net(examples.x[batch]), examples.y[batch])
            moved = mask * flat(torch.autograd.grad(loss, list(net.parameters())))
            start = 0
            for parameter in net.parameters():
                part = moved[start : start + parameter.numel()].view(parameter.shape)
                parameter.data -= work["lr"] * part
                start += parameter.numel()
        expected = flat(p.detach() for p in net.parameters())
        found = flat(update.tensors.values())
        # the same products, in one tensor instead of several
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        assert (found[~mask] == 0).all()
        dropped = flat(state.tensors.values()).abs()[~mask].max()
        changed += int((found[mask].abs() < dropped).sum())  # would not be held after a new ranking
    assert changed > 0


class Halves:
    """Client 0 has the first half of the examples, client 1 the second."""

    def __init__(self, examples: int) -> None:
        self._each = examples // 2

    def size(self, client: int) -> int:
        return len(self.indices(client))

    def indices(self, client: int) -> NDArray[np.int64]:
        return np.arange(client * self._each, (client + 1) * self._each)


@pytest.mark.parametrize("granularity", ["unit", "coordinate"])
def test_a_held_weight_that_did_not_change_counts_in_the_denominator(granularity: str) -> None:
    """The first input is always zero at client 0, so its part of the first column returns
    unchanged. Inferring masks from changes divides by 1 there, although two clients held it.
    """
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(5))
    x[:4, 0] = 0
    y = torch.arange(8) % 2
    data = dataset((x, y), (x, y))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # every held weight of the first column leads to an output
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    config = parse({
        "scheme": {"name": "importance", "granularity": granularity},
        "clients": {"count": 2, "per_round": 2, "capacities": [0.5]},
        "local": {"absent_labels": "keep", "steps": 1, "lr": 0.1, "momentum": 0.0},
        "data": {"partition": "iid"},
    })  # fmt: skip
    setup = prepare(config, net, data)
    setup = replace(setup, clients=PartitionedClients(data, Halves(8)))
    state = initial_state(setup)
    new, engine = stepped(setup, state)
    first, second = engine.updates
    assert first.assignment.client == 0
    ones = torch.zeros(4, 3)
    first.cut.add("0.weight", ones, 1.0)
    column = ones[:, 0] > 0
    assert column.any()
    before = state.tensors["0.weight"][:, 0]
    one, two = torch.zeros(4, 3), torch.zeros(4, 3)
    first.cut.add("0.weight", one, first.tensors["0.weight"])
    second.cut.add("0.weight", two, second.tensors["0.weight"])
    assert torch.equal(one[column, 0], before[column])  # held, and unchanged
    assert (two[column, 0] != before[column]).all()
    expected = (before + (two[:, 0] - before) / 2)[column]
    torch.testing.assert_close(new.tensors["0.weight"][:, 0][column], expected)
    assert torch.equal(new.tensors["0.weight"][:, 0][~column], before[~column])


@pytest.mark.slow
def test_sub_models_are_evaluated() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
    settings = {
        "scheme": {"name": "importance"},
        "clients": {"count": 4, "per_round": 2, "capacities": [1, 0.5]},
        "data": {"partition": "iid"},
        "train": {"rounds": 2},
    }
    result = submodel.train(net, tiny_images(), settings)
    assert result.history[-1]["capacity_accuracy"].keys() == {"1", "0.5"}
    kept = np.sort(np.argsort(-knowledge_of(result.setup, result.state).magnitudes("1"))[:6])
    small = dict(result.submodel(0.5).named_parameters())
    assert torch.equal(small["1.weight"], result.state.tensors["1.weight"][kept])


def test_all_clients_of_a_capacity_hold_the_same_and_masks_follow_the_model() -> None:
    setup = tiny_setup("mlp", scheme={"name": "importance"}, clients={"capacities": [0.5]})
    state = initial_state(setup)
    now = {cut_of(setup, a, knowledge=knowledge_of(setup, state)).same_key for a in plan(setup, 0)}
    assert len(now) == 1
    moved = {
        n: t * torch.linspace(0.1, 3, t.numel()).view(t.shape) for n, t in state.tensors.items()
    }
    later = cut_of(
        setup, plan(setup, 0)[0], knowledge=knowledge_of(setup, State(0, moved))
    ).same_key
    assert later not in now


def test_a_model_without_matrices_has_nothing_to_rank() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    x, y = torch.randn(8, 2, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2

    def prepared(capacity: float) -> Setup:
        config = parse({
            "scheme": {"name": "importance", "granularity": "coordinate"},
            "clients": {"count": 2, "per_round": 2, "capacities": [capacity]},
            "data": {"partition": "iid"},
            "local": {"absent_labels": "keep"},
        })  # fmt: skip
        return prepare(config, Scaled(), dataset((x, y), (x, y)))

    prepared(1)
    with pytest.raises(ConfigError, match=r"^scheme\.granularity: 'importance' "):
        prepared(0.5)


def test_a_share_of_an_axis_means_nothing_where_axes_are_ranked_together() -> None:
    least = {"least": {"1": 0.5}}
    tiny_setup("mlp", scheme={"name": "importance"}, axes=least)
    with pytest.raises(ConfigError, match=r"^axes\.least: scheme\.scope = 'global'"):
        tiny_setup("mlp", scheme={"name": "importance", "scope": "global"}, axes=least)
    with pytest.raises(LookupError, match="not known"):
        cut_of(tiny_setup("mlp", scheme={"name": "importance"}), Assignment(0, 0, 0.5))
