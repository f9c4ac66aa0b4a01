"""Factorised models: exact at full rank, optimal at every lower one, and cut along ranks only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from submodel.algorithm.dispatch import cut_of
from submodel.algorithm.rounds import initial_state, plan
from submodel.algorithm.types import Assignment, Setup
from submodel.cli.planning import inspect_command
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError
from submodel.data import Dataset, digits
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.batched.forward import WideForward
from submodel.model.axes import CLASSES, declare, trace
from submodel.model.build import build_module, load, tensors_of
from submodel.model.cut import WHOLE, UnitCut, count_values, gather
from submodel.model.zoo import factorised, make_model, only_ranks
from submodel.model.zoo.low_rank import Factors
from submodel.report.tables import cost_rows
from submodel.runs.export import trained_module, trained_state
from submodel.runs.loop import Interruption, RunFolder, run_rounds
from submodel.runs.open import Run
from submodel.runs.training import Training
from submodel.schemes import Draw, Static
from submodel.schemes.draw import draw_units
from tests.model.nets import cut_by
from tests.model.zoo import ZOO, Entry
from tests.support.common import RULES, SCHEMES, WIDTHS, tiny_images
from tests.support.engines import EXACT_TOLERANCE, assert_equal_updates, doubled, setup_of
from tests.support.reference import masked, plain_attention
from tests.support.rounds import one_round, output
from tests.support.runs import run

LOW = {"factorised": True}


def low_setup(name: str, images: Dataset | None = None, **sections: dict[str, Any]) -> Setup:
    """Make seven clients with a small factorised model."""
    return setup_of(name, images, **sections, model={**LOW, "name": name, "width": WIDTHS[name]})


def factors_of(net: nn.Module) -> dict[str, Any]:
    return {path: layer for path, layer in net.named_modules() if isinstance(layer, Factors)}


def product(pair: Any) -> Tensor:
    """Return the matrix (outputs x inputs k k) of two factors."""
    up, down = pair.up.weight.detach().flatten(1), pair.down.weight.detach().flatten(1)
    matrix: Tensor = up @ down
    assert torch.equal(pair.weight.flatten(1), matrix)
    assert pair.bias is pair.up.bias
    return matrix


class AllKinds(nn.Module):
    """Convolutions with all options, a 1 x 1 one with a stride, linear layers tall and flat."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3)
        self.strided = nn.Conv2d(6, 8, (3, 2), stride=(2, 1), padding=(2, 1), bias=False)
        self.circular = nn.Conv2d(8, 5, 3, padding="same", dilation=2, padding_mode="circular")
        self.point = nn.Conv2d(5, 9, 1, stride=2)
        self.tall = nn.Linear(9, 12)
        self.flat = nn.Linear(12, 4, bias=False)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Any:
        x = self.strided(self.first(x)).relu()
        x = self.point(self.circular(x).relu()).mean((2, 3))
        return self.last(self.flat(self.tall(x).relu()).relu())


def net_and_inputs(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    net = AllKinds() if name == "all" else make_model(name, (1, 8, 8), 10, WIDTHS[name])
    return net.double(), torch.randn(20, 1, 8, 8, dtype=torch.float64)


@pytest.mark.parametrize("name", ["all", "mlp", "cnn", "preresnet18"])
def test_at_full_rank_the_function_is_the_original(name: str) -> None:
    net, x = net_and_inputs(name)
    before = {n: p.clone() for n, p in net.named_parameters()}
    torch.manual_seed(7)
    low = factorised(net)
    assert torch.initial_seed() == 7
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(7)))
    assert factors_of(low)
    torch.testing.assert_close(low(x), net(x), rtol=1e-9, atol=1e-9)
    assert all(torch.equal(before[n], p) for n, p in net.named_parameters())
    assert not {id(p) for p in low.parameters()} & {id(p) for p in net.parameters()}


