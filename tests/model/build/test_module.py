"""Building small modules: layers of torch, plain integers, hooks, and every refusal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from submodel.core.errors import SubmodelError
from submodel.model.axes import Axes, declare
from submodel.model.axes.layout import Along, Concatenation, FixedPart, Layout, Product
from submodel.model.build import LayerCut, build_module, load_local, resizes, tensors_of
from submodel.model.build.integers import kept_groups
from submodel.model.cut import WHOLE, UnitCut
from submodel.model.norm import StaticBatchNorm, calibrate
from tests.support.axes import axes_of
from tests.support.reference import masked


def cut_of(axes: Axes, **units: list[int]) -> UnitCut:
    return UnitCut(axes, {axis: np.array(kept) for axis, kept in units.items()})


def declared(net: nn.Module, table: Any, **units: list[int]) -> UnitCut:
    """Make a cut of declared axes of a module."""
    return cut_of(declare(tensors_of(net), table), **units)


def same_as_masked(module: nn.Module, cut: UnitCut, *inputs: Any) -> nn.Module:
    small = build_module(module, cut, example_inputs=inputs)
    with torch.no_grad():
        torch.testing.assert_close(small(*inputs), masked(module, cut)(*inputs))
    return small


BOTH: dict[str, Any] = {f"{n}.{t}": ("h",) for n in (0, 1) for t in ("weight", "bias")}
RUNNING: dict[str, Any] = {"1.running_mean": ("h",), "1.running_var": ("h",)}


class TestLayers:
    def test_a_depthwise_convolution_has_as_many_groups_as_channels_are_kept(self) -> None:
        net = nn.Sequential(nn.Conv1d(2, 6, 1), nn.Conv1d(6, 12, 3, groups=6), nn.Conv1d(12, 3, 1))
        twice = ("c", 2)
        table = {"0.weight": ("c",), "0.bias": ("c",), "1.weight": (twice,), "1.bias": (twice,)}
        cut = declared(net, {**table, "2.weight": (None, twice)}, c=[1, 2, 5])
        small: Any = same_as_masked(net, cut, torch.randn(2, 2, 4))
        assert (small[1].groups, small[1].in_channels, small[1].out_channels) == (3, 3, 6)

    @pytest.mark.parametrize(
        ("units", "groups"), [({"g": [0, 2]}, 2), ({"w": [1]}, 3), ({"g": [1], "w": [0]}, 1)]
    )
    def test_a_grouped_transposed_convolution_loses_groups_or_width(
        self, units: dict[str, list[int]], groups: int
    ) -> None:
        net = nn.Sequential(
            nn.Conv2d(2, 6, 1), nn.ConvTranspose2d(6, 12, 2, groups=3), nn.Conv2d(12, 3, 1)
        )
        g, w, v = Along("g", 3), Along("w", 2), Along("v", 4)
        one = FixedPart(1)
        axes = axes_of(
            net,
            {
                "0.weight": (Product((g, w)), FixedPart(2), one, one),
                "0.bias": (Product((g, w)),),
                "1.weight": (Product((g, w)), v, FixedPart(2), FixedPart(2)),
                "1.bias": (Product((g, v)),),
                "2.weight": (FixedPart(3), Product((g, v)), one, one),
            },
        )
        cut = cut_of(axes, v=[0, 3], **units)
        small: Any = same_as_masked(net, cut, torch.randn(2, 2, 4, 4))
        assert small[1].groups == groups
        assert small[1].out_channels == 2 * groups

    def test_group_norm_keeps_whole_groups(self) -> None:
        net = nn.Sequential(nn.Conv1d(2, 8, 1), nn.GroupNorm(4, 8), nn.Conv1d(8, 3, 1))
        table = {f"{n}.{t}": (("g", 2),) for n in (0, 1) for t in ("weight", "bias")}
        cut = declared(net, {**table, "2.weight": (None, ("g", 2))}, g=[0, 3])
        small: Any = same_as_masked(net, cut, torch.randn(2, 2, 4))
        assert (small[1].num_groups, small[1].num_channels) == (2, 4)

    def test_groups_that_the_layout_does_not_show_are_refused(self) -> None:
        net = nn.Sequential(nn.Conv1d(2, 8, 1), nn.GroupNorm(4, 8))
        table = {"0.weight": ("c",), "0.bias": ("c",), "1.weight": ("c",), "1.bias": ("c",)}
        with pytest.raises(SubmodelError, match=r"1 \(GroupNorm\): .*4 groups"):
            build_module(net, declared(net, table, c=[0, 1, 4, 5]))

    def test_groups_are_found_in_products_and_concatenations(self) -> None:
        g, w = Along("g", 4), Along("w", 6)
        sizes = {"g": 3, "w": 2}
        assert kept_groups(Product((g, w, FixedPart(5))), 30, sizes) == [(3, 10)]
        assert kept_groups(Product((g, w)), 1, sizes) == [(6, 1)]
        assert kept_groups(Product((FixedPart(2), g, w)), 6, sizes) == [(6, 2)]
        assert kept_groups(Product((g, w)), 24, sizes) == [(1, 6)]
        assert kept_groups(Concatenation((Product((g, w)), FixedPart(12))), 6, sizes) == [
            (3, 2),
            (2, 6),
        ]
        assert kept_groups(Concatenation((w, FixedPart(2))), 4, sizes) is None
        assert kept_groups(Product((g, w)), 12, sizes) is None

    def test_norms_without_weights_follow_the_layers_around_them(self) -> None:
        net = nn.Sequential(
            nn.Linear(3, 8),
            nn.LayerNorm(8, elementwise_affine=False),
            nn.Unflatten(1, (8, 1)),
            nn.BatchNorm1d(8, affine=False, track_running_stats=False),
            nn.Flatten(),
            nn.Linear(8, 2),
        )
        table = {"0.weight": ("h",), "0.bias": ("h",), "5.weight": (None, "h")}
        cut = declared(net, table, h=[0, 3, 4])
        small: Any = build_module(net, cut, example_inputs=(torch.randn(4, 3),))
        assert small[1].normalized_shape == (3,)
        assert small[2].unflattened_size == (3, 1)
        assert small[3].num_features == 3

    def test_static_batch_norm_keeps_its_statistics(self) -> None:
        net = nn.Sequential(nn.Linear(3, 8), StaticBatchNorm(8), nn.Linear(8, 2))
        calibrate(net, [torch.randn(16, 3)])
        cut = declared(net, {**BOTH, "2.weight": (None, "h")}, h=[0, 3, 7])
        same_as_masked(net, cut, torch.randn(4, 3))

    @pytest.mark.filterwarnings("ignore:LSTM with projections")
    def test_a_projected_lstm_is_rebuilt_with_all_three_sizes(self) -> None:
        net = nn.LSTM(4, 6, proj_size=3)
        i, h, p = Along("i", 4), Along("h", 6), Along("p", 3)
        gates = Concatenation((h, h, h, h))
        axes = axes_of(
            net,
            {
                "weight_ih_l0": (gates, i),
                "weight_hh_l0": (gates, p),
                "bias_ih_l0": (gates,),
                "bias_hh_l0": (gates,),
                "weight_hr_l0": (p, h),
            },
        )
        small: Any = build_module(net, cut_of(axes, i=[0, 1, 3], h=[2, 4], p=[1]))
        assert (small.input_size, small.hidden_size, small.proj_size) == (3, 2, 1)
        assert all(
            flat is p for flat, p in zip(small._flat_weights, small.parameters(), strict=True)
        )
        assert small(torch.randn(5, 1, 3))[0].shape == (5, 1, 1)

    def test_multihead_attention_refuses_two_widths(self) -> None:
        net = nn.MultiheadAttention(8, 4)
        e, heads = Along("e", 8), Product((Along("h", 4), FixedPart(2)))
        qkv = Concatenation((heads, heads, heads))
        axes = axes_of(
            net, {"in_proj_weight": (qkv, e), "in_proj_bias": (qkv,), "out_proj.weight": (e, heads)}
        )
        with pytest.raises(SubmodelError, match=r"\(MultiheadAttention\): .*3 .*3 .*2 heads"):
            build_module(net, cut_of(axes, e=[0, 1, 2], h=[0, 3]))

    def test_embedding_rows_carry_the_padding_along(self) -> None:
        net = nn.Embedding(6, 4, padding_idx=3)
        table = {"weight": ("rows", "e")}
        small: Any = build_module(net, declared(net, table, rows=[1, 3], e=[0]))
        assert (small.num_embeddings, small.embedding_dim, small.padding_idx) == (2, 1, 1)
        with pytest.raises(SubmodelError, match=r"\(Embedding\): .*padding_idx = 3 "):
            build_module(net, declared(net, table, rows=[0, 1]))


class TestCopy:
    def test_tied_weights_stay_tied_and_share_nothing_with_the_original(self) -> None:
        net: Any = nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 5, bias=False))
        net[1].weight = net[0].weight
        axes = declare(tensors_of(net), {"0.weight": (None, "e")})
        small: Any = build_module(net, cut_of(axes, e=[0, 5]))
        assert small[0].weight is small[1].weight
        whole: Any = build_module(net, UnitCut(axes, {}))
        assert whole[0].weight.data_ptr() != net[0].weight.data_ptr()

    def test_frozen_parameters_and_buffers_outside_the_state_come_along(self) -> None:
        net = nn.Linear(4, 8)
        net.weight.requires_grad_(False)
        net.register_buffer("shift", torch.arange(8.0), persistent=False)
        tensors = {**tensors_of(net), "shift": net.get_buffer("shift")}
        axes = declare(tensors, {"weight": ("h",), "bias": ("h",), "shift": ("h",)})
        small = build_module(net, cut_of(axes, h=[2, 6]))
        assert not small.get_parameter("weight").requires_grad
        assert small.get_buffer("shift").tolist() == [2.0, 6.0]
        load_local(small, net, cut_of(axes, h=[0, 1]))  # another cut of the same shapes
        assert small.get_buffer("shift").tolist() == [0.0, 1.0]

    def test_the_whole_is_copied_as_it_is(self) -> None:
        net = nn.Linear(4, 8)
        assert torch.equal(build_module(net, WHOLE).get_parameter("weight"), net.weight)


class Heads(nn.Module):
    """Attention-like: splits its width by plain integers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width, self.heads, self.head_size = width, heads, width // heads
        self.scale = self.head_size**-0.5
        self.project = nn.Linear(5, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Any:
        y = self.project(x).view(-1, self.heads, self.head_size)
        y = torch.softmax(self.scale * y @ y.transpose(1, 2), -1) @ y
        return self.out(y.view(-1, self.width))


def heads_axes(net: nn.Module, out: Layout) -> Axes:
    h = Product((Along("heads", 4), Along("inner", 6)))
    return axes_of(
        net, {"project.weight": (h, FixedPart(5)), "project.bias": (h,), "out.weight": (out, h)}
    )


class TestIntegers:
    def test_sizes_follow_and_scales_stay(self) -> None:
        net = Heads(24, 4)
        axes = heads_axes(net, FixedPart(24))
        with pytest.raises(SubmodelError, match=r"\(Heads\): width = 24 .*\[12, 24\]"):
            build_module(net, cut_of(axes, inner=[0, 2, 5]))

        def settle(small: Any, sizes: Mapping[str, int]) -> None:
            small.width = sizes["heads"] * sizes["inner"]

        small: Any = build_module(
            net, cut_of(axes, inner=[0, 2, 5]), resize=settle, example_inputs=(torch.ones(2, 5),)
        )
        assert (small.width, small.heads, small.head_size) == (12, 4, 3)
        assert small.scale == net.scale  # so that zeroed units change no score

    def test_the_nearest_tensors_decide(self) -> None:
        inner = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))

        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner, self.scale, self.width = Wrapped(), nn.Parameter(torch.ones(8)), 8

        class Wrapped(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers, self.width = inner, 8

        net = Outer()
        table: Any = {"inner.layers.0.weight": ("h", None), "inner.layers.0.bias": ("h",)}
        cut = declared(net, {**table, "inner.layers.1.weight": (None, "h")}, h=[0])
        with pytest.raises(SubmodelError, match=r"inner \(Wrapped\): width = 8 .*\[1, 8\]"):
            build_module(net, cut)
        small: Any = build_module(net, cut, resize=lambda *_: None)
        assert small.width == 8

    def test_a_registered_type_answers_for_itself(self) -> None:
        class Registered(Heads):
            pass

        @resizes(Registered)
        def fix(layer: Registered, cut: LayerCut) -> None:
            layer.heads = cut.groups(layer.heads, "project.weight")
            layer.width = layer.project.weight.shape[0]
            layer.head_size = layer.width // layer.heads

        net = Registered(24, 4)
        axes = heads_axes(net, FixedPart(24))
        small: Any = build_module(net, cut_of(axes, heads=[1, 2, 3], inner=[0, 5]))
        assert (small.width, small.heads, small.head_size) == (6, 3, 2)


class TestFactory:
    def test_cut_tensors_go_into_the_factorys_module_by_name(self) -> None:
        net: Any = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).eval()
        nn.init.normal_(net[1].weight)
        cut = declared(net, {**BOTH, **RUNNING, "2.weight": (None, "h")}, h=[1, 4])

        def factory(sizes: Mapping[str, int]) -> nn.Module:
            h = sizes["h"]
            return nn.Sequential(nn.Linear(3, h), nn.BatchNorm1d(h), nn.Linear(h, 2))

        x = torch.randn(4, 3)
        small = build_module(net, cut, factory=factory, example_inputs=(x,))
        assert torch.equal(small(x), build_module(net, cut)(x))

    def test_what_does_not_fit_is_named(self) -> None:
        net = nn.Linear(3, 8)
        cut = declared(net, {"weight": ("h",), "bias": ("h",)}, h=[1, 4])
        with pytest.raises(SubmodelError, match=r"weight: .*\(8, 3\).*\(2, 3\); bias: "):
            build_module(net, cut, factory=lambda _: nn.Linear(3, 8))
        with pytest.raises(SubmodelError, match=r"factory.*: bias: "):
            build_module(net, cut, factory=lambda _: nn.Linear(3, 2, bias=False))


