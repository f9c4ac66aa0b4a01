"""What a caller can say to a trace: inputs, outputs, classes, devices, overrides."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from submodel.errors import ConfigError
from submodel.model.axes import CLASSES, trace
from tests.model.axes.nets import IMAGE, VECTOR, Net, layouts


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
    net = Net(
        lambda m, x: {"logits": m.out(h := m.up(x)), "hidden": h},
        up=nn.Linear(6, 8),
        out=nn.Linear(8, 2),
    )
    assert trace(net, VECTOR).sizes == {}
    assert trace(net, VECTOR, outputs=lambda r: r["logits"]).sizes == {"up": 8}


def test_what_is_computed_from_the_outputs_is_watched() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    axes = trace(net, VECTOR, outputs=lambda logits: logits.argmax(-1), verify=False)
    assert axes.frozen["1.weight[0]"] == "read by argmax, by position"


def test_an_output_that_may_hide_tensors_is_refused() -> None:
    net = Net(lambda _, x: (x, object()))
    with pytest.raises(ConfigError, match=r"outputs\[1\] is a object.*outputs=lambda"):
        trace(net, VECTOR)
    with pytest.raises(ConfigError, match="no tensor"):
        trace(Net(lambda _m, _x: None), VECTOR)


def test_classes_are_an_axis_that_capacity_leaves_alone() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    axes = trace(net, VECTOR, classes=True)
    assert axes.sizes == {"0": 8, CLASSES: 3}
    assert axes.cut_by_capacity == {"0": 8}
    assert layouts(axes)["1.bias"] == (CLASSES,)
    with pytest.raises(ConfigError, match=r"classes: the last dimension.*meets an input"):
        trace(nn.Identity(), VECTOR, classes=True)
    with pytest.raises(ConfigError, match="one output"):
        trace(Net(lambda _, x: (x, x)), VECTOR, classes=True)


def test_overrides() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    assert trace(net, VECTOR, freeze=["0"]).sizes == {"1": 8}
    assert trace(net, VECTOR, freeze=["1.weight[1]"]).frozen["0.bias[0]"] == "frozen as told"
    assert layouts(trace(net, VECTOR, tie=[("0", "1")]))["1.weight"] == ("0", "0")
    whole = trace(net, VECTOR, whole=["1"])
    assert whole.cut_by_capacity == {"0": 8}
    assert whole.kept_whole == {"1": "kept whole as told"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"freeze": ["x"]}, r"freeze: 'x' is neither an axis \(0, 1\) nor a dimension"),
        ({"freeze": ["0.weight[2]"]}, "freeze: '0.weight"),
        ({"tie": [("0", "1")]}, "tie: '0' has 8 units and '1' has 4"),
        ({"whole": ["y"]}, "whole: 'y' is not an axis"),
        ({"cut": ["1"], "whole": ["1"]}, "cut: '1' is also to be kept whole"),
        ({"cut": ["1"], "freeze": ["1"]}, "cut: '1' is frozen"),
    ],
)
def test_mistaken_overrides_name_what_exists(options: dict[str, Any], message: str) -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(4, 2))
    with pytest.raises(ConfigError, match=message):
        trace(net, VECTOR, **options)
