"""Optional parts of schemes beyond masks: borrowed with the masks, and never ignored."""
# ruff: noqa: ARG002 - schemes get more arguments than most of these use

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pytest
import torch
from torch import Tensor

import submodel.schemes
from submodel.algorithm.dispatch import cut_of, knowledge_of
from submodel.algorithm.packing import mask_bytes
from submodel.algorithm.rounds import initial_state, plan
from submodel.algorithm.types import Setup
from submodel.core.errors import SubmodelError
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.serial import SerialEngine
from submodel.model.cut import Cut
from submodel.model.inputs import Inputs
from submodel.schemes import (
    Adaptation,
    Adapts,
    BorrowsMasks,
    Client,
    ClientStep,
    Draw,
    HasCells,
    HasChances,
    HasLocalWork,
    HasMemory,
    HasOutputPasses,
    HasStepRule,
    Importance,
    LooksAtModel,
    Mask,
    MaskedSgd,
    MaskRole,
    Observation,
    Observes,
    Pruned,
    Rolling,
    RunFacts,
    Scheme,
    SchemeMemory,
    SendsMasks,
    Static,
    StepRule,
    TrainingRole,
    Unbiased,
    all_roles,
    output_passes,
    role,
)
from submodel.tasks.optimisers import Gradients
from submodel.tasks.training import LocalWork, Step, plain_step
from tests.support.common import tiny_setup
from tests.support.rounds import step_of

Passes = Sequence[tuple[float, int]]


@dataclass(frozen=True)
class HalfStep:
    """Plain steps of half the length."""

    plain: Step
    passes: Passes = ()

    def __call__(self, number: int, x: Inputs, y: Tensor) -> tuple[Tensor, Gradients]:
        loss, gradients = self.plain(number, x, y)
        return loss, [None if g is None else g / 2 for g in gradients]


@dataclass(frozen=True)
class HalfSteps:
    """A step rule that has no narrower widths."""

    widths: tuple[float, ...]

    def begin(self, client: Client) -> ClientStep:
        return HalfStep(plain_step(client.module, client.work, client.loss))

    def cut(self, cut: Cut, width: float, least: Mapping[str, float]) -> Cut:
        return cut

    def plan_passes(
        self,
        cut: Cut,
        lengths: Sequence[int],
        least: Mapping[str, float],
        key: tuple[int, int, int],
    ) -> Passes:
        return ()


class Everything(Scheme, LooksAtModel):
    """Offer everything, and answer every question unlike any default.

    It names none of the protocols that have members: they are detected by its definitions.
    """

    sends_masks = True

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        return np.equal(np.arange(size), len(axis) + int(10 * capacity) + draw.round)

    def output_passes(self) -> list[Scheme]:
        return [self, Rolling(2)]

    def problems(self, run: RunFacts) -> list[str]:
        return [f"clients.count: {run.clients} is told"]

    def begin(self, parameters: Mapping[str, Tensor]) -> SchemeMemory:
        return {name: 2 * tensor for name, tensor in parameters.items()}

    def adapts(self, round_: int) -> bool:
        return round_ == 3

    def adapt(self, now: Adaptation) -> tuple[Mapping[str, Tensor], SchemeMemory]:
        return {"w": now.tensors["w"] + 1}, {"w": now.memory["w"] + 2}

    def observes(self, round_: int) -> bool:
        return round_ == 4

    def observe(self, now: Observation) -> dict[str, float]:
        return {"told": float(now.gradient["w"].sum())}

    def work(self, work: LocalWork, capacity: float) -> LocalWork:
        return replace(work, lr=capacity)

    def step_rule(self, capacity: float) -> StepRule | None:
        return HalfSteps((capacity,))

    def chance(
        self, size: int, capacity: float, units: int = 1, spare: bool = False
    ) -> float | None:
        return capacity / (size + units + spare)

    @property
    def cells(self) -> int:  # type: ignore[override]
        return 2

    def cell(self, client: int) -> int:
        return 1 - client % 2

    def joins(self, round_: int) -> bool:
        return round_ == 5


