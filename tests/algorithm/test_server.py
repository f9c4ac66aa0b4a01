"""The server step: formulas, coverage, and exact runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from submodel.algorithm.dispatch import cut_of
from submodel.algorithm.merge import Accumulator
from submodel.algorithm.rounds import initial_state, plan
from submodel.algorithm.server import Adam, Momentum, Plain, ServerStep, Yogi
from submodel.algorithm.types import Setup, State
from submodel.config import parse, read, to_toml
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError, DivergedError
from submodel.model.cut import gather
from submodel.runs import checkpoint
from tests.pins import errors
from tests.support.common import RULES, tiny_images, tiny_setup
from tests.support.rounds import step_of
from tests.support.runs import whole_and_resumed

STEPS: dict[str, dict[str, Any]] = {
    "plain": {"name": "plain", "lr": 0.5},
    "momentum": {"name": "momentum"},
    "adam": {"name": "adam"},
    "yogi": {"name": "yogi"},
}
ALL = torch.tensor([True])


def two_rounds(server: ServerStep, first: float, second: float) -> list[float]:
    """Apply two changes to one weight from zero; return the weight after each round."""
    old = {"w": torch.zeros(1, dtype=torch.float64)}
    memory, weights = server.begin(old), []
    for change in (first, second):
        old, memory = server.step(old, {"w": old["w"] + change}, {"w": ALL}, memory)
        weights.append(float(old["w"]))
    return weights


def test_plain_goes_a_share_of_the_way() -> None:
    assert two_rounds(Plain(), 4, 2) == [4, 6]
    assert two_rounds(Plain(lr=0.5), 4, 2) == [2, 3]


def test_momentum_by_hand() -> None:
    # m = 4, then 0.5 * 4 + 2 = 4; half of each is taken
    assert two_rounds(Momentum(lr=0.5, momentum=0.5), 4, 2) == [2, 4]


def test_adam_by_hand() -> None:
    # m = 3.5, v = (1 + 49) / 2 = 25; then m = (3.5 + 5) / 2 = 4.25, v = (25 + 25) / 2 = 25
    # steps: 6 * 3.5 / (5 + 1), 6 * 4.25 / (5 + 1)
    assert two_rounds(Adam(lr=6, beta1=0.5, beta2=0.5, tau=1), 7, 5) == [3.5, 7.75]


def test_yogi_by_hand() -> None:
    # m = 2, v = 1 + 16 / 2 = 9 as 16 > 1; then m = (2 + 2) / 2 = 2, v = 9 - 4 / 2 = 7 as 4 < 9
    first, second = two_rounds(Yogi(lr=1, beta1=0.5, beta2=0.5, tau=1), 4, 2)
    assert first == 2 / (3 + 1)
    assert second == first + 2 / (math.sqrt(7) + 1)


def scalar(name: str, changes: list[float | None], lr: float) -> float:
    """Apply the formulas to one weight from zero in plain Python; None: without a holder."""
    beta1, beta2, tau = 0.9, 0.99, 1e-3
    w, m, v = 0.0, 0.0, tau**2
    for change in changes:
        if change is None:
            continue
        if name == "momentum":
            m = beta1 * m + change
            w += lr * m
            continue
        m = beta1 * m + (1 - beta1) * change
        square = change**2
        if name == "adam":
            v = beta2 * v + (1 - beta2) * square
        else:
            v += math.copysign((1 - beta2) * square, square - v) if square != v else 0.0
        w += lr * m / (math.sqrt(v) + tau)
    return w


@pytest.mark.parametrize("server", [Momentum(lr=0.3), Adam(), Yogi()], ids=["m", "a", "y"])
def test_many_weights_held_by_turns_follow_the_formulas_for_one(server: ServerStep) -> None:
    name = type(server).__name__.lower()
    generator = torch.Generator().manual_seed(3)
    changes = torch.randn(12, 40, generator=generator, dtype=torch.float64) * 0.1
    held = torch.rand(12, 40, generator=generator) < 0.5
    old = {"w": torch.zeros(40, dtype=torch.float64)}
    memory = server.begin(old)
    for change, mask in zip(changes, held, strict=True):
        merged = {"w": torch.where(mask, old["w"] + change, old["w"])}
        old, memory = server.step(old, merged, {"w": mask}, memory)
    for place in range(40):
        seen = [float(c) if h else None for c, h in zip(changes[:, place], held[:, place],
                                                         strict=True)]  # fmt: skip
        # Delta is merged - w, which has the rounding of w + Delta: 1e-12 of numbers near 1
        assert float(old["w"][place]) == pytest.approx(
            scalar(name, seen, server.lr),  # type: ignore[attr-defined]
            abs=1e-12,
        )


def bits(tensors: dict[str, Tensor] | Tensor) -> bytes:
    parts = [tensors] if isinstance(tensors, Tensor) else list(tensors.values())
    return b"".join(t.numpy().tobytes() for t in parts)


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 10_000),
    dtype=st.sampled_from([torch.float16, torch.float32, torch.float64]),
)
def test_no_momentum_at_full_length_is_plain_bit_for_bit(seed: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    # magnitudes from 1e-30 to 1: w + (merged - w) loses the small ones, in float64 too
    size = 10.0 ** (-30 * torch.rand(2, 500, generator=generator, dtype=torch.float64))
    old, merged = (torch.randn(2, 500, generator=generator, dtype=torch.float64) * size).to(dtype)
    merged[::10] = -0.0
    memory = {"speed/w": torch.randn(500, generator=generator)}
    server = Momentum(lr=1.0, momentum=0.0)
    new, _ = server.step({"w": old}, {"w": merged}, {"w": ALL.expand(500)}, memory)
    assert bits(new) == bits(merged) == bits(Plain().step({"w": old}, {"w": merged}, {}, {})[0])
    if dtype is torch.float32:
        naive = (old.double() + (merged.double() - old.double())).to(dtype)
        assert bits(naive) != bits(merged)  # plain float64 arithmetic is not exact


def small(**sections: Any) -> Setup:
    return tiny_setup("mlp", local={"steps": 2}, **sections)


def rounds(setup: Setup, count: int) -> list[State]:
    """Return the states after 0, 1, ... rounds."""
    states = [initial_state(setup)]
    for _ in range(count):
        states.append(step_of(setup, states[-1])[0])
    return states


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_rounds_without_momentum_are_rounds_of_plain(rule: str) -> None:
    common: dict[str, Any] = {"merge": {"rule": rule}}
    plain = rounds(small(**common), 3)
    still = rounds(small(**common, server={"name": "momentum", "momentum": 0}), 3)
    moving = rounds(small(**common, server={"name": "momentum"}), 2)
    for expected, state in zip(plain, still, strict=True):
        assert bits(dict(state.tensors)) == bits(dict(expected.tensors))
    assert bits(dict(moving[1].tensors)) == bits(dict(plain[1].tensors))  # from zero momentum
    assert bits(dict(moving[2].tensors)) != bits(dict(plain[2].tensors))


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["adam", "yogi"])
def test_a_round_takes_the_step_from_the_merged_change_of_its_rule(name: str, rule: str) -> None:
    common: dict[str, Any] = {"merge": {"rule": rule}}
    old, merged = rounds(small(**common), 1)
    _, state = rounds(small(**common, server={"name": name}), 1)
    for n, w in old.tensors.items():
        delta = merged.tensors[n].double() - w.double()
        square = delta**2
        v = torch.full_like(square, 1e-6)
        v += 0.01 * (square - v if name == "adam" else square * torch.sign(square - v))
        expected = w.double() + 0.003 * 0.1 * delta / (v.sqrt() + 1e-3)
        # float32 rounds w, and v = tau^2 when v is stored
        torch.testing.assert_close(state.tensors[n].double(), expected, rtol=2e-7, atol=1e-9)


def covered(setup: Setup, round_: int) -> dict[str, Tensor]:
    """Return the held weights of a round from the cuts alone."""
    whole = initial_state(setup).tensors
    accumulator = Accumulator(whole, setup.rule)
    for assignment in plan(setup, round_):
        cut = cut_of(setup, assignment)
        accumulator.add(cut, gather(cut, whole))
    return dict(accumulator.coverage_masks())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("granularity", "rule"), [("unit", "selective"), ("coordinate", "fill_in")]
)
@pytest.mark.parametrize("name", STEPS)
def test_what_nobody_held_keeps_its_bits_and_its_moments(
    name: str, granularity: str, rule: str
) -> None:
    setup = small(
        scheme={"name": "random", "granularity": granularity},
        clients={"capacities": [0.25], "per_round": 2},
        merge={"rule": rule},
        server=STEPS[name],
    )
    before, *later = rounds(setup, 4)
    waiting = fading = 0
    for state in later:
        for n, held in covered(setup, before.round).items():
            for old, new in [
                (before.tensors[n], state.tensors[n]),
                *((t, state.memory[m]) for m, t in before.memory.items() if m.endswith(f"/{n}")),
            ]:
                assert bits(new[~held]) == bits(old[~held])
            moment = f"server/{'speed' if name == 'momentum' else 'first'}/{n}"
            if moment in before.memory:
                was, now = before.memory[moment], state.memory[moment]
                waiting += int((was[~held] != 0).sum())
                fading += int((was[held] != now[held]).sum())
        before = state
    assert name == "plain" or (waiting and fading)  # such weights exist


def test_buffers_take_their_merged_values() -> None:
    net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))
    states = {}
    for server in ({"name": "plain"}, {"name": "adam", "lr": 0.5}, {"name": "plain", "lr": 0.5}):
        config = parse(
            {
                "model": {"name": "own"},
                "data": {"name": "own", "partition": "iid"},
                "clients": {"count": 4, "per_round": 4, "capacities": [1]},
                "local": {"absent_labels": "keep"},
                "server": server,
            }
        )
        states[str(server)] = rounds(prepare(config, module=net, data=tiny_images()), 1)[1]
    plain, *others = states.values()
    for other in others:
        assert bits(other.tensors["1.running_mean"]) == bits(plain.tensors["1.running_mean"])
        assert bits(other.tensors["2.weight"]) != bits(plain.tensors["2.weight"])
        assert not [name for name in other.memory if "running" in name]
    assert float(plain.tensors["1.running_mean"].abs().max()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_the_projection_comes_after_the_step(name: str) -> None:
    choice = STEPS[name] | {"lr": 3.0}
    free = rounds(small(server=choice), 1)[1]
    boxed = rounds(
        small(server=choice, merge={"projection": "box", "radius": 0.05}),
        1,
    )[1]
    for n, tensor in free.tensors.items():
        assert bits(boxed.tensors[n]) == bits(tensor.clamp(-0.05, 0.05))
    for m, tensor in free.memory.items():
        assert bits(boxed.memory[m]) == bits(tensor)
    assert max(float(t.abs().max()) for t in free.tensors.values()) > 0.05


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(("lr", "reason"), [(1e300, "not finite"), (1e9, "diverged")])
def test_a_step_too_far_ends_the_run_in_words(name: str, lr: float, reason: str) -> None:
    setup = small(server=STEPS[name] | {"lr": lr})
    with pytest.raises(DivergedError, match=rf"^round 1: .*{reason}.*server\.lr") as caught:
        rounds(setup, 1)
    errors.check("step too far", f"{name}, {lr:g}", caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_a_checkpoint_holds_all_that_the_next_round_needs(name: str, tmp_path: Path) -> None:
    setup, config = small(server=STEPS[name]), parse({})
    _, _, before, expected = rounds(setup, 3)
    checkpoint.save(tmp_path, before, config)
    restored, _ = checkpoint.latest(tmp_path, config, initial_state(setup))
    after, _ = step_of(setup, restored)
    assert bits(dict(after.tensors)) == bits(dict(expected.tensors))
    assert after.memory.keys() == expected.memory.keys()
    assert bits(dict(after.memory)) == bits(dict(expected.memory))


@pytest.mark.slow
def test_a_stopped_and_resumed_run_is_the_run_never_stopped(tmp_path: Path) -> None:
    config = parse(
        {
            "model": {"name": "mlp", "width": 16},
            "clients": {"count": 20, "per_round": 4, "capacities": [0.5, 0.25]},
            "server": {"name": "yogi"},
            "train": {"rounds": 5, "evaluate_every": 5, "checkpoint_every": 2},
        }
    )
    (whole, *_), (stopped, *_) = whole_and_resumed(tmp_path, config, {3})
    assert stopped.model_file.read_bytes() == whole.model_file.read_bytes()
    assert stopped.memory_file.read_bytes() == whole.memory_file.read_bytes()


MISTAKES: dict[str, dict[str, Any]] = {
    "server.momentum: 'adam' .*server.name = momentum": {"name": "adam", "momentum": 0.9},
    "server.tau: 'plain' .*server.name = adam or yogi": {"tau": 0.1},
    "server.name: 'adagrad' ": {"name": "adagrad"},
    "server.beta2: 1 .*1": {"name": "yogi", "beta2": 1},
    "server.lr: 0 .*0": {"lr": 0},
}


@pytest.mark.parametrize("reason", MISTAKES)
def test_keys_that_mean_nothing_are_refused(reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^{reason}") as caught:
        parse({"server": MISTAKES[reason]})
    errors.check("server", MISTAKES[reason], caught.value)


@pytest.mark.slow
def test_what_is_configured_is_what_steps(tmp_path: Path) -> None:
    config = parse({"server": {"name": "yogi", "beta1": 0.8}})
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert read(tmp_path / "config.toml") == config
    assert prepare(config).server == Yogi(lr=0.003, beta1=0.8, beta2=0.99, tau=1e-3)
    assert prepare(parse({})).server == Plain(lr=1.0)
    assert prepare(parse({"server": {"name": "momentum"}})).server == Momentum(1.0, 0.9)
