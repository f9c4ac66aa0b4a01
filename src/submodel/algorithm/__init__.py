"""The algorithm: what a round is made of, and how its updates become the next model."""