class Foretells(MaskRole, Protocol):
    """A protocol that is unknown to schemes that borrow masks."""

    @abstractmethod
    def foretell(self, round_: int) -> int:
        """Return something about masks."""


class Pays(TrainingRole, Protocol):
    """A new protocol about training."""

    price: float


class Newer(Everything):
    price = 2.0

    def foretell(self, round_: int) -> int:
        return round_ + 1


MEMBERS: dict[type, tuple[str, ...]] = {
    LooksAtModel: (), SendsMasks: ("sends_masks",), HasMemory: ("begin",),
    Adapts: ("adapts", "adapt"), HasOutputPasses: ("output_passes",),
    Observes: ("observes", "observe"), HasLocalWork: ("work",), HasStepRule: ("step_rule",),
    HasChances: ("chance",), HasCells: ("cells", "cell", "joins"),
}  # fmt: skip
PROTOCOLS = list(MEMBERS)
ALL = [*PROTOCOLS, Foretells, Pays]


def refuse(scheme: Scheme, match: str) -> None:
    """Make a scheme that is refused before a run, with a reason."""
    with pytest.raises(SubmodelError, match=match):
        tiny_setup("mlp", scheme={"name": scheme})


def test_no_protocol_of_the_module_is_left_out_of_the_list() -> None:
    kinds = {MaskRole, TrainingRole}
    offered = [getattr(submodel.schemes, name) for name in submodel.schemes.__all__]
    types = {one for one in offered if isinstance(one, type) and Scheme not in one.__mro__}
    there = {one for one in types if kinds & {*one.__mro__}}
    assert there - kinds == set(PROTOCOLS)


@pytest.mark.parametrize("protocol", ALL)
def test_masks_take_their_protocols_along_and_training_does_not(protocol: type) -> None:
    inner = Newer()
    about_masks = MaskRole in protocol.__mro__
    for outer in (BorrowsMasks(inner), BorrowsMasks(BorrowsMasks(inner))):
        assert role(outer, protocol) is (inner if about_masks else None)
        assert list(all_roles(outer, protocol)) == ([inner] if about_masks else [])
    assert role(inner, protocol) is inner
    assert role(Static(), protocol) is None
    assert role(BorrowsMasks(Static()), protocol) is None


def test_what_a_borrower_defines_itself_counts() -> None:
    class Borrower(BorrowsMasks):
        def begin(self, parameters: Mapping[str, Tensor]) -> SchemeMemory:
            return {}

    inner, outer = Everything(), Borrower(Everything())
    assert role(outer, HasMemory) is outer  # type: ignore[comparison-overlap]
    assert [id(one) for one in all_roles(outer, HasMemory)] == [id(outer), id(outer.masks_of)]
    assert role(Borrower(inner), Adapts) is inner  # type: ignore[comparison-overlap]


def test_a_protocol_is_about_masks_or_about_training() -> None:
    class Neither(Protocol):
        price: float

    class Both(MaskRole, TrainingRole, Protocol):
        price: float

    for wrong in (Neither, Both):
        with pytest.raises(TypeError, match=r"MaskRole .*TrainingRole"):
            role(Static(), wrong)


@pytest.mark.parametrize("protocol", [p for p in PROTOCOLS if len(MEMBERS[p]) > 1])
def test_a_part_of_a_protocol_is_never_ignored(protocol: type) -> None:
    for missing in MEMBERS[protocol]:
        parts: dict[str, Any] = {m: vars(Everything)[m] for m in MEMBERS[protocol] if m != missing}
        partial = type("Partial", (Static,), parts)()
        asked = [partial, BorrowsMasks(partial)] if MaskRole in protocol.__mro__ else [partial]
        for scheme in asked:
            reason = rf"^scheme Partial: .*not .*`{missing}`"
            with pytest.raises(SubmodelError, match=reason):
                role(scheme, protocol)
            refuse(scheme, reason)


def test_the_name_of_a_method_is_no_name_for_a_number() -> None:
    @dataclass(frozen=True)
    class Lucky(Static):
        chance: float = 0.5  # type: ignore[assignment]

    refuse(Lucky(), r"Lucky: chance .*0\.5.*method")


