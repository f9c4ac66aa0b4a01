"""The theory lab against enumeration, finite differences, the transcription and training."""

from __future__ import annotations

import json
import math
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from examples.paper_algorithms import ball, randomly_masked_fedavg, rolling_masked_fedavg, window
from torch import Tensor, nn

from submodel.algorithm.rounds import initial_state, output_step, step
from submodel.cli import main
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core import generator
from submodel.data import dataset
from submodel.engines.serial import SerialEngine
from submodel.model.cost import CostModel
from submodel.schemes import Random
from submodel_lab.theory import (
    Logistic,
    MaskedObjective,
    Masking,
    Net,
    Problem,
    Quadratic,
    Ridge,
    TheoryError,
    TrialPlan,
    bernoulli,
    constants,
    load_split,
    quadratics,
    rolling,
    run_trials,
)
from submodel_lab.theory.data import Directions
from submodel_lab.theory.limits import least_variance, variance
from submodel_lab.theory.objective import largest_gradient
from submodel_lab.theory.problems import FloatArray
from submodel_lab.theory.results import REGISTER
from submodel_lab.theory.theorems import lemma_bound, theorem_1, theorem_3, theorem_5
from submodel_lab.theory.trials import MaskDraws

DEVIATION = 1e-12


def sample_problem(kind: type[Logistic] | type[Ridge] | type[Net], l2: float = 0.1) -> Any:
    x, y = Directions(3, 4).draw(1, 12, "test")
    return kind(x, y, l2)


