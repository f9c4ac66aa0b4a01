"""Convolutional nets with branches, gates, computed weights, and Fourier layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from tests.model.nets import CLASSES, Net, conv, entry, mlp, weight


def _normed(layer: nn.Conv2d) -> nn.Sequential:
    return nn.Sequential(layer, nn.BatchNorm2d(layer.out_channels))


def _rep_block(m: Any, x: Tensor) -> Any:
    return torch.relu(m.wide(x) + m.point(x) + m.same(x))


def repvgg() -> nn.Module:
    """A kernel, a point and the identity in parallel, each with a norm."""
    block = Net(
        _rep_block,
        wide=_normed(conv(12, 12, bias=False)),
        point=_normed(conv(12, 12, 1, bias=False)),
        same=nn.BatchNorm2d(12),
    )
    return nn.Sequential(conv(3, 12), block, nn.AdaptiveAvgPool2d(1), nn.Flatten(), _head(12))


def _head(width: int) -> nn.Linear:
    return nn.Linear(width, CLASSES)


def _excite(m: Any, x: Tensor) -> Any:
    return x * m.up(functional.silu(m.down(functional.adaptive_avg_pool2d(x, 1)))).sigmoid()


def _residual(m: Any, x: Tensor) -> Any:
    return x + m.inner(x)


def mbconv() -> nn.Module:
    """EfficientNet's block: expand, depthwise, squeeze and excite, project."""
    inner = nn.Sequential(
        _normed(conv(8, 32, 1, bias=False)),
        nn.SiLU(),
        _normed(conv(32, 32, 5, groups=32, bias=False)),
        nn.SiLU(),
        Net(_excite, down=conv(32, 4, 1), up=conv(4, 32, 1)),
        _normed(conv(32, 8, 1, bias=False)),
    )
    return nn.Sequential(
        conv(3, 8), Net(_residual, inner=inner), nn.AdaptiveAvgPool2d(1), nn.Flatten(), _head(8)
    )


def convmixer() -> nn.Module:
    def block() -> nn.Module:
        depthwise = nn.Sequential(conv(16, 16, groups=16), nn.GELU(), nn.BatchNorm2d(16))
        mixing = nn.Sequential(conv(16, 16, 1), nn.GELU(), nn.BatchNorm2d(16))
        return nn.Sequential(Net(_residual, inner=depthwise), mixing)

    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), _head(16))
    return nn.Sequential(nn.Conv2d(3, 16, 2, 2), nn.GELU(), block(), block(), head)


def _ghost(m: Any, x: Tensor) -> Any:
    first = torch.relu(m.primary(x))
    return torch.cat([first, torch.relu(m.cheap(first))], 1)[:, : m.outputs]


def ghostnet() -> nn.Module:
    """Half of the channels are made from the other half, by cheap kernels."""
    one = Net(_ghost, primary=conv(3, 8, 1), cheap=conv(8, 8, groups=8), outputs=16)
    two = Net(_ghost, primary=conv(16, 12, 1), cheap=conv(12, 12, groups=12), outputs=24)
    return nn.Sequential(one, two, nn.AdaptiveAvgPool2d(1), nn.Flatten(), _head(24))


def _branches(m: Any, x: Tensor) -> Any:
    fine = torch.relu(m.fine(x))
    coarse = torch.relu(m.coarse(fine))
    up = functional.interpolate(m.up(coarse), scale_factor=2, mode="nearest")
    fine, coarse = torch.relu(fine + up), torch.relu(coarse + m.down(fine))
    wide = functional.interpolate(coarse, size=fine.shape[-2:], mode="bilinear")
    return m.out(torch.cat([fine, wide], 1))


def hrnet() -> nn.Module:
    """Two resolutions that exchange features."""
    return Net(
        _branches,
        fine=conv(3, 8),
        coarse=conv(8, 12, stride=2),
        up=conv(12, 8, 1),
        down=conv(8, 12, stride=2),
        out=conv(20, CLASSES, 1),
    )


def _inception(m: Any, x: Tensor) -> Any:
    return torch.cat([torch.relu(branch(x)) for branch in m.branches], 1)


def inception() -> nn.Module:
    branches = nn.ModuleList(
        [
            conv(10, 6, 1),
            nn.Sequential(conv(10, 5, 1), nn.ReLU(), conv(5, 8)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(10, 4, 1)),
        ]
    )
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), _head(18))
    return nn.Sequential(conv(3, 10), Net(_inception, branches=branches), head)


