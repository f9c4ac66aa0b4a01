"""Dimensions that a trace must freeze, tie or see through, and the line that it names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import submodel
from submodel.core.errors import ConfigError, SubmodelError
from submodel.data import dataset
from submodel.model.axes import trace
from submodel.model.axes.declare import from_json, to_json
from submodel.model.axes.record import to_change
from submodel.model.build import build_module
from tests.model.nets import SEQUENCE, VECTOR, Net, cut_by, layouts, parameter, two_layers


def frozen_by(forward: Callable[[Any, Tensor], Any], reason: str, **layers: Any) -> None:
    net = Net(forward, up=nn.Linear(6, 8), **layers)
    axes = trace(net, VECTOR)
    assert axes.frozen["up.weight[0]"].startswith(reason), axes.frozen
    assert "up" not in axes.sizes


@pytest.mark.parametrize(
    ("mix", "reason"),
    [
        (lambda h: h[:, h.argmax(-1)], "read by argmax, by position"),
        (lambda h: h[:, torch.arange(7, -1, -1)], "read by index, looked up by index"),
        (lambda h: h.index_select(1, torch.tensor([1, 0])), "read by index_select, looked up"),
        (lambda h: h[h > 0], "read by index, looked up by a mask"),
        (lambda h: torch.fft.fft(h).real, "read by _fft_r2c, as positions"),
        (lambda h: h.topk(3).values, "read by topk, by position"),
        (lambda h: h.sort().values, "read by sort, by position"),
        (lambda h: h.cumsum(-1), "read by cumsum, by position"),
        (lambda h: h.flip(-1), "read by flip, by position"),
        (lambda h: h.roll(1, -1), "read by roll, by position"),
        (lambda h: h[:, 3], "read by select, by position"),
        (lambda h: h.view(-1), "it meets an output"),
        (lambda h: h.T.reshape(-1, 2), "it meets an output"),
        (lambda h: (h.view(2, 1, 2, 4).permute(1, 0, 2, 3)).reshape(1, 16), "it meets an output"),
        (lambda h: h * torch.arange(8.0), "made by arange"),
        (lambda h: h + torch.randn(8), "made by randn"),
        (lambda h: torch.einsum("bii->bi", h[:, :, None] * h[:, None]), "read by diagonal"),
        (lambda h: torch.nn.functional.conv1d(h[:, None], torch.ones(1, 1, 3)), "read by conv"),
    ],
)
def test_what_depends_on_the_order_is_frozen(mix: Callable[[Tensor], Any], reason: str) -> None:
    frozen_by(lambda m, x: mix(m.up(x)), reason)


def test_a_view_across_the_batch_that_does_not_line_up_is_frozen() -> None:
    frozen_by(
        lambda m, x: m.out(torch.cat([h := m.up(x), h[:1]]).reshape(2, 12)),
        "viewed by view: its parts do not line up",
        out=nn.Linear(12, 2),
    )


def test_a_weight_shared_by_layers_of_different_role_ties_them() -> None:
    net = two_layers(lambda m, x: m.out(m.loop(m.loop(m.up(x)).relu())), loop=nn.Linear(8, 8))
    axes = trace(net, VECTOR)
    assert axes.sizes == {"up": 8}
    assert layouts(axes)["loop.weight"] == ("up", "up")
    transposed = Net(lambda m, x: functional.linear(m.up(x), m.up.weight.t()), up=nn.Linear(6, 8))
    assert layouts(trace(transposed, VECTOR))["up.weight"] == ("up", "6")


def test_hidden_uses_of_a_weight_are_seen() -> None:
    net = Net(lambda m, x: functional.linear(m.up(x), m.up.weight.data.t()), up=nn.Linear(6, 8))
    assert layouts(trace(net, VECTOR))["up.weight"] == ("up", "6")
    net = Net(lambda m, x: m.up(x) @ m.up.weight.data[:8], up=nn.Linear(6, 8))
    assert layouts(trace(net, VECTOR))["up.weight"] == ("up", "6")


def test_constants_fill_any_axis_and_zero_padding_is_a_part() -> None:
    net = two_layers(lambda m, x: m.out(functional.pad(m.up(x), (1, 2)) + torch.zeros(11)), read=11)
    found = layouts(trace(net, VECTOR))
    assert found["up.weight"][0] == "up"
    assert found["out.weight"][1] == "1 + up + out"


def test_writing_into_slices_concatenates() -> None:
    def forward(m: Any, x: Tensor) -> Any:
        joined = torch.empty(2, 9)
        joined[:, :4] = m.one(x)
        joined[:, 4:] = m.two(x)
        return m.out(joined)

    net = Net(forward, one=nn.Linear(6, 4), two=nn.Linear(6, 5), out=nn.Linear(9, 2))
    assert layouts(trace(net, VECTOR))["out.weight"] == ("2", "one + two")


def test_heads_that_a_constant_tells_apart_are_frozen_in_part() -> None:
    net = two_layers(
        lambda m, x: m.out((m.up(x).view(len(x), 2, -1) * torch.arange(2.0)[:, None]).flatten(1))
    )
    axes = trace(net, VECTOR)
    assert layouts(axes)["up.weight"] == ("2 x up", "6")
    assert axes.frozen["up.weight[0]"] == "in part, 2 units: made by arange"


def test_sparse_and_lazy_tensors() -> None:
    net = Net(lambda m, x: m.out(torch.sparse.mm(m.links, m.up(x))), up=nn.Linear(6, 8))
    net.out = nn.Linear(8, 2)
    net.register_buffer("links", torch.eye(2).to_sparse())
    axes = trace(net, VECTOR)
    assert axes.sizes == {"up": 8}
    assert axes.frozen["links[0]"] == "it is sparse"
    with pytest.raises(ConfigError, match=r"^weight .*shape.*\nbias "):
        trace(nn.LazyLinear(3), VECTOR)


def test_unread_tensors_are_reported_and_not_cut() -> None:
    net = Net(lambda m, x: m.out(x), out=nn.Linear(6, 2), idle=nn.Linear(3, 3))
    axes = trace(net, VECTOR)
    assert axes.unused_tensors == ("idle.weight", "idle.bias")
    assert axes.frozen["idle.bias[0]"] == "nothing reads it"
    assert axes.sizes == {}


def test_buffers_that_are_not_saved_are_cut_and_whole_numbers_are_not() -> None:
    net = two_layers(lambda m, x: m.out(m.up(x) * m.scale * m.count))
    net.register_buffer("scale", torch.rand(8), persistent=False)
    net.register_buffer("count", torch.tensor(3))
    assert layouts(trace(net, VECTOR))["scale"] == ("up",)
    net.register_buffer("count", torch.arange(8))
    assert trace(net, VECTOR).frozen["up.weight[0]"] == "it holds whole numbers"


def test_parameters_that_share_memory_are_one() -> None:
    one, other = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
    other.weight = nn.Parameter(one.weight)
    net = Net(lambda m, x: m.out(m.two(m.one(m.up(x)))), up=nn.Linear(6, 8), one=one, two=other)
    net.out = nn.Linear(8, 2)
    assert layouts(trace(net, VECTOR))["two.weight"] == ("up", "up")
    other.weight = nn.Parameter(one.weight.t())
    assert trace(net, VECTOR).sizes == {}
    buffer = torch.randn(128)  # like the weights of recurrent layers on accelerators
    one.weight, other.weight = (nn.Parameter(half.view(8, 8)) for half in buffer.chunk(2))
    assert list(trace(net, VECTOR).sizes) == ["up", "one", "two"]


def test_numbers_in_the_code_keep_sizes_equal_or_whole() -> None:
    def forward(m: Any, x: Tensor) -> Any:
        h = m.up(x)
        return m.out(h.view(-1, m.heads, 4).tanh().flatten(1) + m.shift.view(-1, 4).flatten())

    net = two_layers(forward, shift=parameter(8))
    net.heads = 2  # type: ignore[assignment]
    axes = trace(net, VECTOR)
    assert axes.cut_by_capacity == {"up#1": 2}
    assert axes.kept_whole == {"up#2": "a number written in the code makes its size"}


def test_a_result_that_is_made_for_its_shape_only_freezes_nothing() -> None:
    net = two_layers(lambda m, x: m.out((h := m.up(x)) + torch.ones_like(h[:, 3])[:, None]))
    assert trace(net, VECTOR).sizes == {"up": 8}


def test_axes_that_an_einsum_sums_over_together_are_a_product() -> None:
    net = Net(
        lambda m, x: torch.einsum("bhd,hdo->bo", torch.einsum("bi,ihd->bhd", x, m.up), m.out),
        up=parameter(6, 3, 4),
        out=parameter(3, 4, 2),
    )
    axes = trace(net, VECTOR)
    assert axes.sizes == {"up#1": 3, "up#2": 4}
    assert list(axes.kept_whole) == ["up#1"]


def test_rows_that_a_slice_leaves_unread_are_kept_whole() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lift, self.out = nn.Linear(6, 8), nn.Linear(8, 3)
            self.table = nn.Parameter(torch.randn(10, 8))

        def forward(self, x: Tensor) -> Any:
            return self.out((self.lift(x) + self.table[: x.size(1)]).relu())

    axes = trace(Positions(), SEQUENCE)
    assert axes.cut_by_capacity == {"lift": 8}
    assert "may not have read it" in axes.kept_whole["table"]


def test_a_layer_norm_of_ones_own_is_cut_like_torchs() -> None:
    class Norm(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 2

    axes = trace(nn.Sequential(nn.Linear(6, 8), Norm(8), nn.Linear(8, 3)), VECTOR)
    assert axes.cut_by_capacity == {"0": 8}


TABLE = torch.linspace(0, 1, 8)


def flipped(m: Any, x: Tensor) -> Any:
    return m.out(m.up(x).flip(-1))


def constant(m: Any, x: Tensor) -> Any:
    return m.out(m.up(x) + TABLE)


def positions(m: Any, x: Tensor) -> Any:
    return m.out(m.up(x) * torch.arange(8.0))


def looked_up(m: Any, x: Tensor) -> Any:
    return m.out(m.up(x)[:, [1, 0, 3, 2, 5, 4, 7, 6]])


def unknown(m: Any, x: Tensor) -> Any:
    return m.out(torch.linalg.svd(m.up(x))[2])


def written(m: Any, x: Tensor) -> Any:
    return m.out(m.up(x).view(2, 8))


@pytest.mark.parametrize(
    ("forward", "reason", "instead"),
    [
        (flipped, "read by flip, by position", "do not select its units"),
        (constant, "a constant that is neither a parameter nor a buffer", "register the tensor"),
        (positions, "made by arange", "compute it once and register it"),
        (looked_up, "read by index, looked up by index", "split, chunk or slice"),
        (unknown, "read by _linalg_svd, which has no rule", "use operators that have a rule"),
        (written, "a number written in the code makes its size", "make it an attribute"),
    ],
)
def test_a_refusal_names_the_line_and_what_to_write(
    forward: Callable[[Any, Tensor], Any], reason: str, instead: str
) -> None:
    axes = trace(Net(forward, up=nn.Linear(6, 8), out=nn.Linear(8, 3)), VECTOR)
    assert not axes.cut_by_capacity
    line = inspect.getsourcelines(forward)[1] + 1
    place = f"axes/test_frozen.py:{line} in {forward.__name__}"
    assert place in axes.lines.values()
    assert f"{reason}, at {place}" in axes.table()
    messages = to_change(axes.frozen, axes.kept_whole, axes.lines)
    assert any(words.startswith(f"{place}: {reason}; {instead}") for words in messages)
    assert from_json(to_json(axes)) == axes


def test_what_lies_in_the_nature_of_things_names_no_line() -> None:
    net = nn.Sequential(nn.Conv1d(2, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    axes = trace(net, torch.ones(1, 2, 3))
    assert axes.frozen
    assert not axes.lines


def test_a_model_that_cannot_be_cut_is_refused_by_its_line() -> None:
    net = Net(flipped, up=nn.Linear(6, 8), out=nn.Linear(8, 3))
    x, y = torch.randn(40, 6), torch.arange(40) % 3
    data = dataset((x, y), (x, y))
    with pytest.raises(ConfigError, match=r"test_frozen.py:\d+ in flipped: .*flip.*up.weight\[0\]"):
        submodel.train(net, data, {"clients": {"count": 2, "per_round": 2, "capacities": [1, 0.5]}})


def test_a_sub_model_that_does_not_run_names_the_line() -> None:
    def forward(m: Any, x: Tensor) -> Any:
        return m.out(m.up(x)[:, :4].repeat(1, 2))

    net = Net(forward, up=nn.Linear(6, 8), out=nn.Linear(8, 3))
    cut = cut_by(trace(net, VECTOR))
    with pytest.raises(SubmodelError, match=r"test_frozen.py:\d+ in .*forward"):
        build_module(net, cut, example_inputs=VECTOR)
