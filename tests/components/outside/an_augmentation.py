"""An augmentation: some examples of a batch, at random, are turned into their negatives."""

import numpy as np
import torch
from torch import Tensor


def negatives(examples: Tensor, generator: np.random.Generator) -> Tensor:
    signs = torch.from_numpy(generator.choice([-1.0, 1.0], len(examples))).to(examples)
    return examples * signs.view(-1, *[1] * (examples.dim() - 1))
