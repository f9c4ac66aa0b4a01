"""Experiments: many runs, their records and budgets, and what they show."""
