"""Optional members of schemes, model facts for them, and the page about them."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from submodel.algorithm.dispatch import cut_of, knowledge_of
from submodel.algorithm.rounds import initial_state
from submodel.algorithm.types import Assignment
from submodel.config import SchemeSection, parse
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError, SubmodelError
from submodel.model.axes import Axes, declare, trace
from submodel.model.axes.layout import Along, Concatenation, FixedPart
from submodel.model.cut import COORDINATES, PlannedCut, UnitCut
from submodel.model.zoo import make_model
from submodel.schemes import (
    Adaptation,
    BorrowsMasks,
    Draw,
    HasCells,
    HasMemory,
    LooksAtModel,
    Mask,
    Scheme,
    SchemeMemory,
    Static,
    problems_of,
    units_held,
)
from submodel.schemes.builtin_schemes import GROUP, SCHEMES
from submodel.schemes.draw import ModelKnowledge
from submodel.testing import check_scheme
from tests.model.nets import IMAGE, VECTOR, Net
from tests.model.zoo.transformer import VisionTransformer
from tests.support.common import tiny_images, tiny_setup
from tests.support.rounds import step_of

# ruff: noqa: ARG002 - schemes get more arguments than most of these use


ALONE = {"count": 1, "per_round": 1, "capacities": [0.5]}


class Shifting(Scheme):
    """A window whose start is in the memory, and moves before every second round."""

    looks_at_model = True

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        start = int(draw.knowledge.memory["start"])
        return np.roll(np.arange(size) < units_held(capacity, size), start)

    def begin(self, parameters: Mapping[str, Tensor]) -> SchemeMemory:
        return {"start": torch.ones(1)}

    def adapts(self, round_: int) -> bool:
        return round_ % 2 == 0

    def adapt(self, now: Adaptation) -> tuple[Mapping[str, Tensor], SchemeMemory]:
        return now.tensors, {"start": now.memory["start"] * 2}


class Formerly(Scheme, LooksAtModel, HasMemory):
    """`Shifting` with the interface of earlier versions."""

    select, begin = Shifting.select, Shifting.begin
    adapts, adapt = Shifting.adapts, Shifting.adapt


class NamedFirst(LooksAtModel, HasMemory, Scheme):
    select, begin = Shifting.select, Shifting.begin
    adapts, adapt = Shifting.adapts, Shifting.adapt


class Delegating(Static):
    """Forward missing members, so that the defaults of `Scheme` are not used."""

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        return Shifting().select(axis, size, capacity, draw)

    def __getattr__(self, name: str) -> Any:
        return getattr(Shifting(), name)


def given() -> Any:
    """Make an object without its own class."""
    one = Shifting()
    names = ("select", "looks_at_model", "begin", "adapts", "adapt")
    return SimpleNamespace(**{name: getattr(one, name) for name in names})


def train(scheme: Any) -> tuple[list[float], list[int], dict[str, Tensor]]:
    setup = tiny_setup("mlp", scheme={"name": scheme})
    state, sent = initial_state(setup), []
    for _ in range(3):
        state, report = step_of(setup, state)
        sent.append(report.bytes_down)
    return state.memory["scheme/start"].tolist(), sent, dict(state.tensors)


@pytest.mark.parametrize(
    "scheme",
    [Formerly(), NamedFirst(), Delegating(), given(), BorrowsMasks(Shifting()),
     BorrowsMasks(given())],
    ids=["former names", "named first", "delegating", "object", "borrowed", "borrowed object"],
)  # fmt: skip
def test_however_they_are_defined_a_run_has_them(scheme: Any) -> None:
    start, sent, tensors = train(Shifting())
    assert start == [4.0]  # doubled before the first round and the third
    others = train(scheme)
    assert others[:2] == (start, sent)
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in others[2].items())


def test_what_is_not_defined_has_the_default() -> None:
    bare = SimpleNamespace(select=Static().select, period=3)
    setup = tiny_setup("mlp", scheme={"name": bare})
    assert copy.deepcopy(setup.scheme).period == 3  # type: ignore[attr-defined]
    state = initial_state(setup)
    after, report = step_of(setup, state)
    plain = tiny_setup("mlp", scheme={"name": "static"})
    expected, plain_report = step_of(plain)
    assert all(torch.equal(tensor, after.tensors[n]) for n, tensor in expected.tensors.items())
    assert report.bytes_down == plain_report.bytes_down
    assert problems_of(bare, None) == []  # type: ignore[arg-type]


def test_cells_named_by_their_former_protocol_are_defined_whole() -> None:
    class Pairs(Static, HasCells):
        cells = 2

        def cell(self, client: int) -> int:
            return client % 2

    with pytest.raises(TypeError, match=r"abstract method '?joins"):
        Pairs()

    class Complete(Pairs):
        def joins(self, round_: int) -> bool:
            return round_ == 1

    setup = tiny_setup("mlp", scheme={"name": Complete()})
    state = initial_state(setup)
    assert state.memory["cells/weights"].tolist() == [0.0, 0.0]
    lacking = type("Lacking", (Static, HasCells), {"cell": Pairs.cell, "joins": Complete.joins})
    with pytest.raises(SubmodelError, match=r"Lacking: .*`cell`, `joins`, .*`cells`"):
        tiny_setup("mlp", scheme={"name": lacking()})


def test_borrowed_masks_are_drawn_by_layer_too() -> None:
    """The cut of `random` with independent layers is the borrower's."""
    chosen = {"sampling": "fixed", "alignment": "independent"}
    setups = [
        tiny_setup("preresnet18", tiny_images(), scheme={**name, **chosen}, clients=ALONE)
        for name in ({"name": "random"}, {"name": "masked-sgd", "sequence": "random"})
    ]
    cuts = [cut_of(setup, Assignment(0, 0, 0.5)) for setup in setups]
    assert isinstance(cuts[0], PlannedCut)
    assert cuts[0].same_key == cuts[1].same_key