def test_members_given_at_run_time_or_by_delegation_are_found() -> None:
    class Delegating(Static):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            return getattr(Everything(), name)

    scheme = Delegating()
    assert role(scheme, HasCells) is scheme  # type: ignore[comparison-overlap]


def test_whoever_names_a_protocol_has_to_define_it() -> None:
    class Nameless(Static, HasMemory): ...

    with pytest.raises(TypeError, match=r"abstract method '?begin"):
        Nameless()


def test_the_schemes_of_the_package_name_what_they_offer() -> None:
    offered = {
        MaskedSgd(Static()): {Observes}, Rolling(2): {HasOutputPasses},
        Importance(): {LooksAtModel}, Pruned(): {LooksAtModel, HasMemory, Adapts},
        Unbiased(): {HasChances}, Static(): set(),
    }  # fmt: skip
    for scheme, named in offered.items():
        assert {p for p in PROTOCOLS if role(scheme, p) is scheme} == named


def test_what_the_sequence_offers_reaches_the_run() -> None:
    everything = Everything()
    outside = MaskedSgd(everything)
    run = RunFacts(sizes={"a": 9}, capacities=[0.5], clients=1, per_round=1, granularity="unit")
    assert np.flatnonzero(outside.select("a", 9, 0.2, Draw(0, 1, 0))).tolist() == [4]
    assert outside.problems(run) == ["clients.count: 1 is told"]
    # a pass draws as the sequence's does, and trains as masked-sgd does
    assert output_passes(outside) == [MaskedSgd(everything), MaskedSgd(Rolling(2))]
    # and of its training and averaging nothing does
    for protocol in (HasLocalWork, HasStepRule, HasChances, HasCells):
        assert role(everything, protocol) is everything
        assert role(outside, protocol) is None


class Kept(Scheme, LooksAtModel, HasMemory, Adapts, Observes):
    """Hold the units in its memory, which change before every round."""

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        first = int(draw.knowledge.memory["first"])
        return np.equal(np.arange(size) % 2, first % 2) | (capacity == 1)

    def begin(self, parameters: Mapping[str, Tensor]) -> SchemeMemory:
        return {"first": torch.zeros(1)}

    def adapts(self, round_: int) -> bool:
        return True

    def adapt(self, now: Adaptation) -> tuple[Mapping[str, Tensor], SchemeMemory]:
        return now.tensors, {"first": now.memory["first"] + 1}

    def observes(self, round_: int) -> bool:
        return round_ == 1

    def observe(self, now: Observation) -> dict[str, float]:
        return {"alignment": -1.0, "told": 3.0}


def one_machine(scheme: Scheme, granularity: str = "coordinate") -> Setup:
    clients = {"count": 1, "per_round": 1, "capacities": [0.5]}
    chosen = {"name": "random", "granularity": granularity}
    setup = tiny_setup("mlp", scheme=chosen, clients=clients)
    return replace(setup, scheme=scheme)


def test_a_run_asks_the_sequence_for_all_of_it() -> None:
    plain, masked = one_machine(Kept()), one_machine(MaskedSgd(Kept()))
    states = [initial_state(plain), initial_state(masked)]
    for r in range(2):
        reports = []
        for i, setup in enumerate((plain, masked)):
            states[i], report = step_of(setup, states[i])
            reports.append(report)
        assert reports[0].bytes_down == reports[1].bytes_down  # the masks are among them
        assert reports[0].observations == ({"alignment": -1.0, "told": 3.0} if r else {})
        assert reports[1].observations.keys() == ({"alignment", "told"} if r else {"alignment"})
        assert reports[1].observations["alignment"] != -1.0  # its own counts
    assert [s.memory["scheme/first"].tolist() for s in states] == [[2.0], [2.0]]
    assert all(torch.equal(states[1].tensors[n], t) for n, t in states[0].tensors.items())


