"""Comparing ways to train fairly: the same data, seeds and budget for all."""