def by_counting(axes: Axes, parameters: dict[str, Tensor], axis: str) -> list[float]:
    """Drop one unit after another, and count the weights that are dropped with it."""
    size, means = axes.sizes[axis], []
    for unit in range(size):
        without = UnitCut(axes, {axis: np.delete(np.arange(size), unit)})
        lost = []
        for name, tensor in parameters.items():
            kept = torch.zeros_like(tensor)
            without.add(name, kept, 1.0)
            lost.append(tensor.detach()[kept == 0].abs().double())
        means.append(float(torch.cat(lost).mean()))
    return means


def residual() -> nn.Module:
    """A square between an axis and itself: w[i, i] belongs to unit i along both dimensions."""
    return Net(
        lambda m, x: m.out((h := m.stem(x).relu()) + m.square(h)),
        stem=nn.Linear(6, 5), square=nn.Linear(5, 5), out=nn.Linear(5, 2),
    )  # fmt: skip


def outer() -> nn.Module:
    """A product of an axis with itself: position (i, j) belongs to units i and j."""

    def forward(m: nn.Module, x: Tensor) -> Tensor:
        h = m.stem(x).relu()  # type: ignore[operator]
        out: Tensor = m.out((h[:, :, None] * h[:, None, :]).flatten(1))  # type: ignore[operator]
        return out

    return Net(forward, stem=nn.Linear(6, 4), out=nn.Linear(16, 2))


NETS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "flatten": (lambda: make_model("cnn", (1, 8, 8), 4, 3), torch.randn(2, 1, 8, 8)),
    "residual streams": (lambda: make_model("preresnet18", (1, 8, 8), 4, 2), IMAGE[:, :1]),
    "fused qkv": (lambda: VisionTransformer(width=8, heads=2), IMAGE),
    "square": (residual, VECTOR),
    "outer product": (outer, VECTOR),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_magnitudes_are_the_mean_size_of_the_weights_that_go_with_a_unit(name: str) -> None:
    make, inputs = NETS[name]
    net = make()
    axes = trace(net, inputs)
    generator = torch.Generator().manual_seed(3)
    parameters = {n: torch.randn(p.shape, generator=generator) for n, p in net.named_parameters()}
    found = ModelKnowledge(axes, parameters, {})
    assert axes.sizes
    assert list(found.axes) == list(axes.cut_by_capacity)
    for axis in axes.sizes:
        expected = by_counting(axes, parameters, axis)
        # float64 sums in another order
        np.testing.assert_allclose(found.magnitudes(axis), expected, rtol=1e-12)
        assert found.pieces(axis) == [axes.sizes[axis]]
        assert not found.shapes(axis)


def test_a_concatenation_counts_only_the_parts_of_the_axis() -> None:
    weight = {"w": torch.tensor([[1.0, -2.0, 30.0, 40.0, -5.0]])}
    layout = Concatenation((Along("a", 2), FixedPart(2), Along("one", 1)))
    axes = Axes({"a": 2, "one": 1}, {"w": (FixedPart(1), layout)})
    found = ModelKnowledge(axes, weight, {})
    assert found.magnitudes("a").tolist() == [1.0, 2.0]
    assert found.magnitudes("one").tolist() == [5.0]  # an axis of one unit is not everything