class Bare:
    """Define the members of `Kept` with only the base class that must be named."""

    select, begin = Kept.select, Kept.begin
    adapts, adapt, observes, observe = Kept.adapts, Kept.adapt, Kept.observes, Kept.observe


class BareLooks(Bare, LooksAtModel): ...


def test_an_object_that_only_defines_the_methods_is_asked_for_them() -> None:
    ends = []
    for scheme in (Kept(), BareLooks()):
        setup = tiny_setup("mlp", scheme={"name": scheme}, clients={"count": 2, "per_round": 2})
        state, reports = initial_state(setup), []
        for _ in range(2):
            state, report = step_of(setup, state)
            reports.append((report.observations, report.bytes_down))
        assert state.memory["scheme/first"].tolist() == [2.0]
        assert [seen for seen, _ in reports] == [{}, {"alignment": -1.0, "told": 3.0}]
        ends.append((reports, {name: tensor.tolist() for name, tensor in state.tensors.items()}))
    assert ends[0] == ends[1]


class Halving(Static):
    def step_rule(self, capacity: float) -> StepRule | None:
        return HalfSteps((capacity,)) if capacity < 1 else None


class Cautious(Static):
    def work(self, work: LocalWork, capacity: float) -> LocalWork:
        return replace(work, lr=work.lr / 2) if capacity < 1 else work


@pytest.mark.slow
@pytest.mark.parametrize("engine", [SerialEngine, BatchedEngine])
def test_steps_and_work_of_an_own_scheme_are_taken_by_every_engine(engine: Any) -> None:
    """Halving a gradient equals halving the learning rate, exactly, as both change an exponent."""
    states = []
    for scheme in (Halving(), Cautious(), Static()):
        setup = replace(tiny_setup("mlp", local={"steps": 2}), scheme=scheme)
        states.append(step_of(setup, engine=engine(setup))[0].tensors)
    halved, cautious, plain = states
    close = 0 if engine is SerialEngine else 1e-6  # stacks sum in another order
    torch.testing.assert_close(halved, cautious, rtol=0, atol=close)
    assert any(not torch.equal(tensor, plain[name]) for name, tensor in halved.items())


class Peeking(Static):
    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        known_here = draw.knowledge.magnitudes(axis) >= 0
        return super().select(axis, size, capacity, draw) & known_here


class Declared(Peeking, LooksAtModel):
    pass


class Insisting(Declared):
    sends_masks = False


@pytest.mark.parametrize("question", ["memory", "axes", "magnitudes", "pieces", "shapes"])
def test_who_does_not_declare_that_it_looks_sees_nothing(question: str) -> None:
    for scheme in (Peeking(), MaskedSgd(Peeking())):
        setup = one_machine(scheme)
        model = knowledge_of(setup, initial_state(setup))
        with pytest.raises(SubmodelError, match=rf"draw\.knowledge\.{question} "):
            getattr(model, question)
    for scheme in (Declared(), MaskedSgd(Declared())):
        setup = one_machine(scheme)
        assert hasattr(knowledge_of(setup, initial_state(setup)), question)


def test_masks_of_those_that_look_are_sent_and_counted() -> None:
    class Marked(Static):
        sends_masks = True

    extra = {}
    schemes = [Static(), Marked(), Declared(), MaskedSgd(Declared()), BorrowsMasks(Marked())]
    for scheme in schemes:  # of the same masks
        setup = one_machine(scheme)
        _, report = step_of(setup)
        extra[type(scheme)] = report.bytes_down - report.bytes_up
    cut = cut_of(one_machine(Static()), plan(setup, 0)[0])
    bits = mask_bytes(cut, {n: p.shape for n, p in setup.module.named_parameters()})
    assert bits > 0
    assert extra == {Static: 0, Marked: bits, Declared: bits, MaskedSgd: bits, BorrowsMasks: bits}
    for scheme in (Insisting(), MaskedSgd(Insisting())):
        with pytest.raises(SubmodelError, match=r"sends_masks .*False"):
            step_of(replace(setup, scheme=scheme), initial_state(setup), SerialEngine(setup))
    assert role(Marked(), SendsMasks) is not None