class Maxout(nn.Module):
    """A net whose view would take fewer units as a smaller batch."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(5, 24)
        self.out = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.lift(x).view(-1, 12, 2).amax(-1))


class Computed(nn.Module):
    """A net that computes a size from one that it does not store."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.more = width + 1
        self.lift = nn.Linear(5, width)
        self.out = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.lift(x).view(-1, self.more - 1))


class TestRefusals:
    def test_a_view_that_swallows_the_change_is_found_by_the_shape(self) -> None:
        net = Maxout()
        pairs = Product((FixedPart(12), Along("pieces", 2)))
        axes = axes_of(net, {"lift.weight": (pairs, FixedPart(5)), "lift.bias": (pairs,)})
        with pytest.raises(SubmodelError, match=r"output .*\(2, 3\).*\(4, 3\)"):
            build_module(net, cut_of(axes, pieces=[1]), example_inputs=(torch.randn(4, 5),))

    def test_a_computed_size_is_found_where_it_fails(self) -> None:
        net = Computed(16)
        table = {"lift.weight": ("h",), "lift.bias": ("h",), "out.weight": (None, "h")}
        cut = declared(net, table, h=[0, 1, 2])
        with pytest.raises(SubmodelError, match=r"\(Computed\) .*\[-1, 16\]"):
            build_module(net, cut, example_inputs=(torch.randn(3, 5),))

    def test_checking_leaves_running_statistics_and_random_numbers_alone(self) -> None:
        net: Any = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2))
        cut = declared(net, {**BOTH, **RUNNING, "3.weight": (None, "h")}, h=[1, 4])
        x, state = torch.randn(4, 3), torch.get_rng_state()
        small = build_module(net, cut, example_inputs=(x,))
        assert torch.equal(torch.get_rng_state(), state)
        assert small.get_buffer("1.running_mean").tolist() == [0, 0]
        assert net[1].running_mean.tolist() == [0] * 8

    def test_cut_classes_may_shrink_the_output(self) -> None:
        net = nn.Linear(3, 5)
        cut = declared(net, {"weight": ("classes",), "bias": ("classes",)}, classes=[1, 4])
        small = build_module(net, cut, example_inputs=(torch.randn(4, 3),))
        assert small(torch.randn(4, 3)).shape == (4, 2)
