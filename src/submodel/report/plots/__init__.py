"""Figures of runs: `figure_kinds` lists them, `series` reads their data, `figures` draws them."""