PROBLEMS: dict[str, Problem] = {
    "quadratic": quadratics(clients=3, dimension=4, noise=0.5),
    "logistic": sample_problem(Logistic),
    "ridge": sample_problem(Ridge),
    "net": sample_problem(Net),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradients_are_finite_differences(name: str) -> None:
    problem, h = PROBLEMS[name], 1e-6
    w = np.random.default_rng(0).normal(size=(problem.clients, 2, problem.dimension))
    found = problem.gradients(w)
    for j in range(problem.dimension):
        e = np.zeros(problem.dimension)
        e[j] = h
        slope = (problem.losses(w + e) - problem.losses(w - e)) / (2 * h)
        np.testing.assert_allclose(found[..., j], slope, atol=1e-8)  # h^2 and rounding / h


@pytest.mark.parametrize("name", ["logistic", "ridge", "net"])
def test_the_mean_over_examples_is_the_gradient(name: str) -> None:
    problem: Any = PROBLEMS[name]
    w = np.random.default_rng(0).normal(size=(problem.clients, 2, problem.dimension))
    one = [
        problem.stochastic_gradients(w, np.full(w.shape[:2], j)) for j in range(problem.x.shape[2])
    ]
    np.testing.assert_allclose(np.mean(one, 0), problem.gradients(w), atol=DEVIATION)


def enumerated(problem: Problem, p: FloatArray, w: FloatArray) -> float:
    """Return F_p(w) over all 2^d masks, by definition."""
    total = 0.0
    for mask in product((0.0, 1.0), repeat=problem.dimension):
        held = sum(mask)
        chance = p**held * (1 - p) ** (problem.dimension - held)
        point = np.broadcast_to(np.array(mask) * w, (problem.clients, 1, problem.dimension))
        total += float((chance * problem.losses(point)[:, 0]).mean())
    return total


@pytest.mark.slow
@pytest.mark.parametrize("d", [3, 10])
def test_f_p_and_its_optimum_in_closed_form(d: int) -> None:
    problem = quadratics(clients=3, dimension=d)
    p = np.array([0.3, 0.6, 1.0])
    masked = MaskedObjective(problem, Masking(Random(), tuple(p)))
    w = np.random.default_rng(0).normal(size=d)
    assert masked.value(w) == pytest.approx(enumerated(problem, p, w), abs=DEVIATION)
    best = masked.optimum(10.0)
    assert np.abs(masked.gradient(best)).max() < DEVIATION
    for j in range(d):  # also of the enumerated objective, which is symmetric around the optimum
        e = np.zeros(d)
        e[j] = 1e-3
        up, down = enumerated(problem, p, best + e), enumerated(problem, p, best - e)
        assert up == pytest.approx(down, abs=1e-11)
        assert up > enumerated(problem, p, best)
    a, c = problem.matrices, p[:, None, None]  # the formula of the paper's setting
    diagonal = np.stack([np.diag(np.diag(m)) for m in a])
    by_hand = (c**2 * a + c * (1 - c) * diagonal).mean(0)
    solved = np.linalg.solve(by_hand, (p[:, None] * problem.vectors).mean(0))
    np.testing.assert_allclose(best, solved, atol=DEVIATION)


@pytest.mark.parametrize("name", ["logistic", "net"])
def test_enumerated_objectives_of_other_problems(name: str) -> None:
    problem = PROBLEMS[name] if name == "logistic" else Net(*_small(), hidden_units=3)
    masked = MaskedObjective(problem, bernoulli(0.4, problem.clients))
    w = np.random.default_rng(1).normal(size=problem.dimension)
    p = np.full(problem.clients, 0.4)
    assert masked.value(w) == pytest.approx(enumerated(problem, p, w), abs=DEVIATION)


def _small() -> tuple[FloatArray, FloatArray]:
    x, y = Directions(2, 3).draw(1, 5, "small")
    return x, y


def test_the_optimum_of_other_problems_is_stationary() -> None:
    masked = MaskedObjective(PROBLEMS["logistic"], bernoulli(0.5, 3))
    assert np.abs(masked.gradient(masked.optimum(50.0))).max() < 1e-8  # L-BFGS stops at 1e-10


def test_f_m_is_the_mean_over_the_windows() -> None:
    problem = quadratics(clients=2, dimension=6)
    masked = MaskedObjective(problem, rolling(0.5, 2, 6))
    w = np.random.default_rng(0).normal(size=6)
    by_hand = [
        problem.losses(np.broadcast_to(window(6, j, 3) * w, (2, 1, 6))).mean() for j in range(6)
    ]
    assert masked.value(w) == pytest.approx(float(np.mean(by_hand)), abs=DEVIATION)


def test_ridge_is_its_quadratic() -> None:
    ridge = sample_problem(Ridge)
    w = np.random.default_rng(0).normal(size=(3, 2, 4))
    np.testing.assert_allclose(ridge.losses(w), ridge.quadratic().losses(w), atol=DEVIATION)
    assert ridge.smoothness == pytest.approx(ridge.quadratic().smoothness)
    assert ridge.convexity == pytest.approx(ridge.quadratic().convexity)


def test_the_unbiased_variant_keeps_linear_terms() -> None:
    problem = quadratics(clients=2, dimension=5)
    scaled = MaskedObjective(problem, bernoulli(0.25, 2, unbiased=True))
    np.testing.assert_allclose(scaled.gradient(np.zeros(5)), -problem.vectors.mean(0))
    assert not np.allclose(MaskedObjective(problem, bernoulli(0.25, 2)).gradient(np.zeros(5)),
                           -problem.vectors.mean(0))  # fmt: skip


def transcribed(
    problem: Any, plan: TrialPlan, radius: float
) -> tuple[list[FloatArray], FloatArray]:
    """Run trial 0 of the plain transcription with the lab's masks and noise."""
    n, d = problem.clients, problem.dimension

    def stochastic(i: int) -> Any:
        def gradient(w: FloatArray, r: int, k: int) -> FloatArray:
            xi = problem.draw(plan.seed, r, plan.steps, plan.trials)[k]
            point = np.zeros((n, plan.trials, d))
            point[i, 0] = w
            return np.asarray(problem.stochastic_gradients(point, xi)[i, 0])

        return gradient

    def full(i: int) -> Any:
        return lambda w: problem.gradients(np.broadcast_to(w, (n, 1, d)))[i, 0]

    gradients = ([stochastic(i) for i in range(n)], [full(i) for i in range(n)])
    steps, smoothness = plan.steps, problem.smoothness
    if isinstance(plan.masking.scheme, Random):
        draws = MaskDraws(plan.masking, d, plan.trials, plan.seed)
        return randomly_masked_fedavg(
            *gradients,
            lambda i, r: draws(r)[i, 0],
            d,
            plan.rounds,
            steps,
            plan.eta_at(0),
            smoothness,
            ball(radius),
        )

    def permutation(e: int) -> list[int]:
        order: list[int] = generator(plan.seed, "permutation", e).permutation(d).tolist()
        return order

    s = round(plan.masking.capacities[0] * d)
    return rolling_masked_fedavg(
        *gradients, lambda _, j: window(d, j, s), permutation, d, plan.rounds // d, d, steps,
        plan.eta_at(0), smoothness, ball(radius),
    )  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("scheme", ["random", "rolling"])
@pytest.mark.parametrize("radius", [0.4, 100.0])
def test_iterates_against_the_transcription(name: str, scheme: str, radius: float) -> None:
    problem = PROBLEMS[name]
    n, d = problem.clients, problem.dimension
    masking = bernoulli(0.5, n) if scheme == "random" else rolling(0.5, n, d)
    plan = TrialPlan(masking, 2 * d, 3, 0.2, radius, trials=3, seed=5)
    ours = run_trials(problem, plan, keep=range(2 * d + 1))
    iterates, output = transcribed(problem, plan, radius)
    for r, w in enumerate(iterates):
        np.testing.assert_allclose(ours.iterates[r][0], w, rtol=0, atol=DEVIATION, err_msg=f"{r}")
    np.testing.assert_allclose(ours.output[0], output, rtol=0, atol=DEVIATION)
    if name == "quadratic":
        assert np.abs(iterates[-1]).max() > 0.05


@pytest.mark.parametrize("scheme", ["random", "rolling", "unbiased"])
def test_the_lab_is_training(scheme: str) -> None:
    """Trial 0 takes the steps of `rounds.step` and `output_step`, with the masks of its seed."""
    n, examples, d, steps, eta, radius = 3, 8, 6, 2, 0.1, 0.5
    rng = np.random.default_rng(5)
    x = rng.normal(size=(n * examples, d))
    y = np.sign(x @ rng.normal(size=d))
    data = dataset(*[(torch.from_numpy(x), torch.from_numpy(y))] * 2)
    model = nn.Linear(d, 1, bias=False).double()
    nn.init.zeros_(model.weight)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs[:, 0] - targets).square().mean() / 2

    config: dict[str, Any] = {
        "seed": 3, "data": {"partition": "iid"},
        "clients": {"count": n, "per_round": n, "capacities": [0.5]},
        "scheme": {"name": scheme, "granularity": "coordinate"},
        "merge": {"rule": "fill_in", "projection": "ball", "radius": radius},
        "local": {"steps": steps, "lr": eta, "momentum": 0, "absent_labels": "keep",
                  "batch_size": examples},
    }  # fmt: skip
    setup = prepare(parse(config), model, data, loss=loss)
    parts = [setup.clients.examples(i) for i in range(n)]
    own_x = np.stack([p.x.numpy() for p in parts])[:, None]
    own_y = np.stack([p.y.numpy() for p in parts])[:, None]
    problem = Ridge(own_x, own_y).quadratic()
    masking = bernoulli(0.5, n, unbiased=scheme == "unbiased")
    if scheme == "rolling":
        masking = rolling(0.5, n, d)
    ours = run_trials(
        problem, TrialPlan(masking, 2 * d, steps, eta, radius, 4, seed=3), range(2 * d + 1)
    )
    engine, costs = SerialEngine(setup), CostModel(setup.module, data.example)
    state = initial_state(setup)
    for r in range(1, 2 * d + 1):
        state, _ = step(setup, state, engine, costs)
        trained = state.tensors["weight"].numpy().ravel()
        np.testing.assert_allclose(ours.iterates[r][0], trained, rtol=0, atol=DEVIATION)
    final = output_step(setup, state, engine, costs, problem.smoothness).tensors["weight"]
    np.testing.assert_allclose(ours.output[0], final.numpy().ravel(), rtol=0, atol=DEVIATION)
    assert np.linalg.norm(trained) > 0.1


