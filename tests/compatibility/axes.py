"""Saved axes of nets: each file cuts its net, rebuilt from the code below, like before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import submodel
from submodel.model import Axes, ModelContext, prefix_cut
from submodel.model.axes.declare import axes_fingerprint, from_json, to_json
from submodel.model.builtin_models import MODELS
from tests.compatibility.case import Case, Observation, differences

CAPACITIES = (0.5, 0.25)
IMAGES = ModelContext((1, 8, 8), 10)
TOKENS = ModelContext((6,), 20, 20, "language")


class Shifted(nn.Module):
    """Computed numbers in code: products, quotients, differences, remainders, a comparison."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.groups, self.width = 2, 4, 16
        self.up = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.GroupNorm(4, 16, affine=False)
        self.mix = nn.Conv2d(16, 16, 3, padding=1, groups=4)
        self.down = nn.Linear(16 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.mix(self.norm(self.up(x)).relu())
        if h.shape[1] != self.width:
            raise ValueError("another width")
        fold = h.shape[1] // self.groups
        first, rest = h[:, :fold], h[:, fold:]
        h = torch.cat([first.flip(2), rest], 1).relu()
        n = h.shape[1] * h.shape[2] * h.shape[3]
        out: Tensor = self.down(h.view(-1, n) / (self.width % 5 + 1))
        return out


class Attention(nn.Module):
    """Queries, keys and values in one product, cut by heads."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = 4
        self.qkv, self.out = nn.Linear(8, 48), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        b, n, width = q.shape
        size = width // self.heads
        q, k, v = (t.reshape(b, n, self.heads, size).transpose(1, 2) for t in (q, k, v))
        h = ((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2)
        out: Tensor = self.out(h.reshape(b, n, self.heads * size))
        return out


def _declared(net: nn.Module, _: Any) -> Axes:
    table = {
        "0.weight": ("hidden", None),
        "0.bias": ("hidden",),
        "2.weight": (None, ("hidden", 2)),
    }
    return submodel.declare(dict(net.named_parameters()), table)


def _repeated() -> nn.Module:
    """Map every hidden unit to two positions in the next layer."""
    return nn.Sequential(nn.Linear(6, 8), _Twice(), nn.Linear(16, 3))


class _Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(2, -1)


def _zoo(name: str, context: ModelContext, **values: int) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = MODELS.find(name)
        return model.make(model.options.model_validate(values), context)

    return make


def _traced(net: nn.Module, x: Any) -> Axes:
    return submodel.trace(net, x)


IMAGE, SMALL = torch.ones(2, 1, 8, 8), torch.linspace(-1, 1, 96).view(2, 3, 4, 4)
NETS: dict[str, tuple[Callable[[], nn.Module], Any, Callable[[nn.Module, Any], Axes]]] = {
    "mlp": (_zoo("mlp", IMAGES, width=8), IMAGE, _traced),
    "cnn": (_zoo("cnn", IMAGES, width=4), IMAGE, _traced),
    "preresnet18": (_zoo("preresnet18", IMAGES, width=4), IMAGE, _traced),
    "gpt": (
        _zoo("gpt", TOKENS, width=8, layers=1, heads=2),
        torch.arange(12).view(2, 6),
        _traced,
    ),
    "declared": (_repeated, torch.ones(2, 6), _declared),
    "shifted": (Shifted, SMALL, _traced),
    "attention": (Attention, torch.linspace(-1, 1, 80).view(2, 5, 8), _traced),
}

FIXED: dict[str, Any] = {"": "Fixed", "size": 3}
ALONG: dict[str, Any] = {"": "Along", "axis": "hidden", "size": 8}
HEADS: dict[str, Any] = {"": "Attribute", "name": "heads"}
SIZE: dict[str, Any] = {"": "SizeOf", "dimension": ALONG}


def _computed(operation: str, left: Any, right: Any) -> dict[str, Any]:
    return {"": "Computed", "operation": operation, "left": left, "right": right}


def _made(number: Any, dimension: Any, **more: Any) -> dict[str, Any]:
    rest = {"where": "block", "groups": False, "line": "net.py:7", **more}
    return {"": "Made", "number": number, "dimension": dimension, **rest}


EVERY_FORM: dict[str, Any] = {
    "": "Axes",
    "sizes": {"hidden": 8, "classes": 2},
    "layouts": {
        "w": [ALONG, {"": "Product", "parts": [FIXED, ALONG]}],
        "v": [{"": "Concatenation", "parts": [ALONG, FIXED, ALONG]}],
    },
    "frozen": {"w[2]": "an output"},
    "kept": {"classes": "a number written in the code makes its size"},
    "inexact": {"hidden": ["norm"]},
    "unused": ["spare"],
    "stored": {
        "": "Stored",
        "made": [
            _made(_computed("mul", HEADS, 4), ALONG),
            _made(_computed("floordiv", SIZE, HEADS), FIXED, groups=True),
            _made(_computed("add", _computed("mod", SIZE, 5), 3), FIXED),
            _made(_computed("sub", SIZE, 5), FIXED),
        ],
        "elsewhere": {"": "set", "items": ["depth"]},
        "compared": [{"": "Compared", "one": HEADS, "other": 2, "equal": True, "line": "net.py:9"}],
        "layers": [_made(8, ALONG)],
        "grouped": {"": "set", "items": ["conv"]},
        "values": {"": "set", "items": ["heads"]},
    },
    "measured": [0.5, 1e-07],
    "doubt": "not measured",
    "lines": {"w[2]": "net.py:11"},
    "notes": ["a note"],
}
"""Each type of object in the file, with all its keys."""


def write_axes(folder: Path) -> None:
    for name, (make, x, find) in NETS.items():
        torch.manual_seed(0)
        (folder / f"{name}.json").write_text(to_json(find(make(), x)) + "\n")
    (folder / "every-form.json").write_text(json.dumps(EVERY_FORM) + "\n")


def read_axes(folder: Path) -> Observation:
    """Return the cuts of each file, and whether it is rewritten unchanged."""
    found: Observation = {}
    for file in sorted(folder.glob("*.json")):
        axes = from_json(file.read_text())
        again = to_json(axes)
        assert from_json(again) == axes
        found[file.stem] = {
            "lost when written": differences(json.loads(file.read_text()), json.loads(again)),
            "fingerprint": axes_fingerprint(axes),
            "sizes": dict(axes.sizes),
        }
        if file.stem in NETS:
            make, x, find = NETS[file.stem]
            torch.manual_seed(0)
            net = make()
            found[file.stem] |= {
                "found again": axes_fingerprint(find(net, x)) == axes_fingerprint(axes),
                **{f"at {c}": _cut(net, axes, c, x) for c in CAPACITIES},
            }
    return found


def _cut(net: nn.Module, axes: Axes, capacity: float, x: Any) -> Observation:
    units = prefix_cut(axes, capacity).units
    small = submodel.build(net, axes, units, example_inputs=x)
    return {
        "units": {axis: len(kept) for axis, kept in units.items()},
        "shapes": {name: list(tensor.shape) for name, tensor in small.state_dict().items()},
        "outputs": list(small(x).shape),
    }


CASES = (Case("axes", write_axes, read_axes),)
