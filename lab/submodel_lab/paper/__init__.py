"""Experiments of the paper: arms, contrasts, runs and reports."""
