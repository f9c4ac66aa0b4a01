"""An augmentation that negates random examples of a batch."""

import numpy as np
import torch
from torch import Tensor


def negatives(examples: Tensor, generator: np.random.Generator) -> Tensor:
    signs = torch.from_numpy(generator.choice([-1.0, 1.0], len(examples))).to(examples)
    return examples * signs.view(-1, *[1] * (examples.dim() - 1))