def _hourglass(m: Any, x: Tensor) -> Any:
    inner = m.low(m.inner(m.down(functional.max_pool2d(x, 2))))
    return m.skip(x) + functional.interpolate(inner, scale_factor=2)


def hourglass() -> nn.Module:
    def block() -> nn.Module:
        inner = nn.Sequential(nn.BatchNorm2d(12), nn.ReLU(), conv(12, 6, 1), nn.ReLU(), conv(6, 12))
        return Net(_residual, inner=inner)

    def glass(inner: nn.Module) -> nn.Module:
        return Net(_hourglass, skip=block(), down=block(), inner=inner, low=block())

    return nn.Sequential(conv(3, 12), glass(glass(block())), conv(12, CLASSES, 1))


def _gated_skip(m: Any, x: Tensor) -> Any:
    skip = torch.relu(m.first(x))
    up = m.up(torch.relu(m.second(functional.max_pool2d(skip, 2))))
    gate = torch.sigmoid(m.gate(torch.relu(m.of_up(up) + m.of_skip(skip))))
    return m.out(torch.relu(m.join(torch.cat([skip * gate, up], 1))))


def attention_unet() -> nn.Module:
    return Net(
        _gated_skip,
        first=conv(3, 8),
        second=conv(8, 14),
        up=nn.ConvTranspose2d(14, 10, 2, 2),
        of_up=_normed(conv(10, 6, 1)),
        of_skip=_normed(conv(8, 6, 1)),
        gate=_normed(conv(6, 1, 1)),
        join=conv(18, 8),
        out=conv(8, CLASSES, 1),
    )


def _scales(m: Any, x: Tensor) -> Any:
    first, *rest = torch.split(m.up(x), m.width, 1)
    parts = [first]
    for part, layer in zip(rest, m.layers, strict=True):
        parts.append(torch.relu(layer(part + parts[-1] if len(parts) > 1 else part)))
    return m.out(torch.cat(parts, 1).mean((2, 3)))


def res2net() -> nn.Module:
    """Parts of the channels in sequence, each with the previous output."""
    layers = nn.ModuleList([conv(6, 6) for _ in range(3)])
    return Net(_scales, up=conv(3, 24, 1), layers=layers, out=_head(24), width=6)


def _selected(m: Any, x: Tensor) -> Any:
    x = m.up(x)
    both = torch.stack([torch.relu(m.near(x)), torch.relu(m.far(x))], 1)
    squeezed = m.squeeze(both.sum(1).mean((2, 3)))
    share = torch.stack([gate(squeezed) for gate in m.gates], 1).softmax(1)
    return m.out((both * share[..., None, None]).sum(1).mean((2, 3)))


def selective_kernels() -> nn.Module:
    return Net(
        _selected,
        up=conv(3, 12, 1),
        near=conv(12, 12),
        far=conv(12, 12, padding=2, dilation=2),
        squeeze=nn.Linear(12, 6),
        gates=nn.ModuleList([nn.Linear(6, 12) for _ in range(2)]),
        out=_head(12),
    )


def _pyramid(m: Any, x: Tensor) -> Any:
    x = torch.relu(m.up(x))
    whole = functional.interpolate(m.whole(x), size=x.shape[2:], mode="bilinear")
    return m.out(torch.cat([*(torch.relu(b(x)) for b in m.branches), whole], 1))


def aspp() -> nn.Module:
    """Kernels of several dilations and the mean of the image in parallel."""
    branches = nn.ModuleList([conv(8, 6, padding=d, dilation=d) for d in (1, 2, 3)])
    whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), conv(8, 6, 1))
    return Net(_pyramid, up=conv(3, 8), branches=branches, whole=whole, out=conv(24, CLASSES, 1))


def gan() -> nn.Module:
    """A vector becomes an image, by an Unflatten with stored sizes."""
    return nn.Sequential(
        nn.Linear(6, 16 * 4),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Unflatten(1, (16, 2, 2)),
        nn.ConvTranspose2d(16, 10, 4, 2, 1),
        nn.BatchNorm2d(10),
        nn.ReLU(),
        nn.ConvTranspose2d(10, 3, 4, 2, 1),
        nn.Tanh(),
    )


def super_resolution() -> nn.Module:
    return nn.Sequential(
        conv(3, 12, 5), nn.ReLU(), conv(12, 40), nn.PixelShuffle(2), nn.ReLU(), conv(10, 3)
    )


def discriminator() -> nn.Module:
    """Spectral norm, with groups: the weights are computed, and divided by a norm."""
    norm = parametrizations.spectral_norm
    return nn.Sequential(
        norm(conv(3, 8, 4, stride=2, padding=1)),
        nn.LeakyReLU(0.2),
        norm(conv(8, 12, 4, stride=2, padding=1, groups=2)),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(48, 1),
    )


