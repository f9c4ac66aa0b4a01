"""Measure the gain of stacks on small transformers: eight clients together or one by one.

    python -m benchmarks.speed.stacks [--kinds gpt2,llama,gpt] [--optimisers sgd,adamw]
                                     [--tokens 4x32] [--rounds 5] [--out FILE]

Three engines train the same tasks in turns, in one process on one thread: one by one, in stacks
with torch, and in stacks with the native kernels if there is a C compiler. Results are medians and
ranges of the ratios of processor time to the first. Width 64, two layers of four heads, 256 tokens
in the vocabulary, capacities 1, 1/2 and 1/4. Tokens are drawn at random.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from submodel.algorithm.dispatch import Dispatcher
from submodel.algorithm.execution import Engine
from submodel.algorithm.rounds import initial_state, plan
from submodel.algorithm.types import Setup
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.data import dataset
from submodel.engines import find_compiler
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.native.backend import NativeBackend
from submodel.engines.serial import SerialEngine
from submodel.model.zoo.gpt import Decoder

WIDTH, LAYERS, HEADS, VOCABULARY = 64, 2, 4, 256
CLIENTS, STEPS, WARM_UP = 8, 5, 3
"""The rounds of the warm-up have fifteen steps, as stacks replay a step from the tenth on."""
CAPACITIES = (1.0, 0.5, 0.25)


def make_model(kind: str, length: int) -> torch.nn.Module:
    """Make a small transformer.

    Args:
        kind: gpt2 or llama of `transformers`, or gpt, our own.
        length: length of the longest sequence.
    """
    torch.manual_seed(0)
    if kind == "gpt":
        return Decoder(length, VOCABULARY, WIDTH, LAYERS, HEADS)
    import transformers

    library: Any = transformers
    model: torch.nn.Module
    if kind == "gpt2":
        model = library.GPT2LMHeadModel(
            library.GPT2Config(
                vocab_size=VOCABULARY, n_positions=length, n_embd=WIDTH, n_layer=LAYERS,
                n_head=HEADS, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False,
                bos_token_id=0, eos_token_id=0,
            )
        )  # fmt: skip
    else:
        model = library.LlamaForCausalLM(
            library.LlamaConfig(
                vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=3 * WIDTH,
                num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=HEADS // 2,
                max_position_embeddings=length, use_cache=False,
            )
        )  # fmt: skip
    return model


def make_setup(kind: str, optimiser: str, capacity: float, batch: int, length: int) -> Setup:
    """Eight clients of one capacity."""
    draws = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCABULARY, (2 * CLIENTS * batch, length + 1), generator=draws)
    pair = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    part: Any = pair if kind == "gpt" else dict(zip(("input_ids", "labels"), pair, strict=True))
    values = {
        "task": {"name": "language"},
        "data": {"partition": "iid"},
        "clients": {"count": CLIENTS, "per_round": CLIENTS, "capacities": [capacity]},
        "local": {"optimiser": optimiser, "batch_size": batch, "steps": STEPS, "lr": 1e-3},
    }
    return prepare(parse(values), make_model(kind, length), dataset(part, part))


def measure(setup: Setup, rounds: int) -> dict[str, Any]:
    """Measure the milliseconds of a client's step on each engine, and their ratios.

    Args:
        setup: setup with one task per client.
        rounds: measured rounds after the warm-up.
    """
    dispatcher = Dispatcher(setup, initial_state(setup), setup.work)
    tasks = [dispatcher.task(assignment) for assignment in plan(setup, 0)]
    engines: dict[str, Engine] = {
        "serial": SerialEngine(setup),
        "stack": BatchedEngine(setup, always=True),
    }
    if find_compiler() is not None:
        engines["native"] = BatchedEngine(setup, always=True, backend=NativeBackend())
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(rounds + WARM_UP):
        for name, engine in engines.items():
            start = time.process_time()
            for _ in engine.run(tasks):
                pass
            if turn >= WARM_UP:
                seconds[name].append(time.process_time() - start)
    steps = CLIENTS * STEPS
    result: dict[str, Any] = {
        name: round(statistics.median(s) / steps * 1000, 3) for name, s in seconds.items()
    }
    for name, label in (("stack", ""), ("native", "native_")):
        if name in engines:
            ratios = [a / b for a, b in zip(seconds["serial"], seconds[name], strict=True)]
            result[f"{label}ratio"] = round(statistics.median(ratios), 2)
            result[f"{label}range"] = [round(min(ratios), 2), round(max(ratios), 2)]
    return result


def rows(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure all cases, one after another."""
    batch, length = (int(part) for part in given.tokens.split("x"))
    for kind in given.kinds.split(","):
        for optimiser in given.optimisers.split(","):
            for capacity in CAPACITIES:
                setup = make_setup(kind, optimiser, capacity, batch, length)
                result = measure(setup, given.rounds)
                case = {"kind": kind, "optimiser": optimiser, "capacity": capacity}
                yield {**case, "batch": batch, "length": length, **result}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--kinds", default="gpt2,llama,gpt")
    parser.add_argument("--optimisers", default="sgd,adamw")
    parser.add_argument("--tokens", default="4x32", help="sequences of a batch x their length")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for row in rows(given):
        results.append(row)
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
