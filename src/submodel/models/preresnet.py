"""Pre-activation ResNet for small images (He et al. 2016), as HeteroFL, FedRolex and the paper use.

Batch norm is static. All widths follow from the first: w, 2 w, 4 w, 8 w.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from submodel.norm import StaticBatchNorm

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
"""The number of blocks in each of the four stages, by depth."""


class Block(nn.Module):
    """x + conv(relu(norm(conv(relu(norm(x))))))."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = StaticBatchNorm(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = StaticBatchNorm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut: nn.Conv2d | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """One residual step."""
        active = functional.relu(self.norm1(x))
        skip: Tensor = x if self.shortcut is None else self.shortcut(active)
        out: Tensor = self.conv2(functional.relu(self.norm2(self.conv1(active))))
        return out + skip


class PreResNet(nn.Module):
    """Stem, four stages, final norm, mean over the image, linear classifier."""

    def __init__(self, inputs: Sequence[int], classes: int, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(inputs[0], width, 3, padding=1, bias=False)
        stages, channels = [], width
        for s, blocks in enumerate(BLOCKS[depth]):
            stage = []
            for b in range(blocks):
                stage.append(Block(channels, width << s, 2 if s and not b else 1))
                channels = width << s
            stages.append(nn.Sequential(*stage))
        self.stages = nn.Sequential(*stages)
        self.norm = StaticBatchNorm(channels)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = functional.relu(self.norm(self.stages(self.stem(x))))
        logits: Tensor = self.classifier(x.mean((2, 3)))
        return logits
