"""Own problems: files, arrays, torch modules, and clients with unequal n."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from submodel.cli import main
from submodel.schemes import Random
from submodel_lab.theory import (
    Logistic,
    MaskedObjective,
    Masking,
    ModuleProblem,
    Net,
    Quadratic,
    Ridge,
    TheoryError,
    TrialPlan,
    bernoulli,
    constants,
    exact_moments,
    load_problem,
    pad_examples,
    quadratics,
    run_trials,
)
from submodel_lab.theory.limits import balance
from submodel_lab.theory.problems import FloatArray
from submodel_lab.theory.theorems import theorem_1

RNG = np.random.default_rng(0)
X = [RNG.normal(size=(n, 3)) for n in (2, 5, 3)]
Y = [np.sign(RNG.normal(size=n)) for n in (2, 5, 3)]


@pytest.mark.parametrize("kind", [Logistic, Ridge, Net])
def test_clients_with_unequal_numbers_of_examples(kind: Any) -> None:
    """Every client alone has the same losses, gradients, eigenvalues and noise."""
    x, y, sizes = pad_examples(X, Y)
    problem = kind(x, y, 0.1, sizes=sizes)
    w = RNG.normal(size=(3, 4, problem.dimension))
    alone = [kind(a[None, None], b[None, None], 0.1) for a, b in zip(X, Y, strict=True)]
    for i, one in enumerate(alone):
        np.testing.assert_allclose(problem.losses(w)[i], one.losses(w[i : i + 1])[0], atol=1e-12)
        np.testing.assert_allclose(problem.gradients(w)[i], one.gradients(w[i : i + 1])[0],
                                   atol=1e-12)  # fmt: skip
    if kind is not Net:
        assert problem.smoothness == pytest.approx(max(one.smoothness for one in alone))
    draws = problem.draw(0, 0, 400, 1)
    assert [set(draws[:, i].ravel()) for i in range(3)] == [set(range(n)) for n in sizes]
    masking = bernoulli(1.0, 3)
    found = constants(problem, masking, 5.0)
    shares = [(b > 0).mean() for b in Y]
    assert found.D_max == pytest.approx(max(shares) - min(shares))
    parts = [constants(one, bernoulli(1.0, 1), 5.0).delta2 for one in alone]
    assert found.delta2 == pytest.approx(max(parts))


def test_ridge_of_unequal_clients_is_its_quadratic() -> None:
    x, y, sizes = pad_examples(X, Y)
    ridge = Ridge(x, y, 0.1, sizes=sizes)
    w = RNG.normal(size=(3, 2, 3))
    np.testing.assert_allclose(ridge.losses(w), ridge.quadratic().losses(w), atol=1e-12)
    np.testing.assert_allclose(ridge.gradients(w), ridge.quadratic().gradients(w), atol=1e-12)
    noise = balance(ridge, bernoulli(1.0, 3)).noise_covariance
    best = MaskedObjective(ridge).optimum(math.inf)
    by_hand = np.zeros((3, 3))
    for a, b in zip(X, Y, strict=True):
        g = a * (a @ best - b)[:, None]
        by_hand += np.cov(g.T, bias=True) / 9
    np.testing.assert_allclose(noise, by_hand, atol=1e-8)  # L-BFGS finds the optimum to 1e-9


def mean_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[..., 0] - targets).square().mean() / 2


def test_a_torch_module_is_the_same_net() -> None:
    """Two tanh units with fixed output weights, like in `Net`."""

    class Tanh(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.inner(x)) @ torch.tensor([[2.0], [-1.5]]).to(x)

    x, y, sizes = pad_examples(X, Y)
    net = Net(x, y, sizes=sizes)
    inputs, targets = ([torch.tensor(part) for part in whole] for whole in (X, Y))
    problem = ModuleProblem(Tanh(), mean_square, inputs, targets)
    w = RNG.normal(size=(3, 4, 6))
    np.testing.assert_allclose(problem.losses(w), net.losses(w), atol=1e-12)
    np.testing.assert_allclose(problem.gradients(w), net.gradients(w), atol=1e-12)
    xi = problem.draw(3, 1, 2, 4)
    np.testing.assert_array_equal(xi, net.draw(3, 1, 2, 4))
    np.testing.assert_allclose(
        problem.stochastic_gradients(w, xi[0]), net.stochastic_gradients(w, xi[0]), atol=1e-12
    )
    plan = TrialPlan(bernoulli(0.5, 3), 5, 2, 0.1, math.inf, 3, start=problem.start)
    ours, theirs = (run_trials(p, plan, [0, 5]).iterates for p in (problem, net))
    np.testing.assert_array_equal(ours[0], np.repeat(problem.start[None], 3, 0))
    np.testing.assert_allclose(ours[5], theirs[5], atol=1e-12)
    assert 0 < problem.smoothness < 100


def test_a_function_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "from submodel_lab.theory import ModuleProblem, quadratics\n"
        "def make():\n"
        "    torch.manual_seed(0)\n"
        "    net = nn.Sequential(nn.Linear(2, 1), nn.Tanh(), nn.Linear(1, 2, bias=False))\n"
        "    x = [torch.randn(n, 2) for n in (4, 6)]\n"
        "    y = [torch.randint(2, (n,)) for n in (4, 6)]\n"
        "    return ModuleProblem(net, nn.CrossEntropyLoss(), x, y)\n"
        "def make_with_start():\n"
        "    return quadratics(2, 3), [1.0, 2.0, 3.0]\n"
        "def make_wrong():\n"
        "    return 'no problem'\n"
        "def make_failing():\n"
        "    raise KeyError('x')\n"
    )
    posed = load_problem(f"{tmp_path}/mine.py:make")
    assert posed.problem.dimension == 5
    assert posed.start is not None
    assert np.abs(posed.start).max() > 0
    own_start = load_problem(f"{tmp_path}/mine.py:make_with_start").start
    np.testing.assert_array_equal(own_start, [1.0, 2.0, 3.0])
    for name, words in {
        "make_wrong": "make_wrong: .*str .*clients",
        "make_failing": "make_failing .*KeyError: 'x'",
        "unknown": "mine.py .*'unknown'",
    }.items():
        with pytest.raises(TheoryError, match=words):
            load_problem(f"{tmp_path}/mine.py:{name}")


def save(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return str(path)


def test_arrays_in_a_file(tmp_path: Path) -> None:
    a = np.stack([np.diag([1.0, 2.0]), np.eye(2)])
    posed = load_problem(save(tmp_path / "q.npz", A=a, b=np.ones((2, 2)), noise=0.5, w0=[3, 4]))
    assert isinstance(posed.problem, Quadratic)
    assert (posed.problem.noise, posed.problem.smoothness) == (0.5, 2.0)
    np.testing.assert_array_equal(posed.start, [3.0, 4.0])
    rows, labels = np.concatenate(X), np.concatenate(Y)
    whose = np.repeat([7, 8, 9], [2, 5, 3])
    order = RNG.permutation(len(rows))
    source = save(tmp_path / "e.npz", x=rows[order], y=labels[order], client=whose[order], l2=0.1)
    problem = load_problem(source).problem
    assert isinstance(problem, Logistic)
    assert problem.sizes == (2, 5, 3)
    w: FloatArray = RNG.normal(size=(3, 2, 3))
    x, y, sizes = pad_examples(X, Y)
    np.testing.assert_allclose(problem.losses(w), Logistic(x, y, 0.1, sizes=sizes).losses(w))
    ridge = load_problem(save(tmp_path / "r.npz", x=np.ones((2, 4, 3)), y=RNG.normal(size=(2, 4))))
    assert isinstance(ridge.problem, Ridge)
    assert ridge.problem.sizes is None


class Bowl:
    """A problem as a plain class: ||w||^2 / 2 with noise of total variance 1."""

    clients, dimension, smoothness, convexity = 1, 2, 1.0, 1.0

    def losses(self, w: FloatArray) -> FloatArray:
        return np.asarray(np.square(w).sum(-1) / 2)

    def gradients(self, w: FloatArray) -> FloatArray:
        return w

    def draw(self, seed: int, round_: int, steps: int, trials: int) -> FloatArray:
        rng = np.random.default_rng([seed, round_])
        return rng.normal(size=(steps, 1, trials, 2)) / math.sqrt(2)

    def stochastic_gradients(self, w: FloatArray, xi: FloatArray) -> FloatArray:
        return self.gradients(w) + xi


class Slanted(Bowl):
    """A problem whose gradients contradict its losses."""

    def gradients(self, w: FloatArray) -> FloatArray:
        return 2 * w


def test_a_class_of_ones_own() -> None:
    problem = load_problem(f"{__name__}:Bowl").problem
    found = constants(problem, bernoulli(0.5, 1), 3.0)  # formerly failed in an assertion
    assert math.isnan(found.D_max)
    assert found.delta2 == pytest.approx(0.5, rel=0.3)  # E||m||^2 / 2; 8 x 128 x 4 draws, largest
    assert pytest.approx(3.0) == found.G


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"A": np.ones((2, 2, 3)), "b": np.ones((2, 2))}, "N x d x d and N x d"),
        ({"A": np.array([[[1.0, 2], [0, 1]]]), "b": np.ones((1, 2))}, "symmetric"),
        ({"A": -np.ones((1, 1, 1)), "b": np.ones((1, 1))}, "eigenvalue"),
        ({"A": np.ones((1, 1, 1)), "b": np.ones((1, 1)), "z": 1}, " z"),
        ({"A": np.ones((1, 1, 1)), "b": np.full((1, 1), np.nan)}, "b "),
        ({"A": np.ones((1, 1, 1)), "b": np.ones((1, 1)), "w0": [1, 2]}, "(2,)"),
        ({"b": np.ones(2)}, "x and y"),
        ({"x": np.ones((2, 3)), "y": np.ones(2)}, "bad.npz: "),
        ({"x": np.ones((1, 2, 3)), "y": np.ones((1, 2)), "loss": "hinge"}, "logistic, ridge"),
        ({"x": np.ones((1, 2, 3)), "y": np.zeros((1, 2)), "loss": "logistic"}, "-1 and 1"),
        ({"x": np.array([{}]), "y": np.ones(1)}, "pickle"),
    ],
)
def test_arrays_that_are_no_problem(arrays: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(TheoryError) as raised:
        load_problem(save(tmp_path / "bad.npz", **arrays))
    assert words in str(raised.value)


def test_problems_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TheoryError, match=":Slanted: "):
        load_problem(f"{__name__}:Slanted")
    with pytest.raises(TheoryError, match=r"file\.py:make"):
        load_problem("quadratic")
    with pytest.raises(TheoryError, match=r"none\.py: "):
        load_problem(f"{tmp_path}/none.py:make")
    (tmp_path / "text.npz").write_text("A, b")
    with pytest.raises(TheoryError, match=r"text\.npz .*numpy\.savez"):
        load_problem(f"{tmp_path}/text.npz")
    for number in (np.ones(2), np.float64(-1)):
        arrays = {"A": np.eye(2)[None], "b": np.ones((1, 2)), "noise": number}
        with pytest.raises(TheoryError, match=r"noise\.npz: noise "):
            load_problem(save(tmp_path / "noise.npz", **arrays))
    with pytest.raises(TheoryError, match=r"none\.npz"):
        load_problem(f"{tmp_path}/none.npz")
    with pytest.raises(TheoryError, match="x and y"):
        pad_examples([np.ones((2, 1))], [np.ones(1)])
    with pytest.raises(TheoryError, match="pad_examples"):
        Logistic(np.ones((2, 1, 2, 1)), np.ones((2, 1, 2)), sizes=(1, 2))
    with pytest.raises(TheoryError, match=r"^sizes \(1,\): "):
        Logistic(np.ones((2, 1, 2, 1)), np.ones((2, 1, 2)), sizes=(1,))
    with pytest.raises(TheoryError, match="x and y"):
        ModuleProblem(nn.Linear(1, 1), mean_square, [torch.ones(2, 1)], [torch.ones(1)])
    with pytest.raises(TheoryError, match=r"^10100 .*4096$"):
        ModuleProblem(nn.Linear(100, 100), mean_square, [torch.ones(1, 100)], [torch.ones(1)])


def run_study(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["submodel", "study", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


@pytest.mark.slow
def test_the_study_of_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trials with exact values, unequal capacities, another start, another scheme."""
    problem = quadratics(2, 3, noise=1.0)
    source = save(tmp_path / "q.npz", A=problem.matrices, b=problem.vectors, noise=1.0)
    settings = ["rounds=40", "trials=40", "client_capacities=1,0.25", "capacities=0.5",
                "start=1,2,3", "steps=2"]  # fmt: skip
    flags = [flag for text in settings for flag in ("--set", text)]
    out = str(tmp_path)
    assert run_study(monkeypatch, "problem", "--problem", source, *flags, "--out", out) == 0
    record = json.loads((tmp_path / "problem.json").read_text("utf-8"))
    assert [row["case"] for row in record["rows"]] == ["p=0.5", "p=1,0.25"]
    masking = Masking(Random(), (1.0, 0.25))
    eta = theorem_1(problem, 0.25, 2, 40).eta
    plan = TrialPlan(masking, 40, 2, eta, math.inf, start=np.array([1.0, 2.0, 3.0]))
    exact = exact_moments(problem, plan)
    assert record["rows"][1]["distance2 exact"] == pytest.approx(exact.distances[-1])
    assert record["rows"][1]["F(w^)-F* exact"] == pytest.approx(exact.output_gap)
    assert record["failures"] == []
    limits = [c["limit"] for c in record["claims"] if c["source"] == "Theorem A"]
    assert limits[1] == pytest.approx(balance(problem, masking).rate_constant(2, 0.25))
    assert {c["verdict"] for c in record["claims"] if c["source"] == "Theorem B"} == {"yes"}
    for arguments, words in {
        ("problem",): "problem",
        ("nonconvex", "--problem", source): "submodel study problem",
        ("problem", "--problem", source, "--set", "scheme=importance"): "Importance: ",
        ("problem", "--problem", source, "--set", "start=1,2"): "start: 2 ",
        ("problem", "--problem", source, "--set", "client_capacities=a,b"): "client_capacities",
    }.items():
        capsys.readouterr()
        assert run_study(monkeypatch, *arguments, "--out", out) == 2
        assert words in capsys.readouterr().err.replace("\n", " ")
