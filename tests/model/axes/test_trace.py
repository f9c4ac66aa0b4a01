"""The axes of small nets, one topology each, with verification; options of a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from submodel.core.errors import ConfigError
from submodel.model.axes import CLASSES, trace
from submodel.model.zoo import make_model
from tests.model.nets import IMAGE, SEQUENCE, VECTOR, Net, layouts, two_layers
from tests.support.declared import declared


def test_a_chain_of_linear_layers_has_one_axis_between_each_two() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4), nn.Linear(4, 5))
    axes = trace(net, VECTOR)
    assert axes.sizes == {"0": 8, "2": 4}
    assert layouts(axes) == {
        "0.weight": ("0", "6"),
        "0.bias": ("0",),
        "2.weight": ("2", "0"),
        "2.bias": ("2",),
        "3.weight": ("5", "2"),
        "3.bias": ("5",),
    }
    assert axes.exact
    assert axes.frozen == {
        "0.weight[1]": "it meets an input",
        "3.weight[0]": "it meets an output",
        "3.bias[0]": "it meets an output",
    }


def test_a_residual_stream_is_one_axis() -> None:
    net = Net(
        lambda m, x: m.out((h := m.stem(x)) + m.down(m.up(h).relu())),
        stem=nn.Linear(6, 8),
        up=nn.Linear(8, 16),
        down=nn.Linear(16, 8),
        out=nn.Linear(8, 3),
    )
    axes = trace(net, VECTOR)
    assert axes.sizes == {"stem": 8, "up": 16}
    assert layouts(axes)["down.weight"] == ("stem", "up")


def test_flattening_channels_first_and_last() -> None:
    first = Net(
        lambda m, x: m.out(m.conv(x).flatten(1)), conv=nn.Conv2d(3, 4, 3), out=nn.Linear(144, 2)
    )
    last = Net(
        lambda m, x: m.out(m.conv(x).permute(0, 2, 3, 1).flatten(1)),
        conv=nn.Conv2d(3, 4, 3),
        out=nn.Linear(144, 2),
    )
    assert layouts(trace(first, IMAGE))["out.weight"] == ("2", "conv x 36")
    assert layouts(trace(last, IMAGE))["out.weight"] == ("2", "36 x conv")


def test_concatenated_channels_keep_their_own_axes() -> None:
    net = Net(
        lambda m, x: m.out(torch.cat([m.one(x), m.two(x)], 1)),
        one=nn.Linear(6, 4),
        two=nn.Linear(6, 5),
        out=nn.Linear(9, 2),
    )
    assert layouts(trace(net, VECTOR))["out.weight"] == ("2", "one + two")


@pytest.mark.parametrize(
    "gate",
    [
        lambda h: functional.glu(h, -1),
        lambda h: (c := h.chunk(2, -1))[0] * c[1].sigmoid(),
        lambda h: h[:, 4:] * h[:, :4].sigmoid(),
        lambda h: (v := h.view(-1, 2, 4))[:, 0] * v[:, 1],
    ],
)
def test_gated_units_are_cut_in_both_halves(gate: Callable[[Tensor], Tensor]) -> None:
    net = two_layers(lambda m, x: m.out(gate(m.up(x))), read=4)
    axes = trace(net, VECTOR)
    assert axes.sizes == {"up": 4}
    assert layouts(axes)["up.weight"][0] in ("up + up", "2 x up")
    assert layouts(axes)["out.weight"] == ("2", "up")


def test_every_second_unit_is_a_factor() -> None:
    net = two_layers(lambda m, x: m.out((h := m.up(x))[:, ::2] * h[:, 1::2]), read=4)
    assert layouts(trace(net, VECTOR))["up.weight"] == ("up x 2", "6")


def test_depthwise_and_grouped_convolutions() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 1),
        nn.Conv2d(8, 16, 3, groups=8),
        nn.Conv2d(16, 12, 3, groups=4),
        nn.Conv2d(12, 2, 1),
    )
    found = layouts(trace(net, IMAGE))
    assert (
        found["1.weight"] == ("0#1 x 0#2 x 1#1 x 1#2", "1", "3", "3")
        or found["1.weight"][0] == "0#1 x 0#2 x 1"
    )
    assert found["0.weight"] == ("0#1 x 0#2", "3", "1", "1")
    assert found["2.weight"] == ("0#1 x 2", "0#2 x 1", "3", "3")
    assert found["3.weight"] == ("2", "0#1 x 2", "1", "1")


def test_transposed_convolutions() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ConvTranspose2d(4, 6, 2, 2), nn.Conv2d(6, 2, 1))
    found = layouts(trace(plain, IMAGE))
    assert found["1.weight"] == ("0", "1", "2", "2")
    assert found["2.weight"] == ("2", "1", "1", "1")
    grouped = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.ConvTranspose2d(4, 6, 2, 2, groups=2), nn.Conv2d(6, 2, 1)
    )
    found = layouts(trace(grouped, IMAGE))
    assert found["1.weight"] == ("0#1 x 0#2", "1", "2", "2")
    assert found["1.bias"] == ("0#1 x 1",)


def test_group_norm_cuts_whole_groups_exactly() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.GroupNorm(4, 8), nn.Conv2d(8, 2, 1))
    axes = trace(net, IMAGE)
    assert layouts(axes)["1.weight"] == ("0#1 x 0#2",)
    assert axes.cut_by_capacity == {"0#1": 4}
    assert list(axes.inexact) == ["0#2"]
    assert axes.exact
    inner = trace(net, IMAGE, cut=["0#2"])
    assert inner.cut_by_capacity == {"0#2": 2}
    assert not inner.exact


def test_batch_norm_is_exact_and_its_statistics_are_cut() -> None:
    norm = nn.BatchNorm2d(8)
    net = nn.Sequential(nn.Conv2d(3, 8, 1), norm, nn.Conv2d(8, 2, 1))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    axes = trace(net.train(), IMAGE)
    assert layouts(axes)["1.running_var"] == ("0",)
    assert axes.exact
    assert net.training
    assert norm.training
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize(
    ("mix", "words"),
    [
        (nn.LayerNorm(8), "native_layer_norm takes statistics over it"),
        (nn.Softmax(-1), "_softmax takes a softmax over it"),
        (lambda h: functional.normalize(h, dim=-1), "linalg_vector_norm runs over it"),
        (lambda h: h - h.mean(-1, keepdim=True), "mean runs over it"),
        (lambda h: h / h.shape[-1] ** 0.5, "the code computes a value from its size"),
        (lambda h: h * torch.einsum("bi,bi->b", h, h)[:, None], "multiplies two activations"),
    ],
)
def test_what_mixes_units_is_noted(mix: Callable[[Tensor], Tensor], words: str) -> None:
    layers: dict[str, Any] = {"norm": mix} if isinstance(mix, nn.Module) else {}
    net = two_layers(lambda m, x: m.out(mix(m.up(x))), **layers)
    axes = trace(net, VECTOR)
    assert axes.sizes == {"up": 8}
    assert any(words in note for note in axes.inexact["up"])
    assert not axes.exact


def attention(heads: int, fused: bool) -> Net:
    def forward(m: Any, x: Tensor) -> Any:
        h = m.stem(x)
        parts = m.qkv(h).chunk(3, -1) if fused else (m.q(h), m.k(h), m.v(h))
        q, k, v = (p.unflatten(-1, (heads, -1)).transpose(1, 2) for p in parts)
        a = functional.scaled_dot_product_attention(q, k, v)
        return m.head((h + m.out(a.transpose(1, 2).flatten(2))).mean(1))

    names = ["qkv"] if fused else ["q", "k", "v"]
    layers = {n: nn.Linear(10, 36 if fused else 12) for n in names}
    return Net(
        forward, stem=nn.Linear(6, 10), out=nn.Linear(12, 10), head=nn.Linear(10, 2), **layers
    )


def test_attention_cuts_the_size_of_a_head() -> None:
    axes = trace(attention(3, fused=False), SEQUENCE)
    found = layouts(axes)
    assert found["q.weight"] == found["k.weight"] == ("q#1 x q#2", "stem")
    assert found["v.weight"] == ("q#1 x v", "stem")
    assert found["out.weight"] == ("stem", "q#1 x v")
    assert axes.cut_by_capacity == {"stem": 10, "q#2": 4, "v": 4}
    assert list(axes.kept_whole) == ["q#1"]
    heads = trace(attention(3, fused=False), SEQUENCE, cut=["q#1"])
    assert heads.cut_by_capacity == {"stem": 10, "q#1": 3}


def test_fused_attention_is_a_concatenation() -> None:
    found = layouts(trace(attention(3, fused=True), SEQUENCE))
    assert found["qkv.weight"][0] == "(qkv#1 x qkv#2) + (qkv#1 x qkv#2) + (qkv#1 x qkv#2)"
    assert found["out.weight"] == ("stem", "qkv#1 x qkv#2")


def test_multihead_attention_has_one_width() -> None:
    net = Net(
        lambda m, x: m.head(m.attention(h := m.stem(x), h, h, need_weights=False)[0]),
        stem=nn.Linear(6, 8),
        attention=nn.MultiheadAttention(8, 2, batch_first=True),
        head=nn.Linear(8, 2),
    )
    axes = trace(net, SEQUENCE)
    width = "stem#1 x stem#2"
    assert layouts(axes)["attention.in_proj_weight"] == (f"3 x {width}", width)
    assert layouts(axes)["attention.out_proj.weight"] == (width, width)
    assert axes.cut_by_capacity == {"stem#2": 4}


@pytest.mark.parametrize(("kind", "gates"), [(nn.RNN, 1), (nn.GRU, 3), (nn.LSTM, 4)])
def test_recurrent_layers(kind: Any, gates: int) -> None:
    net = Net(
        lambda m, x: m.out(m.recur(x)[0][:, -1]),
        recur=kind(6, 8, num_layers=2, batch_first=True),
        out=nn.Linear(8, 2),
    )
    axes = trace(net, SEQUENCE)
    assert list(axes.sizes.values()) == [8]
    (hidden,) = axes.sizes
    stacked = " + ".join([hidden] * gates)
    assert layouts(axes)["recur.weight_ih_l0"] == (stacked, "6")
    assert layouts(axes)["recur.weight_hh_l1"] == (stacked, hidden)
    assert layouts(axes)["out.weight"] == ("2", hidden)


def test_a_single_step_tells_less_than_the_layer_does() -> None:
    net = Net(
        lambda m, x: m.out(m.recur(x)[0][:, -1]),
        recur=nn.LSTM(6, 8, batch_first=True),
        out=nn.Linear(8, 2),
    )
    assert trace(net, SEQUENCE[:, :1]) == trace(net, SEQUENCE)


def test_packed_sequences() -> None:
    def forward(m: Any, x: Tensor) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(m.up(x), torch.tensor([5, 3]), batch_first=True)
        return m.out(nn.utils.rnn.pad_packed_sequence(m.recur(packed)[0], batch_first=True)[0])

    net = two_layers(forward, read=4, recur=nn.GRU(8, 4, batch_first=True))
    axes = trace(net, SEQUENCE)
    assert axes.sizes == {"up": 8, "recur.weight_ih_l0": 4}


def test_a_tied_embedding_is_one_tensor_under_two_names() -> None:
    embed, out = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
    out.weight = embed.weight
    net = Net(
        lambda m, x: m.out(m.hidden(m.embed(x))), embed=embed, hidden=nn.Linear(6, 6), out=out
    )
    axes = trace(net, torch.arange(4)[None])
    assert layouts(axes)["out.weight"] == layouts(axes)["embed.weight"] == ("11", "embed")
    assert layouts(axes)["hidden.weight"] == ("embed", "embed")
    assert axes.frozen["embed.weight[0]"] == "read by embedding, looked up by index"


def test_a_channel_shuffle_trades_factors() -> None:
    def shuffle(m: Any, x: Tensor) -> Any:
        h = m.conv(x)
        mixed = h.view(2, 2, 4, 8, 8).transpose(1, 2).reshape(2, 8, 8, 8)
        return m.out(mixed)

    def by_shape(m: Any, x: Tensor) -> Any:
        b, c, *space = (h := m.conv(x)).shape
        return m.out(h.view(b, 2, c // 2, *space).transpose(1, 2).reshape(b, c, *space))

    for forward in (shuffle, by_shape):
        net = Net(forward, conv=nn.Conv2d(3, 8, 1), out=nn.Conv2d(8, 2, 1))
        found = layouts(trace(net, IMAGE))
        assert found["conv.weight"][0] == "conv#1 x conv#2"
        assert found["out.weight"][1] == "conv#2 x conv#1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mlp", (1, 4, 4)),
        ("cnn", (1, 8, 8)),
        ("preresnet18", (3, 16, 16)),
        ("preresnet34", (3, 16, 16)),
    ],
)
def test_the_built_in_models_are_traced_as_they_are_declared(
    name: str, shape: Sequence[int]
) -> None:
    module = make_model(name, shape, 10, width=4)
    by_hand = declared(name, module, shape)
    traced = trace(module, torch.randn(2, *shape), classes=True)
    renamed: dict[str, str] = {}
    for tensor, expected in by_hand.layouts.items():
        found = traced.layouts[tensor]
        for one, other in zip(found, expected, strict=True):
            assert one.size == other.size
            pairs = list(zip(one.axes(), other.axes(), strict=True))
            for mine, theirs in pairs:
                assert renamed.setdefault(mine, theirs) == theirs
            units = {mine: torch.arange(0, traced.sizes[mine], 2).numpy() for mine, _ in pairs}
            also = {renamed[mine]: kept for mine, kept in units.items()}
            assert one.indices(units).tolist() == other.indices(also).tolist()
    assert len(set(renamed.values())) == len(renamed)
    assert {renamed[axis]: size for axis, size in traced.sizes.items()} == by_hand.sizes
    assert renamed[CLASSES] == CLASSES
    assert traced.exact


def test_the_mode_and_the_batch_do_not_matter() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.Linear(256, 2)
    )
    assert trace(net.train(), IMAGE) == trace(net.eval(), IMAGE[:1])


def test_on_the_meta_device() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, 2))
    assert trace(net, IMAGE) == trace(net.to("meta"), IMAGE.to("meta"))


def test_inputs_by_position_and_by_name() -> None:
    net = nn.Bilinear(6, 6, 2)
    given = trace(net, (VECTOR, VECTOR))
    assert given == trace(net, {"input1": VECTOR, "input2": VECTOR})
    assert given.sizes == {}


def test_outputs_say_what_must_stay() -> None:
    net = two_layers(lambda m, x: {"logits": m.out(h := m.up(x)), "hidden": h})
    assert trace(net, VECTOR).sizes == {}
    assert trace(net, VECTOR, outputs=lambda r: r["logits"]).sizes == {"up": 8}


def test_what_is_computed_from_the_outputs_is_watched() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    axes = trace(net, VECTOR, outputs=lambda logits: logits.argmax(-1), verify=False)
    assert axes.frozen["1.weight[0]"] == "read by argmax, by position"


def test_an_output_that_may_hide_tensors_is_refused() -> None:
    net = Net(lambda _, x: (x, object()))
    with pytest.raises(ConfigError, match=r"^outputs\[1\] .*object.*outputs=lambda"):
        trace(net, VECTOR)
    with pytest.raises(ConfigError, match=r"^outputs: no tensor"):
        trace(Net(lambda _m, _x: None), VECTOR)


def test_classes_are_an_axis_that_capacity_leaves_alone() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    axes = trace(net, VECTOR, classes=True)
    assert axes.sizes == {"0": 8, CLASSES: 3}
    assert axes.cut_by_capacity == {"0": 8}
    assert layouts(axes)["1.bias"] == (CLASSES,)
    with pytest.raises(ConfigError, match=r"^classes: .*dimension .*input"):
        trace(nn.Identity(), VECTOR, classes=True)
    with pytest.raises(ConfigError, match=r"^classes: .* 2$"):
        trace(Net(lambda _, x: (x, x)), VECTOR, classes=True)


def test_overrides() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    assert trace(net, VECTOR, freeze=["0"]).sizes == {"1": 8}
    assert trace(net, VECTOR, freeze=["1.weight[1]"]).frozen["0.bias[0]"] == "frozen by the user"
    assert layouts(trace(net, VECTOR, tie=[("0", "1")]))["1.weight"] == ("0", "0")
    whole = trace(net, VECTOR, whole=["1"])
    assert whole.cut_by_capacity == {"0": 8}
    assert whole.kept_whole == {"1": "kept whole by the user"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"freeze": ["x"]}, r"^freeze: 'x' .*\(0, 1\)"),
        ({"freeze": ["0.weight[2]"]}, "^freeze: '0.weight"),
        ({"tie": [("0", "1")]}, "^tie: '0' .*8 .*'1' .*4"),
        ({"whole": ["y"]}, "^whole: 'y' .*'0', '1'"),
        ({"cut": ["1"], "whole": ["1"]}, "^cut: '1' .*whole"),
        ({"cut": ["1"], "freeze": ["1"]}, "^cut: '1' .*frozen"),
    ],
)
def test_mistaken_overrides_name_what_exists(options: dict[str, Any], message: str) -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(4, 2))
    with pytest.raises(ConfigError, match=message):
        trace(net, VECTOR, **options)
