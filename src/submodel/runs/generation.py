"""Text that a trained language model writes."""

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
    """Text that a model writes after a prompt, with the prompt.

    A token is drawn from the model's chances given the tokens before it, as many as a sequence of
    the data is long; the same seed draws the same text.

    Args:
        module: a model of text that was trained on the data.
        data: what it was trained on; it has the tokeniser.
        prompt: what the text begins with.
        tokens: how many are added.
        temperature: what logits are divided by; 0: always the likeliest token.
        seed: of the draws.
    """
    if data.text is None:
        raise DataError("the run's data is no text; only language models write")
    problems = []
    if tokens < 1:
        problems.append(f"tokens: {tokens} is less than 1")
    if not 0 <= temperature < np.inf:
        problems.append(f"temperature: {temperature} is not 0 or more")
    if not prompt:
        problems.append("prompt: nothing to go on from; even a line break will do")
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
    """The logits of the next token; the context is padded to the length used in training."""
    place = context.shape[1] - 1
    device = next(module.parameters()).device
    window = nn.functional.pad(context, (0, length - context.shape[1]), value=PADDING)
    with torch.no_grad():
        outputs = module(window.to(device))
    logits: Tensor = outputs if isinstance(outputs, Tensor) else outputs.logits
    return logits[0, place].double().cpu()


def _next(logits: Tensor, temperature: float, draw: float) -> int:
    """The token at a quantile from [0, 1) of the distribution that the logits give."""
    if temperature == 0:
        return int(logits.argmax())
    sums = (logits / temperature).softmax(0).cumsum(0)
    return min(int((sums <= draw * sums[-1]).sum()), len(logits) - 1)


def _decode_after(tokeniser: Tokeniser, numbers: list[int], start: int) -> str:
    """The text of the tokens from ``start`` on, as it is decoded together with what precedes."""
    before = tokeniser.decode(numbers[:start])
    whole = tokeniser.decode(numbers)
    if whole.startswith(before):
        return whole.removeprefix(before)
    return tokeniser.decode(numbers[start:])