def test_the_flat_vector_knows_every_weight_and_where_tensors_end() -> None:
    setup = tiny_setup("mlp", scheme={"name": "importance", "granularity": "coordinate"})
    state = initial_state(setup)
    found = knowledge_of(setup, state)
    flat = torch.cat([p.reshape(-1) for p in state.tensors.values()]).abs().double()
    assert list(found.axes) == [COORDINATES]
    assert found.magnitudes(COORDINATES).tolist() == flat.tolist()
    assert list(found.pieces(COORDINATES)) == [t.numel() for t in state.tensors.values()]
    assert list(found.shapes(COORDINATES)) == [t.shape for t in state.tensors.values()]


def test_tensors_without_the_axis_count_nothing() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    axes = declare(dict(net.named_parameters()), {"0.bias": ("hidden",)})
    values = {n: torch.full(p.shape, 7.0) for n, p in net.named_parameters()}
    values["0.bias"] = torch.tensor([-1.0, 2.0, -3.0])
    assert ModelKnowledge(axes, values, {}).magnitudes("hidden").tolist() == [1.0, 2.0, 3.0]


DOCS = Path(__file__).parents[2] / "docs"
PAGE, RECIPE = ((DOCS / name).read_text("utf-8") for name in ("schemes.md", "extending/schemes.md"))
RUN_HERE = r"tests/schemes/test_optional.py -->\n```python\n(.*?)```"
(WITH_MEMORY,) = re.findall(RUN_HERE, RECIPE, re.DOTALL)
CODE = '''
from dataclasses import dataclass

import numpy as np

from submodel.schemes import Draw, Mask, Scheme, units_held


@dataclass(frozen=True)
class FromBothEnds(Scheme):
    """The first units in some rounds, the last in others."""

    period: int = 2

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        mask = np.arange(size) < units_held(capacity, size)
        return mask[::-1].copy() if draw.round % self.period else mask
'''

SHOWN = re.sub(r"<!--.*?-->", "", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize("name", SCHEMES.entries)
def test_every_scheme_has_its_line(name: str) -> None:
    assert f"\n| `{name}` |" in SHOWN


KEYS = {key for name in SCHEMES.entries for key in SCHEMES.find(name).options.model_fields}
KEYS |= SchemeSection.model_fields.keys()


@pytest.mark.parametrize("key", sorted(KEYS - {"name"}))
def test_every_key_is_explained(key: str) -> None:
    assert re.search(rf"`{key}\b", SHOWN)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a package with the page's scheme, like an installer."""
    (tmp_path / "schemes_of_a_package.py").write_text(CODE)
    info = tmp_path / "schemes_of_a_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: schemes-of-a-package\nVersion: 1.0\n")
    offer = "both-ends = schemes_of_a_package:FromBothEnds"
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{offer}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "schemes_of_a_package", raising=False)


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["schemes_of_a_package:FromBothEnds", "both-ends"])
def test_a_scheme_works_by_path_and_by_the_name_its_package_registers(name: str) -> None:
    choice = {"name": name, "options": {"period": 3}, "granularity": "unit"}
    assert len(check_scheme(choice)) == 8
    scheme = prepare(parse({"scheme": choice, "model": {"name": "mlp", "width": 8}})).scheme
    assert repr(scheme) == "FromBothEnds(period=3)"
    assert "both-ends" in SCHEMES.names()


@pytest.mark.slow
def test_the_pages_scheme_with_a_memory_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memories_of_the_page.py").write_text(WITH_MEMORY)
    monkeypatch.syspath_prepend(tmp_path)
    checked = check_scheme("memories_of_the_page:MostChanged")
    assert len(checked) == 8
    assert all(what.startswith("coordinate: ") for what in checked)


@pytest.mark.usefixtures("installed")
def test_what_is_wrong_with_a_name_or_its_options_is_said() -> None:
    wrong = {
        "schemes_of_a_package:FromNowhere": " 'FromNowhere'",
        "schemes_of_no_package:FromBothEnds": " 'schemes_of_no_package'",
        "schemes_of_a_package:units_held": r"units_held\(\) missing",
        "builtins:dict": "a dict, .*select",
    }
    for name, reason in wrong.items():
        with pytest.raises(ConfigError, match=rf"^scheme\.name: .*{reason}"):
            prepare(parse({"scheme": {"name": name}, "model": {"name": "mlp"}}))
    with pytest.raises(ConfigError, match=r"^scheme\.options: 'both-ends' .*'perid'"):
        prepare(parse({"scheme": {"name": "both-ends", "options": {"perid": 3}}}))
