"""Seconds per round of our engines, of a bare loop and of other systems."""