def _capsules(m: Any, x: Tensor) -> Any:
    poses = m.primary(torch.relu(m.up(x))).view(len(x), m.kinds, m.size, -1)
    poses = _squash(poses.permute(0, 1, 3, 2).reshape(len(x), -1, m.size))
    votes = (m.weight @ poses[:, :, None, :, None]).squeeze(-1)
    logits = torch.zeros(*votes.shape[:3], 1)
    for _ in range(2):
        chosen = _squash((logits.softmax(2) * votes).sum(1))
        logits = logits + (votes * chosen[:, None]).sum(-1, keepdim=True)
    return chosen.norm(dim=-1)


def _squash(x: Tensor) -> Tensor:
    length = x.square().sum(-1, keepdim=True)
    return length / (1 + length) * x / (length + 1e-3).sqrt()


def capsules() -> nn.Module:
    return Net(
        _capsules,
        up=conv(3, 16, padding=0),
        primary=conv(16, 24, 2, stride=2, padding=0),
        weight=weight(1, 54, CLASSES, 8, 4),
        kinds=6,
        size=4,
    )


def _filtered(m: Any, x: Tensor) -> Any:
    x = m.patches(x).permute(0, 2, 3, 1)
    frequencies = torch.fft.rfft2(m.norm(x), dim=(1, 2), norm="ortho")
    frequencies = frequencies * torch.view_as_complex(m.filter)
    mixed = torch.fft.irfft2(frequencies, s=x.shape[1:3], dim=(1, 2), norm="ortho")
    return m.out((x + m.mlp(mixed)).mean((1, 2)))


def global_filter() -> nn.Module:
    """A learned filter of the frequencies, complex numbers as pairs."""
    return Net(
        _filtered,
        patches=nn.Conv2d(3, 16, 2, 2),
        norm=nn.LayerNorm(16),
        filter=weight(4, 3, 16, 2),
        mlp=mlp(16, 24, 16),
        out=_head(16),
    )


def _spectral(m: Any, x: Tensor) -> Any:
    low, k = torch.fft.rfft2(x), m.modes
    out = torch.zeros(len(x), m.outputs, *low.shape[2:], dtype=low.dtype)
    out[:, :, :k, :k] = torch.einsum("bixy,ioxy->boxy", low[:, :, :k, :k], m.first)
    out[:, :, -k:, :k] = torch.einsum("bixy,ioxy->boxy", low[:, :, -k:, :k], m.last)
    return torch.fft.irfft2(out, s=x.shape[2:])


def _operator(m: Any, x: Tensor) -> Any:
    x = m.lift(x)
    for spectral, point in zip(m.spectral, m.points, strict=True):
        x = functional.gelu(spectral(x) + point(x))
    return m.out(x)


def fourier_operator() -> nn.Module:
    """FNO: complex weights for the lowest frequencies beside a pointwise layer."""

    def layer() -> nn.Module:
        first, last = (weight(10, 10, 3, 3, dtype=torch.cfloat) for _ in range(2))
        return Net(_spectral, first=first, last=last, modes=3, outputs=10)

    return Net(
        _operator,
        lift=conv(3, 10, 1),
        spectral=nn.ModuleList([layer() for _ in range(2)]),
        points=nn.ModuleList([conv(10, 10, 1) for _ in range(2)]),
        out=nn.Sequential(conv(10, 14, 1), nn.GELU(), conv(14, 1, 1)),
    )


IMAGE = (2, 3, 8, 8)

ENTRIES = (
    entry("repvgg", repvgg, IMAGE),
    entry("mbconv", mbconv, IMAGE),
    entry("convmixer", convmixer, IMAGE),
    entry("ghostnet", ghostnet, IMAGE),
    entry("hrnet", hrnet, IMAGE),
    entry("inception", inception, IMAGE),
    entry("hourglass", hourglass, IMAGE),
    entry("attention-unet", attention_unet, IMAGE),
    entry("res2net", res2net, IMAGE),
    entry("selective-kernels", selective_kernels, IMAGE),
    entry("aspp", aspp, IMAGE),
    entry("gan", gan, (4, 6)),
    entry("super-resolution", super_resolution, IMAGE),
    entry("discriminator", discriminator, IMAGE, mixes=True),
    entry("capsules", capsules, IMAGE, mixes=True),
    entry("global-filter", global_filter, IMAGE, mixes=True),
    entry("fourier-operator", fourier_operator, IMAGE, refused="is complex"),
)