def test_projection() -> None:
    problem = quadratics(clients=2, dimension=4)
    far = Quadratic(problem.matrices, 100 * problem.vectors)
    plan = TrialPlan(bernoulli(1.0, 2), 30, 2, 0.1, 1.0, trials=2)
    found = run_trials(far, plan, keep=[30])
    np.testing.assert_allclose(np.linalg.norm(found.iterates[30], axis=1), 1.0, atol=DEVIATION)
    best = MaskedObjective(far).optimum(1.0)  # also on the sphere, where no point is better
    assert np.linalg.norm(best) == pytest.approx(1.0)
    around = np.random.default_rng(0).normal(size=(500, 4))
    around /= np.linalg.norm(around, axis=1, keepdims=True)
    assert min(MaskedObjective(far).value(w) for w in around) >= MaskedObjective(far).value(best)


def test_trials_are_independent_of_their_number() -> None:
    problem = quadratics(clients=2, dimension=4, noise=0.0)
    few, many = (
        run_trials(problem, TrialPlan(bernoulli(0.5, 2), 5, 2, 0.1, 10.0, trials=t)).output
        for t in (3, 9)
    )
    np.testing.assert_array_equal(few, many[:3])
    assert len(np.unique(many.round(9), axis=0)) == 9


def test_g_is_the_largest_gradient() -> None:
    problem = quadratics(clients=3, dimension=4)
    exact = largest_gradient(problem, 2.0)
    w = np.random.default_rng(0).normal(size=(200000, 4))
    w *= 2 / np.linalg.norm(w, axis=1, keepdims=True)
    tried = np.linalg.norm(problem.gradients(np.broadcast_to(w, (3, *w.shape))), axis=-1).max()
    assert tried <= exact + 1e-12
    assert tried > 0.995 * exact


