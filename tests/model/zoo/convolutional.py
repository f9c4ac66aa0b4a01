"""The built-in models, perceptrons and convolutional models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from submodel.model.zoo import make_model
from tests.model.nets import Entry, Inputs


def _entry(name: str, inputs: tuple[int, ...], width: int) -> Entry:
    def factory() -> tuple[nn.Module, Inputs]:
        module = make_model(name, inputs, 5, width)
        return module, (torch.randn(4, *inputs),)

    # static batch norm has statistics for evaluation only after a calibration; with a batch of two
    # single pixels, they would amplify every rounding error
    return Entry(f"builtin-{name}", factory, training=True)


def _gpt() -> tuple[nn.Module, Inputs]:
    module = make_model("gpt", (8,), 29, 16, layers=2, heads=2)
    return module, (torch.randint(29, (2, 8)),)


BUILT_IN = (
    _entry("mlp", (1, 6, 6), 16),
    _entry("cnn", (1, 8, 8), 4),
    _entry("preresnet18", (3, 16, 16), 4),
    Entry("builtin-gpt", _gpt, mixes=True),
)


CLASSES = 7
Norm = Callable[[int], nn.Module]


def conv(inputs: int, outputs: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, groups=groups)


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 20), nn.Tanh(), nn.Linear(20, CLASSES)
    )


def vgg() -> nn.Module:
    return nn.Sequential(
        conv(3, 12),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.MaxPool2d(2),
        conv(12, 20),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(20 * 4, 28),
        nn.ReLU(),
        nn.Dropout(0.0),
        nn.Linear(28, CLASSES),
    )


class ChannelsLast(nn.Module):
    """A flatten with the channels last, so a unit is every twelfth column."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv(3, 12)
        self.hidden = nn.Linear(12 * 16, 20)
        self.classify = nn.Linear(20, CLASSES)

    def forward(self, x: Tensor) -> Any:
        x = functional.max_pool2d(torch.relu(self.conv(x)), 2)
        x = x.permute(0, 2, 3, 1).flatten(1)
        return self.classify(torch.relu(self.hidden(x)))


class PreBlock(nn.Module):
    """Norm and activation before each convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv(inputs, outputs, stride)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = conv(outputs, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride) if inputs != outputs else None

    def forward(self, x: Tensor) -> Any:
        active = torch.relu(self.norm1(x))
        skip = x if self.skip is None else self.skip(active)
        return skip + self.conv2(torch.relu(self.norm2(self.conv1(active))))


class PostBlock(nn.Module):
    """Norm and activation after each convolution."""

    def __init__(self, inputs: int, outputs: int, norm: Norm, stride: int, groups: int = 1) -> None:
        super().__init__()
        self.conv1 = conv(inputs, outputs, stride)
        self.norm1 = norm(outputs)
        self.conv2 = conv(outputs, outputs, groups=groups)
        self.norm2 = norm(outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.skip(x) + self.norm2(self.conv2(y)))


def head(width: int) -> tuple[nn.Module, ...]:
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)


def pre_resnet() -> nn.Module:
    return nn.Sequential(
        conv(3, 12),
        PreBlock(12, 12, 1),
        PreBlock(12, 20, 2),
        PreBlock(20, 20, 1),
        nn.BatchNorm2d(20),
        nn.ReLU(),
        *head(20),
    )


def post_resnet(norm: Norm, groups: int = 1) -> nn.Module:
    return nn.Sequential(
        conv(3, 16),
        norm(16),
        nn.ReLU(),
        PostBlock(16, 16, norm, 1, groups),
        PostBlock(16, 24, norm, 2, groups),
        PostBlock(24, 24, norm, 1, groups),
        *head(24),
    )


class PaddedBlock(nn.Module):
    """The skip of the first small ResNets: every second pixel, zeros for the new channels."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = conv(inputs, outputs, 2)
        self.norm = nn.BatchNorm2d(outputs)
        self.added = (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        skip = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.added, self.added))
        return torch.relu(skip + self.norm(self.conv(x)))


def padded_resnet() -> nn.Module:
    return nn.Sequential(conv(3, 12), nn.ReLU(), PaddedBlock(12, 20), *head(20))


class ResNeXtBlock(nn.Module):
    """A bottleneck whose middle convolution has four groups."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            conv(inner, inner, groups=4),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, width, 1),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


def resnext() -> nn.Module:
    return nn.Sequential(conv(3, 20), ResNeXtBlock(20, 16), ResNeXtBlock(20, 24), *head(20))


class InvertedBlock(nn.Module):
    """MobileNetV2: expand, depthwise filter, project; a skip if shapes agree."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        inner = 2 * inputs
        self.same = inputs == outputs and stride == 1
        self.body = nn.Sequential(
            nn.Conv2d(inputs, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            conv(inner, inner, stride, groups=inner),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            nn.Conv2d(inner, outputs, 1),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.same else y


def mobilenet() -> nn.Module:
    return nn.Sequential(
        conv(3, 12), InvertedBlock(12, 12, 1), InvertedBlock(12, 18, 2), nn.Hardswish(), *head(18)
    )


class DenseBlock(nn.Module):
    """Every layer reads all earlier outputs, concatenated."""

    def __init__(self, inputs: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(inputs + n * growth), nn.ReLU(), conv(inputs + n * growth, growth)
            )
            for n in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], dim=1)
        return x


