"""Text by a trained language model and by its sub-models of smaller capacities.

    submodel train examples/shakespeare.toml
    python examples/generate_text.py runs/shakespeare "My lord, "

A temperature below 1 prefers likelier tokens; the seed fixes the draws.
"""

from __future__ import annotations

import sys

import submodel


def main(folder: str, prompt: str = "\n", *, tokens: int = 200) -> dict[str, str]:
    """Print and return the text of every capacity of a run."""
    run = submodel.open(folder)
    texts = {}
    for capacity in ("1", "1/2", "1/4"):
        texts[capacity] = run.generate(prompt, tokens, capacity=capacity, temperature=0.7, seed=0)
        print(f"capacity {capacity}:\n{texts[capacity]}\n")
    return texts


if __name__ == "__main__":
    main(sys.argv[1], *sys.argv[2:3])