def test_constants_of_full_models() -> None:
    problem = quadratics(clients=3, dimension=4, heterogeneity=0.0, noise=0.5)
    found = constants(problem, bernoulli(1.0, 3), 5.0)
    assert (found.residual, found.distance) == (0, 0)
    assert found.delta2 == 0.25
    assert found.sigma2 == pytest.approx(0, abs=1e-20)  # all clients agree at the optimum
    assert found.zeta2 == pytest.approx(0, abs=1e-9)
    masked = constants(problem, bernoulli(0.5, 3), 5.0)
    assert masked.distance <= lemma_bound(problem, 0.5, masked.G, 5.0)
    assert masked.sigma2 > 0


def test_what_is_not_exact_is_named() -> None:
    problem = quadratics(clients=2, dimension=4)
    assert constants(problem, bernoulli(0.5, 2), 5.0).estimates == ("zeta2",)
    assert constants(problem, bernoulli(0.5, 2), 5.0).D_max == 1
    assert constants(quadratics(2, 4, heterogeneity=0.0), bernoulli(1.0, 2), 5.0).D_max == 0
    many = quadratics(clients=2, dimension=12)
    assert "sigma2" in constants(many, bernoulli(0.5, 2), 5.0).estimates
    assert "sigma2" not in constants(many, rolling(0.5, 2, 12), 5.0).estimates
    split = load_split("breast_cancer", clients=4, skew=1.0)
    found = constants(split.logistic(0.1), bernoulli(1.0, 4), 100.0)
    shares = (split.y[:, 0] > 0).mean(1)
    assert found.D_max == pytest.approx(shares.max() - shares.min())
    assert "D_max" in found.estimates


