"""Runs and experiments while they run: in the terminal, and as a page that a local server sends."""