@pytest.mark.parametrize("name", ["all", "cnn"])
def test_a_static_prefix_is_the_best_approximation_of_its_rank(name: str) -> None:
    """Eckart and Young: no matrix of rank r is nearer than the truncated SVD, our prefix."""
    net, x = net_and_inputs(name)
    low = factorised(net)
    axes = only_ranks(low, trace(low, x))
    for path, pair in factors_of(low).items():
        matrix = net.get_submodule(path).weight.detach().flatten(1).numpy()  # type: ignore[operator]
        u, values, v = np.linalg.svd(matrix, full_matrices=False)
        assert pair.down.weight.shape[0] == min(matrix.shape) == axes.sizes[f"{path}.down"]
        for side in (pair.down.weight.flatten(1), pair.up.weight.flatten(1).T):
            squares = side.detach().square().sum(1).numpy()  # sqrt(s) in both
            np.testing.assert_allclose(squares, values, rtol=1e-9, atol=1e-12)
        for rank in range(1, len(values) + 1):
            cut = draw_units(Static(), axes, rank / len(values), Draw(0, 0, 0))
            small = product(factors_of(build_module(low, cut))[path]).numpy()
            assert np.linalg.matrix_rank(small) == rank
            np.testing.assert_allclose(small, (u[:, :rank] * values[:rank]) @ v[:rank], atol=1e-12)
            error = np.linalg.norm(matrix - small)
            assert error == pytest.approx(np.sqrt((values[rank:] ** 2).sum()), abs=1e-12)


