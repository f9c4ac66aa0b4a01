"""Small nets with mechanisms that show in training: computed weights, statistics, two modes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tests.model.nets import CLASSES, Entry, Net, entry


def _wide() -> dict[str, nn.Module]:
    return {"up": nn.Linear(6, 16), "middle": nn.Linear(16, 16), "down": nn.Linear(16, CLASSES)}


def orthogonal() -> nn.Module:
    linear = parametrizations.orthogonal(nn.Linear(6, 6))
    return nn.Sequential(linear, nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, CLASSES))


def weight_norm() -> nn.Module:
    first, second = (parametrizations.weight_norm(nn.Linear(n, 16)) for n in (6, 16))
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(16, CLASSES))


def raw_features() -> nn.Module:
    return nn.Sequential(
        nn.BatchNorm1d(6), nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES)
    )


def causal() -> nn.Module:
    def attend(m: Any, x: Tensor) -> Any:
        h = m.middle(m.up(x).relu())
        weights = (h @ h.transpose(1, 2) + m.mask).softmax(-1)
        return m.down((weights @ h).mean(1))

    return Net(attend, mask=torch.full((3, 3), -torch.inf).triu(1), **_wide())


def auxiliary() -> nn.Module:
    def forward(m: Any, x: Tensor) -> Any:
        h = m.up(x).relu()
        out = m.down(m.middle(h).relu())
        return out + m.head(h) if m.training else out

    return Net(forward, head=nn.Linear(16, CLASSES), **_wide())


def recomputed(reentrant: bool) -> nn.Module:
    def forward(m: Any, x: Tensor) -> Any:
        h = m.up(x).relu()
        if m.training:
            return m.down(checkpoint(m.middle, h, use_reentrant=reentrant).relu())
        return m.down(m.middle(h).relu())

    return Net(forward, **_wide())


def caught() -> nn.Module:
    def forward(m: Any, x: Tensor) -> Any:
        h = m.up(x).relu()
        try:
            h = m.images(h)
        except RuntimeError:
            h = m.middle(h).relu()
        h = h.view(len(h), 2, m.width // 2).transpose(1, 2).reshape(-1, m.width)
        return m.down(h)

    return Net(forward, images=nn.Conv2d(3, 3, 1), width=16, **_wide())


def _raw() -> Entry:
    def make() -> tuple[nn.Module, tuple[Tensor, ...]]:
        return raw_features(), (torch.randn(4, 6) * torch.logspace(0, 6, 6),)

    return Entry("raw-features", make)


ENTRIES = (
    entry("orthogonal", orthogonal, (4, 6)),
    entry("weight-norm", weight_norm, (4, 6), mixes=True),
    _raw(),
    entry("causal-mask", causal, (4, 3, 6), mixes=True),
    entry("auxiliary-head", auxiliary, (4, 6), refused="head"),
    entry("checkpoint", lambda: recomputed(False), (4, 6)),
    entry("reentrant-checkpoint", lambda: recomputed(True), (4, 6), refused="use_reentrant=False"),
    entry("caught-error", caught, (4, 6)),
)
