"""Generation of text with a trained language model."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from submodel.core.errors import ConfigError, DataError, refuse
from submodel.core.randomness import generator
from submodel.data import Dataset
from submodel.data.text.tokens import Tokeniser, read_tokens
from submodel.data.text.windows import PADDING
from submodel.model.inputs import first_column


def generate(
    module: nn.Module,
    data: Dataset,
    prompt: str,
    tokens: int,
    temperature: float = 1.0,
    seed: int = 0,
) -> str:
    """Generate text after a prompt; return it with the prompt.

    Each token is drawn from the model's distribution given the preceding tokens, at most as many as
    a sequence of the data has; equal seeds give equal texts.

    Args:
        module: language model.
        data: data that it was trained on, with the tokeniser.
        prompt: beginning of the text.
        tokens: number of tokens to add.
        temperature: divisor of the logits; 0: always the likeliest token.
        seed: seed of the draws.
    """
    if data.text is None:
        raise DataError("the run's data is not text; only language models generate text")
    problems = []
    if tokens < 1:
        problems.append(f"tokens: {tokens} is less than 1")
    if not 0 <= temperature < np.inf:
        problems.append(f"temperature: {temperature} is not 0 or more")
    if not prompt:
        problems.append("prompt: it is empty; a line break suffices")
    refuse(problems)
    tokeniser = read_tokens(data.text.tokens)
    numbers = list(map(int, tokeniser.encode(prompt)))
    if not numbers:
        raise ConfigError(f"prompt: {prompt!r} has no tokens")
    length, dtype = data.inputs[0], first_column(data.train.x).dtype
    draws = generator(seed, "generate").random(tokens)
    start = len(numbers)
    for draw in draws:
        context = torch.tensor([numbers[-length:]], dtype=dtype)
        numbers.append(_next(_logits(module, context, length), temperature, float(draw)))
    return prompt + _decode_after(tokeniser, numbers, start)


def _logits(module: nn.Module, context: Tensor, length: int) -> Tensor:
    """Compute the logits of the next token; the context is padded to the length in training."""
    place = context.shape[1] - 1
    device = next(module.parameters()).device
    window = nn.functional.pad(context, (0, length - context.shape[1]), value=PADDING)
    with torch.no_grad():
        outputs = module(window.to(device))
    logits: Tensor = outputs if isinstance(outputs, Tensor) else outputs.logits
    return logits[0, place].double().cpu()


def _next(logits: Tensor, temperature: float, draw: float) -> int:
    """Return the token at a quantile in [0, 1) of the distribution of the logits."""
    if temperature == 0:
        return int(logits.argmax())
    sums = (logits / temperature).softmax(0).cumsum(0)
    return min(int((sums <= draw * sums[-1]).sum()), len(logits) - 1)


def _decode_after(tokeniser: Tokeniser, numbers: list[int], start: int) -> str:
    """Decode the tokens from ``start`` on, in the context of the preceding ones."""
    before = tokeniser.decode(numbers[:start])
    whole = tokeniser.decode(numbers)
    if whole.startswith(before):
        return whole.removeprefix(before)
    return tokeniser.decode(numbers[start:])