def test_a_rank_share_is_a_truncated_svd() -> None:
    net, _ = net_and_inputs("all")
    full, low = factors_of(factorised(net)), factors_of(factorised(net, rank_share=0.3))
    for path, pair in full.items():
        rank = low[path].down.weight.shape[0]
        assert rank == -(-3 * pair.down.weight.shape[0] // 10)
        assert torch.equal(low[path].down.weight, pair.down.weight[:rank])
        assert torch.equal(low[path].up.weight, pair.up.weight[:, :rank])


NOTHING_TO_FACTORISE = {
    *("shufflenet", "lstm", "lstm-bidirectional", "gru", "rnn", "lstm-cell"),
    *("multihead-attention", "encoder-layer", "encoder-decoder", "gpt2"),
}


@pytest.mark.every(3)
@pytest.mark.slow
@pytest.mark.parametrize("entry", ZOO, ids=str)
def test_every_architecture_keeps_its_function_and_is_cut_exactly(entry: Entry) -> None:
    """This includes norms that mix units, which are not cut."""
    net, inputs = entry.make()
    if entry.name in NOTHING_TO_FACTORISE:
        with pytest.raises(ConfigError, match=r"^model\.factorised: .*no layer"):
            factorised(net)
        return
    low = factorised(net)
    axes = only_ranks(low, trace(low, inputs, outputs=entry.outputs))
    assert len(axes.cut_by_capacity) == len(factors_of(low))
    assert axes.exact
    cut = cut_by(axes)
    small = build_module(low, cut, example_inputs=inputs, outputs=entry.outputs)
    with torch.no_grad(), plain_attention():
        for one, other in ((low, net), (small, masked(low, cut))):
            got, expected = entry.result(one, inputs), entry.result(other, inputs)
            # float32 sums in another order; outputs are of order one
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


class Awkward(nn.Module):
    """Layers that must stay, each for another reason, and one that need not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.plain = self.alias = nn.Linear(8, 8)
        self.one = nn.Linear(8, 1)
        self.tied, self.tied_too = nn.Linear(8, 8), nn.Linear(8, 8)
        self.tied_too.weight = self.tied.weight
        self.normed = weight_norm(nn.Linear(8, 8))
        self.hooked = nn.Linear(8, 8)
        self.hooked.register_forward_hook(lambda *_: None)
        self.attention = nn.MultiheadAttention(8, 2)
        self.grouped = nn.Conv2d(8, 8, 3, groups=2)
        self.square = nn.Linear(2, 2)
        self.last = nn.Linear(8, 8)


def test_which_layers_are_factorised() -> None:
    net = Awkward()
    low: Any = factorised(net)
    assert list(factors_of(low)) == ["plain"]
    assert low.alias is low.plain
    assert low.tied.weight is low.tied_too.weight
    assert list(factors_of(factorised(net, skip=()))) == ["first", "plain", "last"]
    assert list(factors_of(factorised(net, skip=["first", "alias"]))) == ["last"]
    with pytest.raises(ConfigError, match=r"^skip: 'frist' .*first, plain"):
        factorised(net, skip=["frist"])
    with pytest.raises(ConfigError, match=r"^rank_share: 1\.5 .*\(0, 1\]"):
        factorised(net, rank_share=1.5)
    with pytest.raises(ConfigError, match=r"^model\.factorised: Sequential .*2 linear layers"):
        factorised(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)))
    assert isinstance(factorised(nn.Linear(8, 8), skip=()), Factors)


def test_what_is_frozen_stays_frozen() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)).eval()
    net[1].requires_grad_(False)
    pair = factors_of(factorised(net))["1"]
    assert not any(p.requires_grad for p in pair.parameters())
    assert not pair.training


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "cnn", "preresnet18"])
def test_only_ranks_are_cut_and_parameters_are_linear_in_the_capacity(name: str) -> None:
    setup = low_setup(name)
    pairs = factors_of(setup.module)
    assert setup.axes.cut_by_capacity == {
        f"{path}.down": pair.down.weight.shape[0] for path, pair in pairs.items()
    }
    assert setup.axes.exact
    tensors = tensors_of(setup.module)
    total = sum(t.numel() for t in tensors.values())
    ranked = sum(pair.down.weight.numel() + pair.up.weight.numel() for pair in pairs.values())
    for capacity in (1.0, 0.5, 0.25):  # all ranks are multiples of four
        for scheme in (Static(), setup.scheme):
            cut = draw_units(scheme, setup.axes, capacity, Draw(0, 3, 1))
            assert count_values(cut, tensors) == total - (1 - capacity) * ranked


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_sub_model_is_the_model_with_the_other_ranks_zeroed(scheme: str) -> None:
    setup = low_setup("cnn", scheme=SCHEMES[scheme])
    tensors = initial_state(setup).tensors
    cut = cut_of(setup, Assignment(5, 2, 0.5))
    small = build_module(setup.module, cut)
    load(small, gather(cut, tensors))
    zeroed = build_module(setup.module, WHOLE)
    assert isinstance(cut, UnitCut)
    for path, pair in factors_of(zeroed).items():
        ranks = pair.down.weight.shape[0]
        dropped = np.setdiff1d(np.arange(ranks), cut.units.get(f"{path}.down", np.arange(ranks)))
        pair.down.weight.data[dropped] = 0
    torch.testing.assert_close(
        output(setup, small), output(setup, zeroed), rtol=1e-5, atol=1e-5
    )  # float32 sums in another order


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_at_capacity_one_every_scheme_is_fedavg_bit_for_bit(rule: str) -> None:
    full_capacity: dict[str, Any] = {
        "clients": {"capacities": [1.0]},
        "merge": {"rule": rule},
        "local": {"steps": 2},
    }
    expected = one_round(low_setup("cnn", scheme={"name": "full"}, **full_capacity), rounds=2)
    for scheme in SCHEMES.values():
        assert one_round(low_setup("cnn", scheme=scheme, **full_capacity), rounds=2) == expected, (
            scheme
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "cnn", "preresnet18"])
def test_the_batched_engine_stacks_it(name: str) -> None:
    setup = low_setup(name, doubled(tiny_images()), local={"clip": 1.0})
    setup.module.double()
    assert isinstance(BatchedEngine(setup)._wide, WideForward)
    assert_equal_updates(setup, EXACT_TOLERANCE)


DIGITS: dict[str, Any] = {
    "model": {**LOW, "width": 16},
    "clients": {"count": 20, "per_round": 6, "capacities": [1, "1/2", "1/4"]},
    "data": {"partition": "iid"},
    "local": {"absent_labels": "keep"},
    "train": {"rounds": 12, "evaluate_every": 6, "checkpoint_every": 4},
}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["static", "rolling"])
def test_it_trains_on_digits_and_resumes_and_is_exported(scheme: str, tmp_path: Path) -> None:
    config = parse({**DIGITS, "scheme": {"name": scheme}})

    def interrupt(line: dict[str, Any]) -> None:
        if line["round"] == 5:
            raise KeyboardInterrupt

    whole = run(tmp_path / "whole", config)
    with pytest.raises(Interruption):
        run(tmp_path / "resumed", config, on_round=interrupt)
    assert run(tmp_path / "resumed", config, resume=True)["model_sha256"] == whole["model_sha256"]
    assert whole["test_accuracy"] > 0.8  # a tenth would be chance
    folder = RunFolder(tmp_path / "whole")
    setup = prepare(folder.config())
    tensors = initial_state(setup).tensors
    for line in folder.metrics():
        clients = plan(setup, line["round"] - 1)
        assert {a.capacity for a in clients} <= {1.0, 0.5, 0.25}
        assert line["bytes_down"] == 4 * sum(
            count_values(cut_of(setup, a), tensors) for a in clients
        )
    path, _ = Run(folder.path).export(0.5, "program", tmp_path / "out")
    program: Any = torch.export.load(path).module()
    training = Training(folder.config(), setup)
    module, _, about = trained_module(training, trained_state(folder, training), 0.5)
    assert {axis: len(kept) for axis, kept in about["units"].items()} == {
        "4.down": 16,
        "9.down": 32,
    }
    with torch.no_grad():
        torch.testing.assert_close(program(digits().test.x), module(digits().test.x))


def test_absent_labels_still_cut_the_classifier() -> None:
    setup = low_setup("cnn", local={"absent_labels": "leave_out"})
    assert setup.axes.sizes[CLASSES] == 10
    small = build_module(setup.module, cut_of(setup, Assignment(0, 3, 0.5), np.array([1, 4, 7])))
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors_of(small).items()}
    assert shapes["11.weight"] == (3, 32)
    assert shapes["4.down.weight"] == (8, 8, 3, 3)
    assert shapes["4.up.weight"] == (16, 8, 1, 1)


def test_a_module_of_ones_own_is_factorised_by_the_config() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 12), nn.Linear(12, 10)
    )
    config = parse({"model": {**LOW, "name": "own", "rank_share": "1/2"}, "train": {"rounds": 1}})
    setup = prepare(config, net, digits())
    assert setup.axes.cut_by_capacity == {"3.down": 6}
    state, _ = run_rounds(Training(config, setup))
    assert state.tensors["3.down.weight"].shape == (6, 16)


REFUSED: dict[str, dict[str, Any]] = {
    "scheme.granularity: 'coordinate' ": {"scheme": {"granularity": "coordinate"}},
    "axes.cut: .*model.factorised": {"axes": {"cut": ["0"]}},
    "model.scaler: .*units": {"model": {**LOW, "name": "preresnet18", "scaler": True}},
    "model.rank_share: .*factorised = true": {"model": {"rank_share": "1/2"}},
    "scheme.alignment: 'independent' .*layers": {
        "scheme": {"name": "random", "sampling": "fixed", "alignment": "independent"},
        "model": {**LOW, "name": "preresnet18", "width": 4},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_defined_is_refused(reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^{reason}"):
        prepare(parse({"model": LOW, **REFUSED[reason]}), data=tiny_images())


def test_own_axes_and_models_without_a_layer_to_factorise_are_refused() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 10))
    config = parse({"model": {**LOW, "name": "own"}})
    with pytest.raises(ConfigError, match=r"^model\.factorised: Sequential .*no layer"):
        prepare(config, net, tiny_images())
    with pytest.raises(ConfigError, match=r"^model\.factorised: .*axes="):
        prepare(config, net, tiny_images(), declare(tensors_of(net), {}))


def test_the_commands_show_it(capsys: pytest.CaptureFixture[str]) -> None:
    low = factorised(make_model("cnn", (1, 8, 8), 10), 0.5)
    parameters = sum(p.numel() for p in low.parameters())
    setup = prepare(parse({"model": {**LOW, "rank_share": "1/2"}}))
    assert cost_rows(setup)[0]["parameters"] == parameters
    for meta in (False, True):
        inspect_command("cnn", rank_share="1/2", meta=meta)
        shown = capsys.readouterr().out
        assert "kept whole: 4.up: only the ranks of a factorised model are cut" in shown
        assert "4.down    32  4.down.weight[0], 4.up.weight[1]" in shown
        assert f"{parameters:,}" in shown