def densenet() -> nn.Module:
    return nn.Sequential(
        conv(3, 12),
        DenseBlock(12, 6, 3),
        nn.BatchNorm2d(30),
        nn.Conv2d(30, 16, 1),
        nn.AvgPool2d(2),
        DenseBlock(16, 6, 2),
        nn.BatchNorm2d(28),
        nn.ReLU(),
        *head(28),
    )


class ShuffleBlock(nn.Module):
    """ShuffleNet: grouped 1x1, shuffle the channels, depthwise, grouped 1x1, skip."""

    def __init__(self, width: int, inner: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.reduce = nn.Conv2d(width, inner, 1, groups=groups)
        self.norm = nn.BatchNorm2d(inner)
        self.depthwise = conv(inner, inner, groups=inner)
        self.expand = nn.Conv2d(inner, width, 1, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.reduce(x)))
        batch, channels, height, width = y.shape
        y = y.view(batch, self.groups, channels // self.groups, height, width)
        y = y.transpose(1, 2).reshape(batch, channels, height, width)
        return torch.relu(x + self.expand(self.depthwise(y)))


class ShuffleSplitBlock(nn.Module):
    """ShuffleNetV2: half of the channels skip the block, then both halves are interleaved."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.branch = nn.Sequential(
            nn.Conv2d(half, half, 1), nn.BatchNorm2d(half), nn.ReLU(), conv(half, half, groups=half)
        )

    def forward(self, x: Tensor) -> Tensor:
        kept, changed = x.chunk(2, dim=1)
        y = torch.stack([kept, self.branch(changed)], dim=2)
        return y.flatten(1, 2)


def shufflenet() -> nn.Module:
    return nn.Sequential(conv(3, 16), ShuffleBlock(16, 8, 2), ShuffleBlock(16, 12, 2), *head(16))


def shufflenet_v2() -> nn.Module:
    return nn.Sequential(conv(3, 16), ShuffleSplitBlock(16), ShuffleSplitBlock(16), *head(16))


class SqueezeExcite(nn.Module):
    """Scales every channel by a gate computed from all channels' means; learned slopes."""

    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.conv = conv(width, width)
        self.slope = nn.PReLU(width)
        self.squeeze = nn.Linear(width, squeezed)
        self.excite = nn.Linear(squeezed, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.slope(self.conv(x))
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(y.mean((2, 3))))))
        gated: Tensor = y * gate[:, :, None, None]
        return x + gated


def squeeze_excite() -> nn.Module:
    return nn.Sequential(conv(3, 16), nn.PReLU(), SqueezeExcite(16, 6), *head(16))


class UNet(nn.Module):
    """Two steps down, two up by transposed convolutions, concatenated skips; one map per class."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = conv(3, 8), conv(8, 12), conv(12, 20)
        self.norm1, self.norm2 = nn.BatchNorm2d(8), nn.InstanceNorm2d(12, affine=True)
        self.up2 = nn.ConvTranspose2d(20, 14, 2, stride=2)
        self.join2 = conv(14 + 12, 14)
        self.up1 = nn.ConvTranspose2d(14, 10, 2, stride=2)
        self.join1 = conv(10 + 8, 10)
        self.classify = nn.Conv2d(10, CLASSES, 1)

    def forward(self, x: Tensor) -> Any:
        one = torch.relu(self.norm1(self.down1(x)))
        two = torch.relu(self.norm2(self.down2(functional.max_pool2d(one, 2))))
        x = torch.relu(self.bottom(functional.max_pool2d(two, 2)))
        x = torch.relu(self.join2(torch.cat([self.up2(x), two], dim=1)))
        x = torch.relu(self.join1(torch.cat([self.up1(x), one], dim=1)))
        return self.classify(x)


def _on_images(make: Callable[[], nn.Module]) -> Callable[[], tuple[nn.Module, Inputs]]:
    return lambda: (make(), (torch.randn(2, 3, 8, 8),))


ENTRIES = (
    Entry("mlp", lambda: (mlp(), (torch.randn(2, 10),))),
    Entry("vgg", _on_images(vgg)),
    Entry("channels-last", _on_images(ChannelsLast)),
    Entry("pre-resnet", _on_images(pre_resnet)),
    Entry("resnet-bn", _on_images(lambda: post_resnet(nn.BatchNorm2d))),
    Entry(
        "resnet-gn1",
        _on_images(lambda: post_resnet(lambda width: nn.GroupNorm(1, width))),
        mixes=True,
    ),
    Entry("resnet-gn4", _on_images(lambda: post_resnet(lambda width: nn.GroupNorm(4, width)))),
    Entry("resnet-padded", _on_images(padded_resnet)),
    Entry("resnext", _on_images(resnext)),
    Entry("mobilenet", _on_images(mobilenet)),
    Entry("densenet", _on_images(densenet)),
    Entry("shufflenet", _on_images(shufflenet)),
    Entry("shufflenet-v2", _on_images(shufflenet_v2)),
    Entry("squeeze-excite", _on_images(squeeze_excite)),
    Entry("unet", _on_images(UNet)),
)