@pytest.mark.parametrize("budget", [0.5, 2.0, 3.5, 4.0])
def test_probabilities_of_least_variance(budget: float) -> None:
    powers = np.array([9.0, 4.0, 1.0, 0.01])
    best = least_variance(powers, budget)
    assert best.sum() == pytest.approx(budget, rel=1e-12)
    assert (best <= 1).all()
    assert (best > 0).all()
    rng = np.random.default_rng(0)
    for _ in range(2000):  # no other feasible p does better
        other = rng.dirichlet(np.ones(4)) * budget
        if (other <= 1).all() and (other > 1e-6).all():
            assert variance(powers, other) >= variance(powers, best) - 1e-9
    # the formula is the variance of m/p (.) g over all masks
    g = np.sqrt(powers)
    masks = np.array(list(product((0.0, 1.0), repeat=4)))
    chances = np.prod(np.where(masks > 0, best, 1 - best), 1)
    spread = (chances[:, None] * np.square(masks / best * g - g)).sum()
    assert spread == pytest.approx(variance(powers, best), rel=1e-9, abs=1e-12)


def test_the_noise_has_the_variance_it_says() -> None:
    problem = quadratics(clients=2, dimension=5, noise=0.7)
    w = np.zeros((2, 20000, 5))
    noise = problem.stochastic_gradients(w, problem.draw(0, 0, 1, 20000)[0]) - problem.gradients(w)
    assert np.square(noise).sum(-1).mean() == pytest.approx(0.49, rel=0.02)  # 40000 draws


def test_identical_datasets_stay_together() -> None:
    x, y = Directions(3, 4).draw(5, 8, "stability")
    runs = [
        run_trials(
            Logistic(x.copy(), y.copy()), TrialPlan(bernoulli(0.5, 3), 20, 3, 0.5, 9.0, 5)
        ).output
        for _ in range(2)
    ]
    assert np.abs(runs[0] - runs[1]).max() == 0
    x[0, :, 0] *= -1
    moved = run_trials(Logistic(x, y), TrialPlan(bernoulli(0.5, 3), 20, 3, 0.5, 9.0, 5)).output
    assert np.abs(moved - runs[0]).max() > 0


def test_total_variation_of_directions() -> None:
    problem = Directions(2, 3, heterogeneity=0.4)
    x, _ = problem.draw(1, 200000, "tv")
    first, second = (np.sign(x[0, 0] @ u) for u in problem.client_directions)
    # given x the labels differ in law by the heterogeneity wherever the directions disagree
    assert 0.4 * (first != second).mean() == pytest.approx(problem.distance, abs=0.005)


def test_real_data() -> None:
    split = load_split("breast_cancer", clients=4, skew=1.0)
    assert split.x.shape[-1] == 30
    assert split.distance > load_split("breast_cancer", clients=4).distance
    problem = split.logistic(0.01)
    found = MaskedObjective(problem).optimum(1000.0)
    accuracy = (np.sign(split.test_x @ found) == split.test_y).mean()
    assert accuracy > 0.9
    assert load_split("digits").logistic(0.1).smoothness > 0.1
    # every training example belongs to one client
    rows = {tuple(row) for row in split.x.reshape(-1, 30).round(12)}
    assert len(rows) == split.x.shape[0] * split.x.shape[2]


def test_steps_say_what_is_not_met() -> None:
    problem = quadratics(mu=1.0, smoothness=4.0)
    assert theorem_1(problem, 0.5, 5, 20).note.startswith("not met: R >= (L/mu~)")
    assert "1/(16 L K)" in theorem_1(problem, 0.5, 5, 400).note
    assert theorem_1(problem, 0.5, 5, 100000).note == "met"
    expected = math.log(2000.0**2) / (0.5 * 2000)
    assert theorem_1(problem, 0.5, 5, 400).eta == pytest.approx(expected)
    assert "512 kappa^2 log T" in theorem_3(problem, 5, 10, 50).note
    x, y = Directions(2, 3).draw(1, 8, "x")
    assert theorem_5(Logistic(x, y), 0.5, 8, 2, 40).eta == pytest.approx(4 / 80)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: bernoulli(0.0, 2), "p = 0 "),
        (lambda: theorem_1(quadratics(mu=0.0), 0.5, 5, 100), "convex"),
        (lambda: theorem_3(quadratics(), 5, 10, 1), "T >= 2"),
        (lambda: MaskedObjective(quadratics(mu=0.0, heterogeneity=0.0)).optimum(5.0), "singular"),
        (lambda: quadratics(mu=3.0, smoothness=1.0), "0 <= mu <= L"),
        (
            lambda: run_trials(quadratics(), TrialPlan(bernoulli(0.5, 3), 5, 1, 0.1, 9.0)),
            "for 4",
        ),
        (
            lambda: run_trials(quadratics(), TrialPlan(bernoulli(0.5, 4), 5, 1, -0.1, 9.0)),
            "eta = -0.1",
        ),
        (
            lambda: run_trials(quadratics(), TrialPlan(bernoulli(0.5, 4), 900, 3, 9.0, math.inf)),
            "diverged",
        ),
        (lambda: load_split("iris"), "breast_cancer, digits"),  # type: ignore[arg-type]
    ],
)
def test_bad_input(make: Any, words: str) -> None:
    with pytest.raises(TheoryError) as raised, np.errstate(all="ignore"):
        make()
    assert words in str(raised.value)


