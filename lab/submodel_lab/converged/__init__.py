"""Converged runs: arms, tuned learning rates, questions and their answers."""
