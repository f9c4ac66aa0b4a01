"""Figures of runs by name: `registry` lists them, `series` reads their data, `figures` draws."""