SMALL = {
    "convergence": ["rounds=10,20,40", "trials=4", "sweep_rounds=10", "dimension=5", "clients=2",
                    "sweep_capacities=1,0.6", "sweep_steps=1,2", "sweep_clients=2,4",
                    "sweep_smoothness=2,4", "sweep_spread=1,2", "sweep_noise=3,10"],
    "residual": ["problems=2", "dimensions=5,6", "capacities=0.5,0.9,0.99"],
    "lemmas": ["steps=2", "problems=2", "trials=20"],
    "nonconvex": ["rounds=8,16,32", "trials=2", "sweep_rounds=8", "sweep_capacities=1,0.5",
                  "sweep_steps=1,2", "sweep_clients=2,4", "sweep_heterogeneity=0.1,0.4",
                  "sweep_noise=1,2"],
    "stability": ["rounds=10", "trials=4", "examples=4,8,16", "clients=2,3", "sweep_rounds=10,20",
                  "capacities=1,0.5", "test_examples=20", "sweep_steps=1,2", "sweep_batches=2,1",
                  "sweep_heterogeneity=0.1,0.4"],
    "generalization": ["rounds=3", "trials=3", "capacities=1,0.5"],
    "beyond": ["rounds=10,20", "budgets=20", "trials=4", "capacities=1,0.6", "dimension=5",
               "p=0.6"],
}  # fmt: skip


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["submodel", "study", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_every_study_writes_its_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [part for text in SMALL[name] for part in ("--set", text)]
    assert command(monkeypatch, name, *settings, "--out", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "statements" in shown
    record = json.loads((tmp_path / f"{name}.json").read_text("utf-8"))
    measured_rows = {
        (statement["source"], statement["parameter"]) for statement in record["claims"]
    }
    required_rows = {(of, along) for of, some in REGISTER[name].items() for along in some}
    assert required_rows <= measured_rows  # no row of the table is empty
    assert record["version"] == metadata.version("submodel")
    lines = (tmp_path / f"{name}.csv").read_text("utf-8").splitlines()
    assert len(lines) == len(record["rows"]) + 1
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    if name == "convergence":
        assert "the theorem's condition is not met" in shown
        assert record["settings"]["trials"] == 4
        inside = [row for row in record["rows"] if not row["projections"]]
        assert inside
        assert all(row["distance2 exact"] > 0 for row in inside)


@pytest.mark.parametrize(
    ("name", "setting", "words"),
    [
        ("convergence", "capacities=0,0.5", "p = 0 "),
        ("convergence", "mu=0", "mu = 0"),
        ("convergence", "rounds=10,20,40", "at least 2"),
        ("convergence", "rounds=20,40", "at least 3"),
        ("convergence", "speed=1", "capacities, rounds"),
        ("convergence", "trials=many", "'many'"),
        ("stability", "rounds=15", "epochs"),
        ("lemmas", "steps=1,2", "K = 1"),
        ("all", "trials=5", "setting"),
        ("generalization", "examples=500", "there are"),
    ],
)
def test_bad_settings_are_a_sentence(
    name: str,
    setting: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(monkeypatch, name, "--set", setting, "--out", str(tmp_path)) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert words in error
